// y = silu(gate) up, silu(z) = z sigma(z):
//   dup = dy silu(gate)        dgate = dy up sigma(gate) (1 + gate sigma(-gate))
// Element by element: sigma to float32's precision, products in double so that none of them over- or underflows early.
#include "cpu_backend.hpp"
#include "float_math.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace dsalt::internal {

void CpuBackend::swiglu_forward(const SwigluInputs& in, const TensorView& y) {
  const auto walk = piece_walk(in.gate, in.up, y);
  parallel_for(threads(), walk.size(), 8, [&](std::int64_t index) {
    const std::int64_t count = walk.extent(index);
    const auto [gate_at, up_at, y_at] = walk.offsets(index);
    float gate[walk.piece], up[walk.piece];
    load_row(in.gate, gate_at, walk.inner_strides[0], count, gate);
    load_row(in.up, up_at, walk.inner_strides[1], count, up);
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const double sigma = sigmoid_pair(gate[i]).value;
      gate[i] = static_cast<float>(gate[i] * sigma * up[i]);
    }
    store_row(y, y_at, walk.inner_strides[2], count, gate);
  });
}

void CpuBackend::swiglu_backward(const SwigluInputs& in, const TensorView& dy, const SwigluGradients& gradients) {
  const auto walk = piece_walk(in.gate, in.up, dy, gradients.dgate, gradients.dup);
  parallel_for(threads(), walk.size(), 8, [&](std::int64_t index) {
    const std::int64_t count = walk.extent(index);
    const auto [gate_at, up_at, dy_at, dgate_at, dup_at] = walk.offsets(index);
    float gate[walk.piece], up[walk.piece], grad[walk.piece];
    load_row(in.gate, gate_at, walk.inner_strides[0], count, gate);
    load_row(in.up, up_at, walk.inner_strides[1], count, up);
    load_row(dy, dy_at, walk.inner_strides[2], count, grad);
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const Sigmoid s = sigmoid_pair(gate[i]);
      const double dy = grad[i], dsilu = (1.0 + gate[i] * s.complement) * s.value;
      const float dup = static_cast<float>(gate[i] * s.value * dy);
      gate[i] = static_cast<float>(dsilu * dy * up[i]);
      up[i] = dup;
    }
    if (gradients.dgate.present()) store_row(gradients.dgate, dgate_at, walk.inner_strides[3], count, gate);
    if (gradients.dup.present()) store_row(gradients.dup, dup_at, walk.inner_strides[4], count, up);
  });
}

}  // namespace dsalt::internal
