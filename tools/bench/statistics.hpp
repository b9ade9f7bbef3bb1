// Quantiles of times, and how a time grows.
#pragma once

#include <optional>
#include <vector>

namespace dsalt::benchmark {

/// The value below which the p-th part lies, linear between neighbours. `sorted` is not empty; p is in [0,1].
double quantile(const std::vector<double>& sorted, double p);

/// Slope of the least squares line through (log x, log y); empty with fewer than two different x.
std::optional<double> log_log_slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace dsalt::benchmark
