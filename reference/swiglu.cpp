// y = silu(gate) up, silu(z) = z sigma(z), element by element: docs/semantics.md, "Network pieces".
//
//   dgate = dy up sigma(gate) (1 + gate (1 - sigma(gate)))     dup = dy silu(gate)
#include "internal/admitted.hpp"
#include "internal/elements.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {

void ReferenceBackend::swiglu_forward(const SwigluInputs& inputs, const TensorView& y) {
  for_each_element(
      [&](std::int64_t gate_at, std::int64_t up_at, std::int64_t y_at) {
        const double gate = load_double(inputs.gate, gate_at);
        store_double(y, y_at, gate * sigmoid(gate) * load_double(inputs.up, up_at));
      },
      inputs.gate, inputs.up, y);
}

void ReferenceBackend::swiglu_backward(const SwigluInputs& inputs, const TensorView& dy,
                                       const SwigluGradients& gradients) {
  // An absent gradient lends its place in the walk to dy and is not written.
  const TensorView& dgate = gradients.dgate.present() ? gradients.dgate : dy;
  const TensorView& dup = gradients.dup.present() ? gradients.dup : dy;
  for_each_element(
      [&](std::int64_t gate_at, std::int64_t up_at, std::int64_t dy_at, std::int64_t dgate_at, std::int64_t dup_at) {
        const double gate = load_double(inputs.gate, gate_at), up = load_double(inputs.up, up_at);
        const double dy_value = load_double(dy, dy_at);
        if (gradients.dgate.present())
          store_double(dgate, dgate_at, dy_value * up * sigmoid(gate) * (1 + gate * sigmoid(-gate)));
        if (gradients.dup.present()) store_double(dup, dup_at, dy_value * gate * sigmoid(gate));
      },
      inputs.gate, inputs.up, dy, dgate, dup);
}

}  // namespace dsalt::internal
