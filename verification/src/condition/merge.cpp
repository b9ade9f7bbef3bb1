// out = e^(lse1 - lse) o1 + e^(lse2 - lse) o2. Each exponent carries the rounding of the lse it subtracts:
//   out  (w1 |o1| + w2 |o2|) u_acc (3 + max(|lse1|, |lse2|))      over the parts that have keys
//   lse  u_acc (1 + |max(lse1, lse2)|)
// Nothing is rounded to the main dtype on the way. A part with lse = -inf enters no term, whatever its out holds.
#include <cmath>

#include "condition/condition.hpp"

namespace dsalt::verification {

Tensors merge_condition(const Case& c, const Tensors& reference, const Units& u) {
  const Array out1 = dense_input(c, "out1"), out2 = dense_input(c, "out2");
  const Array lse1 = dense_input(c, "lse1"), lse2 = dense_input(c, "lse2");
  const Array lse = dense(reference.at("lse"));
  Tensors condition{{"out", zeros_like(out1)}, {"lse", zeros_like(lse1)}};
  double *out = values(condition["out"]), *lse_condition = values(condition["lse"]);
  const std::int64_t dv = out1.last();
  for (std::int64_t n = 0; n < lse1.size(); ++n) {
    if (!std::isfinite(lse[n])) continue;  // no part has a key
    double size = 0;
    for (const double part : {lse1[n], lse2[n]})
      if (std::isfinite(part)) size = std::fmax(size, std::fabs(part));
    const bool both = std::isfinite(lse1[n]) && std::isfinite(lse2[n]);
    if (both) lse_condition[n] = u.acc * (1 + std::fabs(std::fmax(lse1[n], lse2[n])));
    for (std::int64_t t = 0; t < dv; ++t) {
      double terms = 0;
      if (std::isfinite(lse1[n])) terms += std::exp(lse1[n] - lse[n]) * std::fabs(out1[n * dv + t]);
      if (std::isfinite(lse2[n])) terms += std::exp(lse2[n] - lse[n]) * std::fabs(out2[n * dv + t]);
      // one part alone is passed on, not computed
      out[n * dv + t] = both ? terms * u.acc * (3 + size) : 0;
    }
  }
  return condition;
}

}  // namespace dsalt::verification
