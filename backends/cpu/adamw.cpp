// m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
// p <- p (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
//
// Element by element in double, each result rounded once; the update uses the unrounded m and v. Every piece is read
// before it is written, so the outputs may be the inputs.
#include <cmath>

#include "cpu_backend.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace dsalt::internal {

void CpuBackend::adamw_step(const AdamWProblem& problem, const AdamWInputs& in, const AdamWOutputs& out) {
  const double beta1 = problem.beta1, beta2 = problem.beta2, eps = problem.eps;
  const double step = static_cast<double>(problem.step);
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  const double decay = 1 - problem.lr * problem.weight_decay, rate = problem.lr / correction1;
  const auto walk = piece_walk(in.param, in.grad, in.m, in.v, out.param, out.m, out.v);
  parallel_for(threads(), walk.size(), 8, [&](std::int64_t index) {
    const std::int64_t count = walk.extent(index);
    const auto at = walk.offsets(index);
    const auto& stride = walk.inner_strides;
    float param[walk.piece], grad[walk.piece], m[walk.piece], v[walk.piece];
    load_row(in.param, at[0], stride[0], count, param);
    load_row(in.grad, at[1], stride[1], count, grad);
    load_row(in.m, at[2], stride[2], count, m);
    load_row(in.v, at[3], stride[3], count, v);
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const double g = static_cast<double>(grad[i]);
      const double mean = beta1 * static_cast<double>(m[i]) + (1 - beta1) * g;
      const double square = beta2 * static_cast<double>(v[i]) + (1 - beta2) * (g * g);
      const double denominator = std::sqrt(square / correction2) + eps;
      m[i] = static_cast<float>(mean);
      v[i] = static_cast<float>(square);
      param[i] = static_cast<float>(static_cast<double>(param[i]) * decay - rate * mean / denominator);
    }
    store_row(out.param, at[4], stride[4], count, param);
    store_row(out.m, at[5], stride[5], count, m);
    store_row(out.v, at[6], stride[6], count, v);
  });
}

}  // namespace dsalt::internal
