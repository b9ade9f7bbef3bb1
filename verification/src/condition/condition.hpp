// Private to make_yardstick: one function per operation, from the case in float64 to the condition of its outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "condition/units.hpp"
#include "dsalt/verification/case.hpp"
#include "dsalt/verification/forwarding_backend.hpp"
#include "operations/operation_case.hpp"

namespace dsalt::verification {

/// A tensor of any dtype and strides as contiguous doubles.
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> data;

  std::int64_t size() const { return static_cast<std::int64_t>(data.size()); }
  std::int64_t last() const { return shape.back(); }
  /// Number of rows of length last(); 0 when the last dimension is empty.
  std::int64_t rows() const { return last() == 0 ? 0 : size() / last(); }
  const double* row(std::int64_t r) const { return data.data() + r * last(); }
  double operator[](std::int64_t n) const { return data[static_cast<std::size_t>(n)]; }
};

Array dense(const TensorView& view);
/// The named input; absent gives an Array with an empty shape and no data.
Array dense_input(const Case& c, std::string_view name);

/// Attributes, with the contract's default.
double number_or(const Case& c, std::string_view name, double fallback);
std::int64_t integer_or(const Case& c, std::string_view name, std::int64_t fallback);

/// Hands the case to a backend through evaluate() and keeps the attention or selection call as the backend sees it, so
/// that what a case means is said in one place. The views live as long as the case and the recorder's outputs.
class CallRecorder final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem&, const AttentionInputs&, const AttentionOutputs&) override;
  void attention_backward(const AttentionProblem&, const AttentionInputs&, const AttentionSaved&,
                          const AttentionGradients&) override;
  void select_landmarks_forward(const SelectionProblem&, const SelectionInputs&, const SelectionOutputs&) override;
  void select_landmarks_backward(const SelectionProblem&, const SelectionInputs&, const SelectionSaved&,
                                 const SelectionGradients&) override;

  AttentionProblem attention_problem;
  AttentionInputs attention_inputs;
  AttentionSaved attention_saved;  // dout absent: no backward pass
  SelectionProblem selection_problem;
  SelectionInputs selection_inputs;
  SelectionSaved selection_saved;  // dlandmark_log_weight absent: no backward pass
};

/// A zeroed float64 tensor of the input's or the given shape, to be filled with a condition.
Tensor zeros_like(const Array& array);
double* values(const Tensor& tensor);

// Each gets the case with float64 tensors and the unrounded outputs of the reference.
Tensors attention_condition(const CallRecorder& call, const Tensors& reference, const Units& u);
Tensors merge_condition(const Case& c, const Tensors& reference, const Units& u);
/// `alternative` receives the second admissible value of floored windows.
Tensors window_sizes_condition(const Case& c, const Tensors& reference, const Units& u, Tensors& alternative);
Tensors energies_condition(const Case& c, const Tensors& reference, const Units& u);
/// `lists` are the landmarks that scores, weights and gradients belong to: the reference's or the tested backend's.
Tensors select_landmarks_condition(const CallRecorder& call, const TensorView& lists, const Units& u);
Tensors rmsnorm_condition(const Case& c, const Tensors& reference, const Units& u);
Tensors rope_condition(const Case& c, const Tensors& reference, const Units& u);
Tensors swiglu_condition(const Case& c, const Tensors& reference, const Units& u);
Tensors cross_entropy_condition(const Case& c, const Tensors& reference, const Units& u);
Tensors adamw_condition(const Case& c, const Tensors& reference, const Units& u);

}  // namespace dsalt::verification
