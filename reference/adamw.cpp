// One AdamW step with decoupled weight decay: docs/semantics.md, "Network pieces".
//
//   m <- beta1 m + (1 - beta1) g       v <- beta2 v + (1 - beta2) g^2
//   p <- p (1 - lr wd) - lr mhat / (sqrt(vhat) + eps),   mhat = m / (1 - beta1^step),   vhat = v / (1 - beta2^step)
//
// p uses the unrounded m and v. Outputs may be the inputs: each element is read before it is written.
#include <cmath>

#include "internal/elements.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {

void ReferenceBackend::adamw_step(const AdamWProblem& problem, const AdamWInputs& inputs, const AdamWOutputs& outputs) {
  const double correction1 = 1 - std::pow(problem.beta1, static_cast<double>(problem.step));
  const double correction2 = 1 - std::pow(problem.beta2, static_cast<double>(problem.step));
  const double decay = 1 - problem.lr * problem.weight_decay;
  for_each_element(
      [&](std::int64_t param_at, std::int64_t grad_at, std::int64_t m_at, std::int64_t v_at, std::int64_t new_param_at,
          std::int64_t new_m_at, std::int64_t new_v_at) {
        const double param = load_double(inputs.param, param_at), grad = load_double(inputs.grad, grad_at);
        const double m = problem.beta1 * load_double(inputs.m, m_at) + (1 - problem.beta1) * grad;
        const double v = problem.beta2 * load_double(inputs.v, v_at) + (1 - problem.beta2) * grad * grad;
        const double step = (m / correction1) / (std::sqrt(v / correction2) + problem.eps);
        store_double(outputs.param, new_param_at, param * decay - problem.lr * step);
        store_double(outputs.m, new_m_at, m);
        store_double(outputs.v, new_v_at, v);
      },
      inputs.param, inputs.grad, inputs.m, inputs.v, outputs.param, outputs.m, outputs.v);
}

}  // namespace dsalt::internal
