// What a benchmark run found, and its forms: a table, JSON, a page. docs/performance.md explains every column.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/limits.hpp"
#include "bench/timing.hpp"

namespace dsalt::benchmark {

struct Row {
  std::string operation, backend, isa, dtype, shape;  // what identifies it in a comparison
  int shape_number = 0;
  std::string skipped;  // the reason; empty: it was measured
  Timing timing;
  Cost cost;
  std::optional<double> limit, limit_executed;  // seconds; executed: for the pairs that the tiles execute
  std::optional<double> peak_bytes;             // memory beside the tensors

  bool measured() const { return skipped.empty(); }
  double gflops() const { return cost.flop / timing.median * 1e-9; }
  double gbps() const { return cost.bytes / timing.median * 1e-9; }
  std::optional<double> fraction() const { return limit ? std::optional(*limit / timing.median) : std::nullopt; }
  std::optional<double> fraction_executed() const {
    return limit_executed ? std::optional(*limit_executed / timing.median) : std::nullopt;
  }
  std::optional<double> tile_efficiency() const {
    if (!cost.pairs || !cost.executed_pairs || *cost.executed_pairs <= 0) return {};
    return *cost.pairs / *cost.executed_pairs;
  }
};

struct ScalingPoint {
  double x = 0;         // tokens or threads
  std::string skipped;  // as in Row
  Timing timing;
  double flop = 0;
  bool measured() const { return skipped.empty(); }
};

/// One operation over lengths (time grows as N^slope) or over numbers of threads.
struct ScalingSeries {
  std::string operation, backend, isa, dtype, shape;
  std::string variable;  // "N" or "threads"
  std::vector<ScalingPoint> points;
  std::optional<double> slope;  // over N: of log(median) over log(N), least squares
};

struct BackendResults {
  std::string name, description;
  DeviceLimits limits;
};

struct Results {
  std::string version, commit, date, command;
  std::vector<BackendResults> backends;
  std::vector<Row> rows;
  std::vector<ScalingSeries> scaling;
};

std::string to_table(const Results& results);
std::string to_json(const Results& results);
std::string to_html(const Results& results);
/// Parts of the page: achieved FLOP/s over FLOP per byte below the limits of one backend, each row's shares of its
/// limit, series of one variable. Empty where there is nothing to show.
std::string shares_svg(const BackendResults& backend, const std::vector<Row>& rows);
std::string roofline_svg(const BackendResults& backend, const std::vector<Row>& rows);
std::string scaling_svg(const std::vector<ScalingSeries>& series, const std::string& variable);

}  // namespace dsalt::benchmark
