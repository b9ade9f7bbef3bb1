// Runs workloads on one backend.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/results.hpp"

namespace dsalt::benchmark {

struct RunOptions {
  double min_time = 0.5;  // seconds of timed calls per row
  double max_time = 3;    // seconds that one call may be expected to take
  /// LimitsProvider::copies and copied_bytes: rows that memory limits and that move so many bytes are held against the
  /// copies between their repetitions, because the rate may have changed since the limits were measured.
  std::function<double()> copies{};
  double copied_bytes = 0;
};

/// Measures one workload. It is skipped, with the reason, where it means nothing, is not supported, needs more memory
/// than is free, is expected to take longer than max_time, or fails.
Row run_workload(Backend& backend, const DeviceLimits& limits, const Workload& work, const RunOptions& options);

/// Fills in what follows from the limits.
void hold_against(const DeviceLimits& limits, DType dtype, Row& row);

struct ScalingOptions {
  std::string backend;
  BackendOptions backend_options{};
  RunOptions run{};
  std::int64_t shortest = 1024, longest = 32768;
  std::function<void(const std::string& what)> progress{};
};

/// How many measurements `run_scaling` makes.
std::size_t scaling_points(const std::string& operation, const Shape& shape, DType dtype, const DeviceLimits& limits,
                           const ScalingOptions& options);

/// Series over N (doubling) and over threads (1, 2, 4, ... and all), the latter where the backend takes
/// such a number.
std::vector<ScalingSeries> run_scaling(const std::string& operation, const Shape& shape, DType dtype,
                                       const DeviceLimits& limits, const ScalingOptions& options);

}  // namespace dsalt::benchmark
