// Validation and dispatch of RMSNorm, RoPE, SwiGLU, linear + cross-entropy and AdamW.
#include "dsalt/network.hpp"

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"
#include "validate.hpp"

namespace dsalt {
namespace {

using internal::Argument;
using internal::check_gradient;
using internal::refuse;

void check_rmsnorm(const Backend& backend, const RmsNormProblem& problem, const RmsNormInputs& in) {
  internal::require_at_least("eps", problem.eps, 0.0);
  Argument{"x", in.x}.present().floating().on(backend);
  if (in.x.rank < 1) refuse("x", to_string(in.x), "at least one dimension [..., d]");
  Argument{"gamma", in.gamma}
      .shape({in.x.shape[static_cast<std::size_t>(in.x.rank - 1)]}, "[d]")
      .dtype_in({in.x.dtype, statistics_dtype(in.x.dtype)})
      .on(backend);
}

/// `x` is the tensor to rotate: the input, or dy in the backward pass.
void check_rope(const Backend& backend, const RopeProblem& problem, const RopeInputs& in, std::string_view name,
                const TensorView& x) {
  internal::require_positive("base", problem.base);
  internal::require_positive("rope_scale", problem.rope_scale);
  constexpr std::int64_t largest_position = std::int64_t{1} << 53;  // angles are made in double
  if (problem.position < -largest_position || problem.position > largest_position)
    refuse("position", std::to_string(problem.position), "-2^53 to 2^53");
  const bool packed = in.cu_seqlens.present();
  Argument{name, x}.rank(packed ? 3 : 4, packed ? "[R,H,D]" : "[B,H,N,D]").floating().on(backend);
  if (x.shape[static_cast<std::size_t>(x.rank - 1)] % 2 != 0) refuse(name, to_string(x), "an even head size D");
  if (packed) internal::check_cu_seqlens({"cu_seqlens", in.cu_seqlens}, backend, x.shape[0]);
  const std::int64_t batch = packed ? in.cu_seqlens.shape[0] - 1 : x.shape[0];
  if (in.positions.present())
    internal::check_int32_values({"positions", in.positions}, backend, batch, packed ? "[S]" : "[B]", INT32_MIN,
                                 INT32_MAX);
}

void check_swiglu(const Backend& backend, const SwigluInputs& in) {
  Argument{"gate", in.gate}.present().floating().on(backend);
  Argument{"up", in.up}.same_shape("gate", in.gate).dtype(in.gate.dtype).on(backend);
}

void check_cross_entropy(const Backend& backend, const CrossEntropyProblem& problem, const CrossEntropyInputs& in) {
  if (!(problem.label_smoothing >= 0 && problem.label_smoothing <= 1))
    refuse("label_smoothing", internal::number(problem.label_smoothing), "a number from 0 to 1");
  Argument{"hidden", in.hidden}.rank(2, "[R,d]").floating().on(backend);
  const Argument weight{"weight", in.weight};
  weight.rank(2, "[V,d]").dtype(in.hidden.dtype).on(backend);
  const std::int64_t rows = in.hidden.shape[0], vocabulary = in.weight.shape[0];
  weight.shape({vocabulary, in.hidden.shape[1]}, "[V,d]");
  if (vocabulary < 1) refuse("weight", to_string(in.weight), "a vocabulary V of at least 1");
  Argument{"labels", in.labels}.shape({rows}, "[R]").dtype(DType::i32).on(backend);
  if (!internal::on_host(in.labels)) return;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t label = internal::load_i32(in.labels, r);
    if (label != problem.ignore_index && (label < 0 || label >= vocabulary))
      refuse("labels", std::to_string(label) + " at row " + std::to_string(r),
             "0 to " + std::to_string(vocabulary - 1) + ", or ignore_index " + std::to_string(problem.ignore_index));
  }
}

void check_scalar(const Backend& backend, const CrossEntropyInputs& in, std::string_view name,
                  const TensorView& scalar) {
  Argument{name, scalar}.shape({}, "(rank 0)").dtype(statistics_dtype(in.hidden.dtype)).on(backend);
}

}  // namespace

void rmsnorm_forward(Backend& backend, const RmsNormProblem& problem, const RmsNormInputs& inputs,
                     const TensorView& y) {
  check_rmsnorm(backend, problem, inputs);
  Argument{"y", y}.same_shape("x", inputs.x).dtype(inputs.x.dtype).on(backend).writable();
  internal::require_support(backend, Operation::rmsnorm, Direction::forward, inputs.x.dtype);
  backend.rmsnorm_forward(problem, inputs, y);
}

void rmsnorm_backward(Backend& backend, const RmsNormProblem& problem, const RmsNormInputs& inputs,
                      const TensorView& dy, const RmsNormGradients& gradients) {
  check_rmsnorm(backend, problem, inputs);
  Argument{"dy", dy}.same_shape("x", inputs.x).dtype(inputs.x.dtype).on(backend);
  check_gradient(backend, "dx", gradients.dx, "x", inputs.x);
  check_gradient(backend, "dgamma", gradients.dgamma, "gamma", inputs.gamma);
  internal::require_support(backend, Operation::rmsnorm, Direction::backward, inputs.x.dtype);
  backend.rmsnorm_backward(problem, inputs, dy, gradients);
}

void rope_forward(Backend& backend, const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) {
  check_rope(backend, problem, inputs, "x", inputs.x);
  Argument{"y", y}.same_shape("x", inputs.x).dtype(inputs.x.dtype).on(backend).writable();
  internal::require_support(backend, Operation::rope, Direction::forward, inputs.x.dtype);
  backend.rope_forward(problem, inputs, y);
}

void rope_backward(Backend& backend, const RopeProblem& problem, const RopeInputs& inputs, const TensorView& dy,
                   const TensorView& dx) {
  check_rope(backend, problem, inputs, "dy", dy);
  Argument{"dx", dx}.same_shape("dy", dy).dtype(dy.dtype).on(backend).writable();
  internal::require_support(backend, Operation::rope, Direction::backward, dy.dtype);
  backend.rope_backward(problem, inputs, dy, dx);
}

void swiglu_forward(Backend& backend, const SwigluInputs& inputs, const TensorView& y) {
  check_swiglu(backend, inputs);
  Argument{"y", y}.same_shape("gate", inputs.gate).dtype(inputs.gate.dtype).on(backend).writable();
  internal::require_support(backend, Operation::swiglu, Direction::forward, inputs.gate.dtype);
  backend.swiglu_forward(inputs, y);
}

void swiglu_backward(Backend& backend, const SwigluInputs& inputs, const TensorView& dy,
                     const SwigluGradients& gradients) {
  check_swiglu(backend, inputs);
  Argument{"dy", dy}.same_shape("gate", inputs.gate).dtype(inputs.gate.dtype).on(backend);
  check_gradient(backend, "dgate", gradients.dgate, "gate", inputs.gate);
  check_gradient(backend, "dup", gradients.dup, "up", inputs.up);
  internal::require_support(backend, Operation::swiglu, Direction::backward, inputs.gate.dtype);
  backend.swiglu_backward(inputs, dy, gradients);
}

void cross_entropy_forward(Backend& backend, const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                           const TensorView& loss) {
  check_cross_entropy(backend, problem, inputs);
  check_scalar(backend, inputs, "loss", loss);
  internal::require_support(backend, Operation::cross_entropy, Direction::forward, inputs.hidden.dtype);
  backend.cross_entropy_forward(problem, inputs, loss);
}

void cross_entropy_backward(Backend& backend, const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                            const TensorView& dloss, const CrossEntropyGradients& gradients) {
  check_cross_entropy(backend, problem, inputs);
  check_scalar(backend, inputs, "dloss", dloss);
  check_gradient(backend, "dhidden", gradients.dhidden, "hidden", inputs.hidden);
  check_gradient(backend, "dweight", gradients.dweight, "weight", inputs.weight);
  internal::require_support(backend, Operation::cross_entropy, Direction::backward, inputs.hidden.dtype);
  backend.cross_entropy_backward(problem, inputs, dloss, gradients);
}

void adamw_step(Backend& backend, const AdamWProblem& problem, const AdamWInputs& inputs, const AdamWOutputs& outputs) {
  internal::require_at_least("lr", problem.lr, 0.0);
  internal::require_at_least("eps", problem.eps, 0.0);
  internal::require_at_least("weight_decay", problem.weight_decay, 0.0);
  if (!(problem.beta1 >= 0 && problem.beta1 < 1)) refuse("beta1", internal::number(problem.beta1), "0 <= beta1 < 1");
  if (!(problem.beta2 >= 0 && problem.beta2 < 1)) refuse("beta2", internal::number(problem.beta2), "0 <= beta2 < 1");
  internal::require_at_least("step", problem.step, std::int64_t{1});
  Argument{"param", inputs.param}.present().floating().on(backend);
  const bool wide = inputs.param.dtype == DType::f64;
  const auto check = [&](std::string_view name, const TensorView& view) {
    const Argument argument{name, view};
    argument.same_shape("param", inputs.param).floating().on(backend);
    if ((view.dtype == DType::f64) != wide)
      refuse(name, std::string(name_of(view.dtype)),
             wide ? "float64 beside a float64 param"
                  : "no float64 beside param " + std::string(name_of(inputs.param.dtype)));
  };
  check("grad", inputs.grad);
  check("m", inputs.m);
  check("v", inputs.v);
  const auto check_output = [&](std::string_view name, const TensorView& out, const TensorView& in) {
    Argument{name, out}.same_shape("the input of that name", in).dtype(in.dtype).on(backend).writable();
  };
  check_output("param", outputs.param, inputs.param);
  check_output("m", outputs.m, inputs.m);
  check_output("v", outputs.v, inputs.v);
  internal::require_support(backend, Operation::adamw, Direction::forward, inputs.param.dtype);
  backend.adamw_step(problem, inputs, outputs);
}

}  // namespace dsalt
