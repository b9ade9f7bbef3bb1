// y = GFLOP/s over x = FLOP per byte, below min(peak, bandwidth x). A point is a row, by its place in the page's table.
#include <algorithm>
#include <cmath>
#include <map>

#include "bench/format.hpp"
#include "bench/plot.hpp"
#include "bench/results.hpp"

namespace dsalt::benchmark {
namespace {

/// Forward and backward of an operation share a colour.
std::string family(const std::string& operation) { return operation.substr(0, operation.find("_backward")); }

void draw_roof(Plot& plot, double low, double high, double peak, double bandwidth, const std::string& name) {
  const double knee = peak / bandwidth;
  plot.line({{low, bandwidth * low * 1e-9}, {knee, peak * 1e-9}, {high, peak * 1e-9}}, "class=\"roof\"");
  plot.text(plot.x_at(high) - 6, plot.y_at(peak * 1e-9) - 6, "class=\"rooftext\" text-anchor=\"end\"",
            name + " " + number_text(peak * 1e-9) + " GFLOP/s");
}

}  // namespace

std::string roofline_svg(const BackendResults& backend, const std::vector<Row>& rows) {
  const DeviceLimits& limits = backend.limits;
  if (!limits.peak || !limits.bandwidth) return {};
  const double highest = std::max(*limits.peak, limits.peak_bf16.value_or(0)) * 1e-9;
  double left = *limits.peak / *limits.bandwidth, right = left, low = highest;
  for (const Row& row : rows) {
    if (row.backend != backend.name || !row.measured() || !(row.cost.flop > 0)) continue;
    const double intensity = row.cost.flop / row.cost.bytes;
    left = std::min(left, intensity);
    right = std::max(right, intensity);
    low = std::min(low, row.gflops());
  }
  if (low >= highest) return {};
  const Axis x = decades_axis("FLOP per byte", left, right), y = decades_axis("GFLOP/s", low, highest * 1.2);
  Plot plot("Roofline of " + backend.name, x, y);
  draw_roof(plot, x.low, x.high, *limits.peak, *limits.bandwidth, "float32");
  if (limits.peak_bf16) draw_roof(plot, x.low, x.high, *limits.peak_bf16, *limits.bandwidth, "bfloat16");
  const double lowest = std::max(x.low, y.low / (*limits.bandwidth * 1e-9));  // of the slanted line
  const double middle = std::sqrt(lowest * *limits.peak / *limits.bandwidth);
  plot.text(plot.x_at(middle) - 8, plot.y_at(*limits.bandwidth * middle * 1e-9) - 6,
            "class=\"rooftext\" text-anchor=\"end\"", "memory " + number_text(*limits.bandwidth * 1e-9) + " GB/s");

  std::map<std::string, std::size_t> colour;
  for (const Row& row : rows)
    if (row.backend == backend.name && row.measured() && row.cost.flop > 0)
      colour.emplace(family(row.operation), colour.size());
  for (const bool names : {false, true})
    for (std::size_t n = 0; n < rows.size(); ++n) {
      const Row& row = rows[n];
      if (row.backend != backend.name || !row.measured() || !(row.cost.flop > 0)) continue;
      const std::string css = "class=\"" + colour_class(colour[family(row.operation)]) + "\"";
      const double at = row.cost.flop / row.cost.bytes;
      if (names)
        plot.name_point(at, row.gflops(), std::to_string(n + 1));
      else
        plot.dot(at, row.gflops(), css,
                 std::to_string(n + 1) + ": " + row.operation + " " + row.shape + ", " + row.dtype + ": " +
                     number_text(row.gflops()) + " GFLOP/s, " + or_dash(row.fraction(), percent_text) +
                     " of the limit");
    }
  std::string legend = "<p class=\"legend\">";
  std::vector<std::string> shown(colour.size());
  for (const auto& [name, place] : colour) shown[place] = name;
  for (std::size_t n = 0; n < shown.size(); ++n)
    legend += "<span><svg class=\"key\" viewBox=\"0 0 10 10\"><circle class=\"" + colour_class(n) +
              "\" cx=\"5\" cy=\"5\" r=\"4.5\"/></svg>" + escaped(shown[n]) + "</span> ";
  return plot.svg() + legend + "</p>\n";
}

}  // namespace dsalt::benchmark
