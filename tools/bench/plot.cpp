#include "bench/plot.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace dsalt::benchmark {
namespace {

constexpr double width = 760, height = 420, left = 74, right = 20, top = 18, bottom = 52;

std::string pixels(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

double place(const Axis& axis, double value) {
  if (!axis.logarithmic) return (value - axis.low) / (axis.high - axis.low);
  return (std::log(value) - std::log(axis.low)) / (std::log(axis.high) - std::log(axis.low));
}

/// An id of its own on the page.
std::string frame_name(const std::string& label) {
  std::string name = "frame";
  for (const char c : label)
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) name += c;
  return name;
}

std::string tick_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 1e5 || (value > 0 && value < 1e-3) ? "%.0e" : "%g", value);
  return text;
}

}  // namespace

Axis decades_axis(std::string title, double smallest, double largest) {
  Axis axis{std::move(title),
            std::pow(10, std::floor(std::log10(smallest * 0.95))),
            std::pow(10, std::ceil(std::log10(largest * 1.05))),
            true,
            {}};
  for (double tick = axis.low; tick <= axis.high * 1.001; tick *= 10) axis.ticks.push_back(tick);
  return axis;
}

Axis powers_of_two_axis(std::string title, double smallest, double largest) {
  Axis axis{std::move(title), smallest / 1.2, largest * 1.2, true, {}};
  for (double tick = smallest; tick <= largest * 1.001; tick *= 2) axis.ticks.push_back(tick);
  return axis;
}

Axis linear_axis(std::string title, double largest, bool whole) {
  Axis axis{std::move(title), 0, largest * 1.08, false, {}};
  double step = std::pow(10, std::floor(std::log10(largest)));
  for (const double finer : {2.0, 2.5, 2.0})
    if (largest / step < 4) step /= finer;
  if (whole) step = std::max(1.0, std::round(step));
  for (double tick = 0; tick <= axis.high; tick += step) axis.ticks.push_back(tick);
  return axis;
}

Plot::Plot(std::string label, Axis x, Axis y) : x_(std::move(x)), y_(std::move(y)), label_(std::move(label)) {}

double Plot::x_at(double value) const { return left + place(x_, value) * (width - left - right); }
double Plot::y_at(double value) const { return height - bottom - place(y_, value) * (height - top - bottom); }

void Plot::line(const std::vector<std::pair<double, double>>& points, std::string_view attributes) {
  body_ += "<polyline clip-path=\"url(#" + frame_name(label_) + ")\" fill=\"none\" " + std::string(attributes) +
           " points=\"";
  for (const auto& [x, y] : points) body_ += pixels(x_at(x)) + "," + pixels(y_at(y)) + " ";
  body_ += "\"/>\n";
}

void Plot::dot(double x, double y, std::string_view attributes, std::string_view tooltip) {
  const double px = x_at(x), py = y_at(y);
  body_ += "<circle cx=\"" + pixels(px) + "\" cy=\"" + pixels(py) + "\" r=\"4.5\" " + std::string(attributes) +
           "><title>" + escaped(tooltip) + "</title></circle>\n";
  taken_.push_back({px - 5, py - 5, 10, 10});
}

void Plot::ring(double x, double y, std::string_view attributes, std::string_view tooltip) {
  body_ += "<circle cx=\"" + pixels(x_at(x)) + "\" cy=\"" + pixels(y_at(y)) + "\" r=\"3\" " + std::string(attributes) +
           " style=\"fill:none\"><title>" + escaped(tooltip) + "</title></circle>\n";
}

void Plot::name_point(double x, double y, const std::string& text, std::string_view attributes) {
  const double px = x_at(x), py = y_at(y), wide = 6.2 * static_cast<double>(text.size()), tall = 11;
  const Box places[] = {{px + 7, py - 5.5, wide, tall},       {px - 7 - wide, py - 5.5, wide, tall},
                        {px - wide / 2, py - 18, wide, tall}, {px - wide / 2, py + 7, wide, tall},
                        {px + 5, py - 16, wide, tall},        {px + 5, py + 5, wide, tall},
                        {px - 5 - wide, py - 16, wide, tall}, {px - 5 - wide, py + 5, wide, tall}};
  for (const Box& box : places) {
    const bool free = std::none_of(taken_.begin(), taken_.end(), [&](const Box& other) {
      return box.x < other.x + other.width && other.x < box.x + box.width && box.y < other.y + other.height &&
             other.y < box.y + box.height;
    });
    if (!free || box.x < left || box.x + box.width > width - right || box.y < top) continue;
    taken_.push_back(box);
    this->text(box.x, box.y + 9.5, attributes, text);
    return;
  }
}

void Plot::text(double pixel_x, double pixel_y, std::string_view attributes, std::string_view content) {
  body_ += "<text x=\"" + pixels(pixel_x) + "\" y=\"" + pixels(pixel_y) + "\" " + std::string(attributes) + ">" +
           escaped(content) + "</text>\n";
}

std::string Plot::svg() const {
  std::string svg = "<svg class=\"plot\" viewBox=\"0 0 " + pixels(width) + " " + pixels(height) +
                    "\" role=\"img\" aria-label=\"" + escaped(label_) + "\">\n<defs><clipPath id=\"" +
                    frame_name(label_) + "\"><rect x=\"" + pixels(left) + "\" y=\"" + pixels(top) + "\" width=\"" +
                    pixels(width - left - right) + "\" height=\"" + pixels(height - top - bottom) +
                    "\"/></clipPath></defs>\n";
  const auto grid = [&](double x1, double y1, double x2, double y2) {
    svg += "<line class=\"grid\" x1=\"" + pixels(x1) + "\" y1=\"" + pixels(y1) + "\" x2=\"" + pixels(x2) + "\" y2=\"" +
           pixels(y2) + "\"/>\n";
  };
  const auto label = [&](double x, double y, const char* anchor, const std::string& content, const char* more = "") {
    svg += "<text x=\"" + pixels(x) + "\" y=\"" + pixels(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
           escaped(content) + "</text>\n";
  };
  for (const double tick : x_.ticks) {
    grid(x_at(tick), top, x_at(tick), height - bottom);
    label(x_at(tick), height - bottom + 16, "middle", tick_text(tick));
  }
  for (const double tick : y_.ticks) {
    grid(left, y_at(tick), width - right, y_at(tick));
    label(left - 8, y_at(tick) + 4, "end", tick_text(tick));
  }
  label(left + (width - left - right) / 2, height - 12, "middle", x_.title, " class=\"title\"");
  const double middle = top + (height - top - bottom) / 2;
  const std::string turned = " class=\"title\" transform=\"rotate(-90 16 " + pixels(middle) + ")\"";
  label(16, middle, "middle", y_.title, turned.c_str());
  return svg + body_ + "</svg>\n";
}

std::string colour_class(std::size_t n) { return "c" + std::to_string(n % colours); }

}  // namespace dsalt::benchmark
