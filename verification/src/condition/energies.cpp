// n = ||x||, a root of a sum of d squares of one sign; the root halves the relative error of the sum.
//   nx, nv  n u (1 + g(d)/2)
//   dx, dv  |dn x / n| u (3 + g(d)/2)
#include <cmath>

#include "condition/condition.hpp"

namespace dsalt::verification {
namespace {

/// Conditions of the norms of the rows of x, and with `upstream` of their gradient. `upstream` and the norms are in the
/// same order as the rows of x.
void norm_condition(const Array& x, const Array* upstream, double* norms, double* gradients, const Units& u) {
  const std::int64_t d = x.last();
  for (std::int64_t n = 0; n < x.rows(); ++n) {
    const double* row = x.row(n);
    double largest = 0, squares = 0;  // scaled: the squares of large doubles overflow
    for (std::int64_t t = 0; t < d; ++t) largest = std::fmax(largest, std::fabs(row[t]));
    for (std::int64_t t = 0; t < d && largest > 0; ++t) squares += (row[t] / largest) * (row[t] / largest);
    const double norm = largest * std::sqrt(squares);
    norms[n] = norm * u.acc * (1 + growth(d) / 2);
    if (!upstream || norm == 0) continue;
    for (std::int64_t t = 0; t < d; ++t)
      gradients[n * d + t] = std::fabs((*upstream)[n] * (row[t] / norm)) * u.acc * (3 + growth(d) / 2);
  }
}

}  // namespace

Tensors energies_condition(const Case& c, const Tensors& reference, const Units& u) {
  Tensors condition;
  for (const char* which : {"x", "v"}) {
    const std::string name = which;
    const Array x = dense_input(c, name), upstream = dense_input(c, "dn" + name);
    const bool backward = has_input(c, "dn" + name);
    condition["n" + name] = zeros_like(dense(reference.at("n" + name)));
    // an absent upstream gradient counts as zeros, and its gradient is exactly 0
    if (reference.contains("d" + name)) condition["d" + name] = zeros_like(x);
    norm_condition(x, backward ? &upstream : nullptr, values(condition["n" + name]),
                   backward ? values(condition["d" + name]) : nullptr, u);
  }
  return condition;
}

}  // namespace dsalt::verification
