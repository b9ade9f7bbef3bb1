// x: log10(error / bound), a quarter of a decade per bar, from 10^-5 to 10^1; the leftmost bar, set apart, counts exact
// elements, and whatever lies beyond either end goes into the end bars. y: share of elements, scaled to the largest
// bar. A triangle on the axis marks the worst of all elements.
#include "report/histogram.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "report/xml.hpp"

namespace dsalt::verification {
namespace {

constexpr int first_decade = -5, last_decade = 1, bars_per_decade = 4;
constexpr int bars = (last_decade - first_decade) * bars_per_decade;
constexpr double bar_width = 8, gap = 6, left = 4, plot_top = 6, plot_height = 64;
constexpr double plot_left = left + bar_width + gap, width = plot_left + bars * bar_width + 4,
                 height = plot_top + plot_height + 18;

struct Counts {
  double exact = 0;
  std::array<double, bars> of{};
  double total = 0;
};

Counts count_bars(const std::vector<float>& sample) {
  Counts counts;
  for (const float share : sample) {
    ++counts.total;
    if (share == 0) {
      ++counts.exact;
      continue;
    }
    const double position = (std::log10(static_cast<double>(share)) - first_decade) * bars_per_decade;
    const int bar = position >= bars ? bars - 1 : position > 0 ? static_cast<int>(position) : 0;  // NaN: 0, never drawn
    ++counts.of[static_cast<std::size_t>(bar)];
  }
  return counts;
}

std::string format(const char* pattern, double a, double b = 0, double c = 0, double d = 0) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, a, b, c, d);
  return text;
}

double x_of(double decade) { return plot_left + (decade - first_decade) * bars_per_decade * bar_width; }

std::string bar(double x, double share, double largest, const char* kind, const std::string& label) {
  if (share <= 0) return {};
  const double tall = std::max(1.0, plot_height * share / largest);
  return std::string("<rect class=\"") + kind +
         format("\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">", x + 0.5, plot_top + plot_height - tall,
                bar_width - 1, tall) +
         "<title>" + label + format(": %.1f %% of elements", 100 * share) + "</title></rect>";
}

}  // namespace

std::string histogram_svg(const Accuracy& accuracy) {
  const Counts counts = count_bars(accuracy.sample);
  const double total = std::max(counts.total, 1.0);
  const double largest = std::max({counts.exact, *std::max_element(counts.of.begin(), counts.of.end()), 1.0}) / total;
  const std::string name = accuracy.suite + ", " + accuracy.operation + ", " + accuracy.dtype;
  std::string svg =
      format("<svg class=\"histogram\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\"", width,
             height, width, height) +
      " aria-label=\"Error distribution: " + xml_escaped(name) + "\">";
  svg += format("<rect class=\"over\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>", x_of(0), plot_top,
                x_of(last_decade) - x_of(0), plot_height);
  svg += bar(left, counts.exact / total, largest, "exact", "exact");
  for (int n = 0; n < bars; ++n) {
    const double decade = first_decade + static_cast<double>(n) / bars_per_decade;
    const std::string label = format("10^%.2f to 10^%.2f of the bound", decade, decade + 1.0 / bars_per_decade);
    svg += bar(plot_left + n * bar_width, counts.of[static_cast<std::size_t>(n)] / total, largest,
               decade >= 0 ? "bad" : "bar", label);
  }
  const double base = plot_top + plot_height;
  svg += format("<line class=\"axis\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", left, base, width - 4, base);
  svg += format("<line class=\"bound\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", x_of(0), plot_top - 4,
                x_of(0), base);
  if (accuracy.worst > 0) {  // the worst of all elements, which the sample may have missed
    const double x = std::clamp(x_of(std::log10(accuracy.worst)), plot_left, width - 4);
    svg += format("<path class=\"worst\" d=\"M%.1f %.1fl-4 -6h8z\"><title>", x, base) +
           "worst: " + xml_escaped(accuracy.worst_case) + "</title></path>";
  }
  svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">0</text>", left + bar_width / 2, base + 13);
  for (const int decade : {-4, -2})
    svg += format(
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">10<tspan dy=\"-3\" font-size=\"7\">%.0f</tspan></text>",
        x_of(decade), base + 13, decade);
  svg +=
      format("<text class=\"boundtext\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">bound</text>", x_of(0), base + 13);
  return svg + "</svg>";
}

}  // namespace dsalt::verification
