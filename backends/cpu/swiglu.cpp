// y = silu(gate) up, silu(z) = z sigma(z):
//   dup = dy silu(gate)        dgate = dy up sigma(gate) (1 + gate sigma(-gate))
// Element by element: sigma to float32's precision, products in double so that none of them over- or underflows early.
#include "cpu_backend.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {

void CpuBackend::swiglu_forward(const SwigluInputs& in, const TensorView& y) {
  const RowIo io(kernels_);
  const auto walk = piece_walk(in.gate, in.up, y);
  parallel_for(threads(), walk.size(), 8, [&](std::int64_t index) {
    const std::int64_t count = walk.extent(index);
    const auto at = walk.offsets(index);
    const auto& stride = walk.inner_strides;
    alignas(64) float gate[walk.piece], up[walk.piece];
    const float* gates = io.read(in.gate, at[0], stride[0], count, gate);
    const float* ups = io.read(in.up, at[1], stride[1], count, up);
    float* out = io.target(y, at[2], stride[2], count, gate);
    io.rows.swiglu(gates, ups, out, count);
    io.write(y, at[2], stride[2], count, out);
  });
}

void CpuBackend::swiglu_backward(const SwigluInputs& in, const TensorView& dy, const SwigluGradients& gradients) {
  const RowIo io(kernels_);
  const auto walk = piece_walk(in.gate, in.up, dy, gradients.dgate, gradients.dup);
  parallel_for(threads(), walk.size(), 8, [&](std::int64_t index) {
    const std::int64_t count = walk.extent(index);
    const auto at = walk.offsets(index);
    const auto& stride = walk.inner_strides;
    alignas(64) float gate[walk.piece], up[walk.piece], grad[walk.piece];
    const float* gates = io.read(in.gate, at[0], stride[0], count, gate);
    const float* ups = io.read(in.up, at[1], stride[1], count, up);
    const float* grads = io.read(dy, at[2], stride[2], count, grad);
    float* dgate = io.target(gradients.dgate, at[3], stride[3], count, gate);
    float* dup = io.target(gradients.dup, at[4], stride[4], count, up);
    io.rows.swiglu_gradients(gates, ups, grads, dgate, dup, count);
    io.write(gradients.dgate, at[3], stride[3], count, dgate);
    io.write(gradients.dup, at[4], stride[4], count, dup);
  });
}

}  // namespace dsalt::internal
