#include "bench/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace dsalt::benchmark {

double quantile(const std::vector<double>& sorted, double p) {
  const double place = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

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

}  // namespace dsalt::benchmark
