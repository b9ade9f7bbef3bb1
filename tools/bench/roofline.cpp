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
  const auto shown = [&](const Row& row) { return row.backend == backend.name && row.measured() && row.cost.flop > 0; };
  std::map<double, std::string> roofs;  // by peak: dtypes that were measured
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const std::string name(name_of(dtype));
    if (std::none_of(rows.begin(), rows.end(), [&](const Row& row) { return shown(row) && row.dtype == name; }))
      continue;
    std::string& names = roofs[*limits.peak_of(dtype)];
    names += (names.empty() ? "" : ", ") + name;
  }
  if (roofs.empty()) return {};
  const double lowest_peak = roofs.begin()->first, highest = roofs.rbegin()->first * 1e-9;
  double left = lowest_peak / *limits.bandwidth, right = left, low = lowest_peak * 1e-9;
  for (const Row& row : rows) {
    if (!shown(row)) continue;
    const double intensity = row.cost.flop / row.cost.bytes;
    left = std::min(left, intensity);
    right = std::max(right, intensity / row.tile_efficiency().value_or(1));
    low = std::min(low, row.gflops());
  }
  const Axis x = decades_axis("FLOP per byte", left, right), y = decades_axis("GFLOP/s", low, highest * 1.2);
  Plot plot("Roofline of " + backend.name, x, y);
  for (const auto& [peak, names] : roofs) draw_roof(plot, x.low, x.high, peak, *limits.bandwidth, names);
  const double lowest = std::max(x.low, y.low / (*limits.bandwidth * 1e-9));  // of the slanted line
  const double middle = std::sqrt(lowest * lowest_peak / *limits.bandwidth);
  plot.text(plot.x_at(middle) - 8, plot.y_at(*limits.bandwidth * middle * 1e-9) - 6,
            "class=\"rooftext\" text-anchor=\"end\"", "memory " + number_text(*limits.bandwidth * 1e-9) + " GB/s");

  std::map<std::string, std::size_t> colour;
  for (const Row& row : rows)
    if (shown(row)) colour.emplace(family(row.operation), colour.size());
  for (const bool names : {false, true})
    for (std::size_t n = 0; n < rows.size(); ++n) {
      const Row& row = rows[n];
      if (!shown(row)) continue;
      const std::string css = "class=\"" + colour_class(colour[family(row.operation)]) + "\"";
      const double at = row.cost.flop / row.cost.bytes;
      if (names) {
        plot.name_point(at, row.gflops(), std::to_string(n + 1));
        continue;
      }
      const std::string row_name = std::to_string(n + 1) + ": " + row.operation + " " + row.shape + ", " + row.dtype;
      if (const auto efficiency = row.tile_efficiency(); efficiency && *efficiency > 0) {
        const double executed = row.gflops() / *efficiency;  // of more FLOP, with the same bytes
        plot.line({{at, row.gflops()}, {at / *efficiency, executed}}, css);
        plot.ring(at / *efficiency, executed, css,
                  row_name + ", executed: " + number_text(executed) + " GFLOP/s, " +
                      or_dash(row.fraction_executed(), percent_text) + " of the limit");
      }
      plot.dot(at, row.gflops(), css,
               row_name + ": " + number_text(row.gflops()) + " GFLOP/s, " + or_dash(row.fraction(), percent_text) +
                   " of the limit");
    }
  std::string legend = "<p class=\"legend\">";
  std::vector<std::string> legends(colour.size());
  for (const auto& [name, place] : colour) legends[place] = name;
  for (std::size_t n = 0; n < legends.size(); ++n)
    legend += "<span><svg class=\"key\" viewBox=\"0 0 10 10\"><circle class=\"" + colour_class(n) +
              "\" cx=\"5\" cy=\"5\" r=\"4.5\"/></svg>" + escaped(legends[n]) + "</span> ";
  return plot.svg() + legend + "</p>\n";
}

}  // namespace dsalt::benchmark
