// Small diagrams as inline SVG: two axes, linear or logarithmic, with ticks, and text that may stand in markup.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "markup.hpp"

namespace dsalt::benchmark {

using tools::escaped;

struct Axis {
  std::string title;
  double low = 1, high = 10;  // the range shown
  bool logarithmic = true;
  std::vector<double> ticks;
};

/// An axis over the values, with room: whole decades and their ticks, or powers of two, or a linear one from 0
/// (`whole`: with ticks at whole numbers only).
Axis decades_axis(std::string title, double smallest, double largest);
Axis powers_of_two_axis(std::string title, double smallest, double largest);
Axis linear_axis(std::string title, double largest, bool whole = false);

class Plot {
 public:
  Plot(std::string label, Axis x, Axis y);

  double x_at(double value) const;
  double y_at(double value) const;
  /// A line through points in the axes' units, cut at the frame.
  void line(const std::vector<std::pair<double, double>>& points, std::string_view attributes);
  void dot(double x, double y, std::string_view attributes, std::string_view tooltip);
  /// A small open one.
  void ring(double x, double y, std::string_view attributes, std::string_view tooltip);
  /// A short text beside a point, where it covers no other such text: or nothing.
  void name_point(double x, double y, const std::string& text, std::string_view attributes = "");
  void text(double pixel_x, double pixel_y, std::string_view attributes, std::string_view content);

  std::string svg() const;

 private:
  struct Box {
    double x, y, width, height;
  };
  Axis x_, y_;
  std::string label_, body_;
  std::vector<Box> taken_;
};

/// The n-th colour of a set that can be told apart, as an SVG class of the page's style.
std::string colour_class(std::size_t n);
inline constexpr std::size_t colours = 10;

}  // namespace dsalt::benchmark
