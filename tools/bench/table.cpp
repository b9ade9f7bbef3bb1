// The table on the terminal: a line per row, skipped rows with their reason.
#include <algorithm>

#include "bench/format.hpp"
#include "bench/results.hpp"

namespace dsalt::benchmark {
namespace {

using Cells = std::vector<std::string>;

/// UTF-8 free: one byte is one column.
std::string aligned(const std::vector<Cells>& lines, std::size_t left_columns) {
  std::vector<std::size_t> width;
  for (const Cells& line : lines)
    for (std::size_t n = 0; n < line.size() && line.size() > left_columns + 1; ++n) {
      width.resize(std::max(width.size(), line.size()));
      width[n] = std::max(width[n], line[n].size());
    }
  for (const Cells& line : lines)  // lines that end in a sentence only line up their first columns
    for (std::size_t n = 0; n < left_columns && n < line.size(); ++n) {
      width.resize(std::max(width.size(), left_columns));
      width[n] = std::max(width[n], line[n].size());
    }
  std::string text;
  for (const Cells& line : lines) {
    std::string row;
    for (std::size_t n = 0; n < line.size(); ++n) {
      const bool last = n + 1 == line.size();
      const std::string space(n < width.size() && width[n] > line[n].size() ? width[n] - line[n].size() : 0, ' ');
      const bool left = n < left_columns || (last && line.size() <= left_columns + 1);
      row += (n ? "  " : "") + (left ? line[n] + (last ? "" : space) : space + line[n]);
    }
    text += row + "\n";
  }
  return text;
}

std::string header_text(const Results& results) {
  std::string text = "dsalt " + results.version + (results.commit.empty() ? "" : " (" + results.commit + ")") + ", " +
                     results.date + "\n";
  for (const BackendResults& backend : results.backends) {
    const DeviceLimits& limits = backend.limits;
    text += backend.name + ": " + backend.description + (limits.name.empty() ? "" : "; on " + limits.name) + "\n";
    if (!limits.peak && !limits.bandwidth) {
      text += "  limits not known\n";
      continue;
    }
    text += "  limits " + limits.source + ": " + or_dash(limits.peak, [](double v) { return number_text(v * 1e-9); }) +
            " GFLOP/s float32";
    if (limits.peak_bf16) text += ", " + number_text(*limits.peak_bf16 * 1e-9) + " GFLOP/s bfloat16";
    if (limits.peak_f64) text += ", " + number_text(*limits.peak_f64 * 1e-9) + " GFLOP/s float64";
    if (limits.exponentials) text += ", " + number_text(*limits.exponentials * 1e-9) + " G exp2/s";
    text += ", memory " + or_dash(limits.bandwidth, [](double v) { return number_text(v * 1e-9); }) + " GB/s";
    text += limits.isa.empty() ? "\n"
                               : " (" + limits.isa + ", " + std::to_string(limits.threads.value_or(1)) +
                                     (limits.threads.value_or(1) == 1 ? " thread)\n" : " threads)\n");
  }
  return text;
}

std::string rows_text(const Results& results) {
  if (results.rows.empty()) return {};
  std::vector<Cells> lines = {{"operation", "shape", "dtype", "backend", "median", "p10", "p90", "GFLOP/s", "GB/s",
                               "of limit", "executed", "tiles", "memory"}};
  for (const Row& row : results.rows) {
    const std::string shape = (row.shape_number ? std::to_string(row.shape_number) + ": " : "") + row.shape;
    Cells line = {row.operation, shape, row.dtype, row.backend};
    if (!row.measured()) {
      line.push_back("skipped: " + row.skipped);
    } else {
      for (const double seconds : {row.timing.median, row.timing.p10, row.timing.p90})
        line.push_back(seconds_text(seconds));
      line.push_back(row.cost.flop > 0 ? number_text(row.gflops()) : "-");
      line.push_back(number_text(row.gbps()));
      line.push_back(or_dash(row.fraction(), percent_text));
      line.push_back(or_dash(row.fraction_executed(), percent_text));
      line.push_back(or_dash(row.tile_efficiency(), percent_text));
      line.push_back(or_dash(row.peak_bytes, bytes_text));
    }
    lines.push_back(std::move(line));
  }
  return "\n" + aligned(lines, 4);
}

std::string series_text(const ScalingSeries& series) {
  std::string text =
      "\n" + series.operation + " " + series.shape + ", " + series.dtype + ", " + series.backend + ": time over ";
  text += series.variable;
  if (series.slope) text += ", grows as " + series.variable + "^" + number_text(*series.slope);
  text += "\n";
  std::vector<Cells> lines = {{series.variable, "median", "p10", "p90", "GFLOP/s", "speed-up"}};
  const ScalingPoint* first = nullptr;
  for (const ScalingPoint& point : series.points) {
    Cells line = {std::to_string(static_cast<std::int64_t>(point.x))};
    if (!point.measured()) {
      line.push_back("skipped: " + point.skipped);
    } else {
      if (!first) first = &point;
      for (const double seconds : {point.timing.median, point.timing.p10, point.timing.p90})
        line.push_back(seconds_text(seconds));
      line.push_back(point.flop > 0 ? number_text(point.flop / point.timing.median * 1e-9) : "-");
      line.push_back(series.variable == "threads" ? number_text(first->timing.median / point.timing.median) : "-");
    }
    lines.push_back(std::move(line));
  }
  return text + aligned(lines, 1);
}

}  // namespace

std::string to_table(const Results& results) {
  std::string text = header_text(results) + rows_text(results);
  for (const ScalingSeries& series : results.scaling) text += series_text(series);
  return text;
}

}  // namespace dsalt::benchmark
