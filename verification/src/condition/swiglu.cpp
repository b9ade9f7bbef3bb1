// y = g sigma(g) up. exp(-g) carries a relative error of u (1 + |g|): its argument is rounded when it is reduced.
//   y      |g sigma(g) up| u (3 + |g|)
//   dup    |dy g sigma(g)| u (3 + |g|)
//   dgate  |dy up| sigma(g) (1 + |g| (1 - sigma(g))) u (4 + |g|)
// Below the smallest normal number sigma(g) may be 0: an absolute error of that size, times its factors.
#include <cmath>

#include "condition/condition.hpp"
#include "internal/admitted.hpp"

namespace dsalt::verification {

Tensors swiglu_condition(const Case& c, const Tensors&, const Units& u) {
  const Array gate = dense_input(c, "gate"), up = dense_input(c, "up"), dy = dense_input(c, "dy");
  Tensors condition{{"y", zeros_like(gate)}};
  double* y = values(condition["y"]);
  double *dgate = nullptr, *dup = nullptr;
  if (has_input(c, "dy")) {
    condition["dgate"] = zeros_like(gate);
    condition["dup"] = zeros_like(gate);
    dgate = values(condition["dgate"]);
    dup = values(condition["dup"]);
  }
  for (std::int64_t n = 0; n < gate.size(); ++n) {
    const double g = gate[n], size = std::fabs(g);
    const double sigma = internal::sigmoid(g), complement = internal::sigmoid(-g);
    const double silu = size * sigma * u.acc * (3 + size) + size * u.acc_floor;
    y[n] = std::fabs(up[n]) * silu;
    if (!dgate) continue;
    dup[n] = std::fabs(dy[n]) * silu;
    dgate[n] =
        std::fabs(dy[n] * up[n]) * (sigma * (1 + size * complement) * u.acc * (4 + size) + (1 + size) * u.acc_floor);
  }
  return condition;
}

}  // namespace dsalt::verification
