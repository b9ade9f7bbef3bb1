// y = gamma x r, r = (mean(x^2) + eps)^(-1/2). One product chain and one sum of d squares of one sign:
//   y       |gamma x r| u (2 + g(d))
//   dx      r (|gamma dy| + |x| r^2 mean|gamma dy x|) u (3 + 2 g(d))      the two terms may cancel
//   dgamma  sum over rows of |dy x r| u (2 + g(d) + g(rows))
#include <cmath>

#include "condition/condition.hpp"

namespace dsalt::verification {

Tensors rmsnorm_condition(const Case& c, const Tensors&, const Units& u) {
  const Array x = dense_input(c, "x"), gamma = dense_input(c, "gamma"), dy = dense_input(c, "dy");
  const double eps = number_or(c, "eps", 1e-6);
  const std::int64_t d = x.last(), rows = x.rows();
  Tensors condition{{"y", zeros_like(x)}};
  double* y = values(condition["y"]);
  double *dx = nullptr, *dgamma = nullptr;
  if (has_input(c, "dy")) {
    condition["dx"] = zeros_like(x);
    condition["dgamma"] = zeros_like(gamma);
    dx = values(condition["dx"]);
    dgamma = values(condition["dgamma"]);
  }
  for (std::int64_t n = 0; n < rows; ++n) {
    const double* xn = x.row(n);
    double squares = 0, projection = 0;
    for (std::int64_t t = 0; t < d; ++t) squares += xn[t] * xn[t];
    const double r = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (std::int64_t t = 0; t < d; ++t) y[n * d + t] = std::fabs(gamma[t] * xn[t] * r) * u.acc * (2 + growth(d));
    if (!dx) continue;
    const double* dyn = dy.row(n);
    for (std::int64_t t = 0; t < d; ++t) projection += std::fabs(gamma[t] * dyn[t] * xn[t]);
    projection /= static_cast<double>(d);
    for (std::int64_t t = 0; t < d; ++t) {
      const double terms = r * (std::fabs(gamma[t] * dyn[t]) + std::fabs(xn[t]) * r * r * projection);
      dx[n * d + t] = terms * u.acc * (3 + 2 * growth(d));
      dgamma[t] += std::fabs(dyn[t] * xn[t] * r) * u.acc * (2 + growth(d) + growth(rows));
    }
  }
  return condition;
}

}  // namespace dsalt::verification
