// time ~ N^slope: the least squares line through (log N, log median), and the times with 1, 2, 4, ... threads.
#include <algorithm>
#include <cmath>

#include "bench/runner.hpp"
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

Shape with_length(Shape shape, std::int64_t n) {
  if (shape.queries == shape.keys) shape.queries = n;  // else: the keys grow
  shape.keys = n;
  shape.number = 0;
  return shape;
}

}  // namespace

std::optional<double> log_log_slope(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    sx += std::log(x[k]);
    sy += std::log(y[k]);
  }
  for (std::size_t k = 0; k < x.size(); ++k) {
    const double dx = std::log(x[k]) - sx / n;
    sxx += dx * dx;
    sxy += dx * (std::log(y[k]) - sy / n);
  }
  if (!(sxx > 0)) return {};
  return sxy / sxx;
}

std::vector<ScalingSeries> run_scaling(const std::string& operation, const Shape& shape, DType dtype,
                                       const DeviceLimits& limits, const ScalingOptions& options) {
  std::vector<ScalingSeries> result;
  const auto backend = make_backend(options.backend, options.backend_options);
  for (std::size_t kind = 0; kind < workloads(operation, shape, dtype).size(); ++kind) {
    ScalingSeries lengths;
    for (std::int64_t n = options.shortest; n <= options.longest; n *= 2) {
      const Workload work = workloads(operation, with_length(shape, n), dtype)[kind];
      options.progress(work.operation + " " + work.shape);
      const Row row = run_workload(*backend, limits, work, options.run);
      if (n == options.shortest) lengths = series_of(row, "N");
      lengths.points.push_back(point_of(static_cast<double>(n), row));
    }
    fit(lengths);
    lengths.shape = workloads(operation, shape, dtype)[kind].shape;
    result.push_back(std::move(lengths));

    if (!limits.threads_vary) continue;
    ScalingSeries threads;
    const int most = limits.threads.value_or(1);
    for (int count = 1;; count = std::min(2 * count, most)) {
      const Workload work = workloads(operation, shape, dtype)[kind];
      options.progress(work.operation + " " + work.shape + ", threads " + std::to_string(count));
      BackendOptions with_threads = options.backend_options;
      with_threads.threads = count;
      RunOptions patient = options.run;
      patient.max_time *= static_cast<double>(most) / count;
      const auto part = make_backend(options.backend, with_threads);
      DeviceLimits part_limits = limits;
      if (part_limits.expected_rate) *part_limits.expected_rate *= static_cast<double>(count) / most;
      const Row row = run_workload(*part, part_limits, work, patient);
      if (count == 1) threads = series_of(row, "threads");
      threads.points.push_back(point_of(count, row));
      if (count == most) break;
    }
    result.push_back(std::move(threads));
  }
  return result;
}

}  // namespace dsalt::benchmark
