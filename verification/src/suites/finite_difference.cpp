// T[0][n] = (f(h_n) - f(-h_n)) / 2 h_n, h_n = h_0 / 2^n;  T[m][n] = (4^m T[m-1][n] - T[m-1][n-1]) / (4^m - 1)
#include "suites/finite_difference.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace dsalt::verification {

Derivative central_difference(const std::function<double(double)>& f, double step) {
  constexpr std::size_t levels = 7;
  std::array<std::array<double, levels>, levels> table{};
  Derivative best{std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  double h = step;
  for (std::size_t n = 0; n < levels; ++n, h /= 2) {
    table[0][n] = (f(h) - f(-h)) / (2 * h);
    double power = 4;
    for (std::size_t m = 1; m <= n; ++m, power *= 4) {
      table[m][n] = (power * table[m - 1][n] - table[m - 1][n - 1]) / (power - 1);
      const double error =
          std::fmax(std::fabs(table[m][n] - table[m - 1][n]), std::fabs(table[m][n] - table[m - 1][n - 1]));
      if (error < best.error) best = {table[m][n], error};
    }
    // further halving only adds cancellation
    if (n >= 2 && std::fabs(table[n][n] - table[n - 1][n - 1]) > 2 * best.error) break;
  }
  return best;
}

}  // namespace dsalt::verification
