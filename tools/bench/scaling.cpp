// time ~ N^slope: the least squares line through (log N, log median), and the times with 1, 2, 4, ... threads.
#include <algorithm>

#include "bench/runner.hpp"
#include "bench/statistics.hpp"
#include "dsalt/registry.hpp"

namespace dsalt::benchmark {
namespace {

ScalingPoint point_of(double x, const Row& row) { return {x, row.skipped, row.timing, row.cost.flop}; }

ScalingSeries series_of(const Row& row, const char* variable) {
  return {row.operation, row.backend, row.isa, row.dtype, row.shape, variable, {}, {}};
}

void fit(ScalingSeries& series) {
  std::vector<double> x, y;
  for (const ScalingPoint& point : series.points) {
    if (!point.measured()) continue;
    x.push_back(point.x);
    y.push_back(point.timing.median);
  }
  series.slope = log_log_slope(x, y);
}

/// Both lengths of self-attention, the keys of any other attention, the rows of the other operations.
Shape with_length(const std::string& operation, Shape shape, std::int64_t n) {
  if (shape.queries == shape.keys || !operation.starts_with("attention")) shape.queries = n;
  shape.keys = n;
  shape.number = 0;
  return shape;
}

/// 1, 2, 4, ... and the most.
std::vector<int> thread_counts(const DeviceLimits& limits) {
  std::vector<int> counts;
  if (!limits.threads_vary) return counts;
  const int most = limits.threads.value_or(1);
  for (int count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  return counts;
}

}  // namespace

std::size_t scaling_points(const std::string& operation, const Shape& shape, DType dtype, const DeviceLimits& limits,
                           const ScalingOptions& options) {
  std::size_t points = thread_counts(limits).size();
  for (std::int64_t n = options.shortest; n <= options.longest; n *= 2) ++points;
  return points * workloads(operation, shape, dtype).size();
}

std::vector<ScalingSeries> run_scaling(const std::string& operation, const Shape& shape, DType dtype,
                                       const DeviceLimits& limits, const ScalingOptions& options) {
  std::vector<ScalingSeries> result;
  const auto backend = make_backend(options.backend, options.backend_options);
  for (std::size_t kind = 0; kind < workloads(operation, shape, dtype).size(); ++kind) {
    ScalingSeries lengths;
    for (std::int64_t n = options.shortest; n <= options.longest; n *= 2) {
      const Workload work = workloads(operation, with_length(operation, shape, n), dtype)[kind];
      options.progress(work.operation + " " + work.shape);
      const Row row = run_workload(*backend, limits, work, options.run);
      if (n == options.shortest) lengths = series_of(row, "N");
      lengths.points.push_back(point_of(static_cast<double>(n), row));
    }
    fit(lengths);
    lengths.shape = workloads(operation, shape, dtype)[kind].shape;
    result.push_back(std::move(lengths));

    ScalingSeries threads;
    const std::vector<int> counts = thread_counts(limits);
    for (const int count : counts) {
      const auto share = static_cast<double>(count) / counts.back();
      const Workload work = workloads(operation, shape, dtype)[kind];
      options.progress(work.operation + " " + work.shape + ", threads " + std::to_string(count));
      BackendOptions with_threads = options.backend_options;
      with_threads.threads = count;
      RunOptions patient = options.run;
      patient.max_time /= share;
      const auto part = make_backend(options.backend, with_threads);
      DeviceLimits part_limits = limits;
      if (part_limits.expected_rate) *part_limits.expected_rate *= share;
      const Row row = run_workload(*part, part_limits, work, patient);
      if (count == 1) threads = series_of(row, "threads");
      threads.points.push_back(point_of(count, row));
    }
    if (!counts.empty()) result.push_back(std::move(threads));
  }
  return result;
}

}  // namespace dsalt::benchmark
