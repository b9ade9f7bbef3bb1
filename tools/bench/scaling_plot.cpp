// Over N: median times, both axes logarithmic, with the slope of each line. Over threads: speed-up against one thread,
// with the ideal line.
#include <algorithm>

#include "bench/format.hpp"
#include "bench/plot.hpp"
#include "bench/results.hpp"

namespace dsalt::benchmark {
namespace {

struct Line {
  const ScalingSeries* series;
  std::vector<std::pair<double, double>> points;  // N and milliseconds, or threads and speed-up
};

std::vector<Line> lines_of(const std::vector<ScalingSeries>& all, const std::string& variable) {
  std::vector<Line> lines;
  for (const ScalingSeries& series : all) {
    if (series.variable != variable) continue;
    Line line{&series, {}};
    double first = 0;
    for (const ScalingPoint& point : series.points) {
      if (!point.measured()) continue;
      if (first == 0) first = point.timing.median * (variable == "threads" ? point.x : 1);
      line.points.emplace_back(point.x,
                               variable == "threads" ? first / point.timing.median : 1e3 * point.timing.median);
    }
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::string scaling_svg(const std::vector<ScalingSeries>& series, const std::string& variable) {
  const std::vector<Line> lines = lines_of(series, variable);
  if (lines.empty()) return {};
  const bool threads = variable == "threads";
  double left = lines[0].points[0].first, right = left, low = lines[0].points[0].second, high = low;
  for (const Line& line : lines)
    for (const auto& [x, y] : line.points) {
      left = std::min(left, x);
      right = std::max(right, x);
      low = std::min(low, y);
      high = std::max(high, y);
    }
  Plot plot(threads ? "Speed-up over threads" : "Time over length",
            threads ? linear_axis("threads", right, true) : powers_of_two_axis("N", left, right),
            threads ? linear_axis("speed-up", std::max(high, right)) : decades_axis("ms", low, high));
  if (threads) {
    plot.line({{0, 0}, {right, right}}, "class=\"roof\" stroke-dasharray=\"5 4\"");
    plot.name_point(right * 0.55, right * 0.55, "ideal");
  }
  std::string legend = "<p class=\"legend\">";
  for (std::size_t n = 0; n < lines.size(); ++n) {
    const Line& line = lines[n];
    const std::string css = "class=\"" + colour_class(n) + "\"";
    plot.line(line.points, css);
    for (const auto& [x, y] : line.points)
      plot.dot(x, y, css,
               line.series->operation + ", " + variable + " " + number_text(x) + ": " +
                   (threads ? "speed-up " + number_text(y) : seconds_text(1e-3 * y)));
    legend += "<span><svg class=\"key\" viewBox=\"0 0 10 10\"><circle " + css + " cx=\"5\" cy=\"5\" r=\"4.5\"/></svg>" +
              escaped(line.series->operation + " " + line.series->shape + ", " + line.series->dtype + ", " +
                      line.series->backend);
    if (!threads && line.series->slope) legend += ": slope " + number_text(*line.series->slope);
    legend += "</span> ";
  }
  return plot.svg() + legend + "</p>\n";
}

}  // namespace dsalt::benchmark
