// m' = b1 m + (1-b1) g, v' = b2 v + (1-b2) g^2, p' = p (1 - lr wd) - lr (m'/c1) / (sqrt(v'/c2) + eps), c = 1 - b^step.
// The scalars are doubles; the element-wise part may run in the accumulator:
//   m  (|b1 m| + |(1-b1) g|) 2 u
//   v  (b2 v + (1-b2) g^2) 3 u
//   p  |p| (1 + lr wd) 2 u + lr M / (sqrt(vhat) + eps) 6 u,  M = (|b1 m| + |(1-b1) g|) / c1, where m' may cancel
// sqrt(vhat) + eps is a sum of two terms of one sign: no cancellation, its relative error is in the 6 u. Where g^2
// underflows the accumulator, v' is off by its smallest normal number, and so is what is under the root.
#include <cmath>

#include "condition/condition.hpp"

namespace dsalt::verification {

Tensors adamw_condition(const Case& c, const Tensors&, const Units& u) {
  const Array param = dense_input(c, "param"), grad = dense_input(c, "grad");
  const Array m = dense_input(c, "m"), v = dense_input(c, "v");
  const double lr = number_or(c, "lr", 0), beta1 = number_or(c, "beta1", 0.9), beta2 = number_or(c, "beta2", 0.95);
  const double eps = number_or(c, "eps", 1e-8), decay = number_or(c, "weight_decay", 0);
  const auto step = static_cast<double>(integer_or(c, "step", 1));
  const double c1 = 1 - std::pow(beta1, step), c2 = 1 - std::pow(beta2, step);
  Tensors condition{{"param", zeros_like(param)}, {"m", zeros_like(m)}, {"v", zeros_like(v)}};
  double *dp = values(condition["param"]), *dm = values(condition["m"]), *dv = values(condition["v"]);
  for (std::int64_t n = 0; n < param.size(); ++n) {
    const double m_terms = std::fabs(beta1 * m[n]) + std::fabs((1 - beta1) * grad[n]);
    const double v_terms = std::fabs(beta2 * v[n]) + (1 - beta2) * grad[n] * grad[n];
    const double underflow = grad[n] == 0 && v[n] == 0 ? 0 : u.acc_floor;
    dm[n] = m_terms * 2 * u.acc;
    dv[n] = v_terms * 3 * u.acc + underflow;
    const double root = std::sqrt(v_terms / c2);
    const double denominator = root + eps;
    const double update = denominator == 0 ? 0 : lr * (m_terms / c1) / denominator;
    const double root_underflow = std::sqrt((v_terms + underflow) / c2) - root;
    dp[n] = std::fabs(param[n]) * (1 + lr * decay) * 2 * u.acc + update * 6 * u.acc;
    if (denominator > 0) dp[n] += update * root_underflow / denominator;
  }
  return condition;
}

}  // namespace dsalt::verification
