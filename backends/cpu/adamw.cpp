// m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2
// p <- p (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
//
// Element by element in double, each result rounded once; the update uses the unrounded m and v. Every piece is read
// before it is written, so the outputs may be the inputs.
#include <cmath>

#include "cpu_backend.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {

void CpuBackend::adamw_step(const AdamWProblem& problem, const AdamWInputs& in, const AdamWOutputs& out) {
  const double step = static_cast<double>(problem.step);
  const AdamWStep scalars{.beta1 = problem.beta1,
                          .beta2 = problem.beta2,
                          .inverse_correction2 = 1 / (1 - std::pow(problem.beta2, step)),
                          .eps = problem.eps,
                          .decay = 1 - problem.lr * problem.weight_decay,
                          .rate = problem.lr / (1 - std::pow(problem.beta1, step))};
  const RowIo io(kernels_);
  const auto walk = piece_walk(in.param, in.grad, in.m, in.v, out.param, out.m, out.v);
  parallel_for(threads(), walk.size(), 8, [&](std::int64_t index) {
    const std::int64_t count = walk.extent(index);
    const auto at = walk.offsets(index);
    const auto& stride = walk.inner_strides;
    alignas(64) float param[walk.piece], grad[walk.piece], m[walk.piece], v[walk.piece];
    const float* from_param = io.read(in.param, at[0], stride[0], count, param);
    const float* from_grad = io.read(in.grad, at[1], stride[1], count, grad);
    const float* from_m = io.read(in.m, at[2], stride[2], count, m);
    const float* from_v = io.read(in.v, at[3], stride[3], count, v);
    float* to_param = io.target(out.param, at[4], stride[4], count, param);
    float* to_m = io.target(out.m, at[5], stride[5], count, m);
    float* to_v = io.target(out.v, at[6], stride[6], count, v);
    io.rows.adamw(scalars, from_param, from_grad, from_m, from_v, to_param, to_m, to_v, count);
    io.write(out.param, at[4], stride[4], count, to_param);
    io.write(out.m, at[5], stride[5], count, to_m);
    io.write(out.v, at[6], stride[6], count, to_v);
  });
}

}  // namespace dsalt::internal
