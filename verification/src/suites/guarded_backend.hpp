// A backend, of the host or of a device, whose every tensor lies in a guarded buffer of its own.
//
// Inputs keep their strides; the bytes around and between their elements are NaN, so that a read outside the view
// shows, and must be unchanged afterwards. Outputs start as a sentinel: the rows that the contract writes must all have
// been written, the rows past cu_seqlens[S] and the bytes around must not. Throws CheckFailure naming operation and
// tensor.
#pragma once

#include "dsalt/verification/forwarding_backend.hpp"

namespace dsalt::verification {

class GuardedBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  void attention_forward(const AttentionProblem&, const AttentionInputs&, const AttentionOutputs&) override;
  void attention_backward(const AttentionProblem&, const AttentionInputs&, const AttentionSaved&,
                          const AttentionGradients&) override;
  void merge(const MergeInputs&, const AttentionOutputs&) override;
  void window_sizes_forward(const WindowProblem&, const WindowInputs&, const TensorView& window) override;
  void window_sizes_backward(const WindowProblem&, const WindowInputs&, const TensorView& dwindow,
                             const WindowGradients&) override;
  void energies_forward(const EnergyInputs&, const Energies&) override;
  void energies_backward(const EnergyInputs&, const Energies& energy_gradients, const EnergyGradients&) override;
  void select_landmarks_forward(const SelectionProblem&, const SelectionInputs&, const SelectionOutputs&) override;
  void select_landmarks_backward(const SelectionProblem&, const SelectionInputs&, const SelectionSaved&,
                                 const SelectionGradients&) override;
  void rmsnorm_forward(const RmsNormProblem&, const RmsNormInputs&, const TensorView& y) override;
  void rmsnorm_backward(const RmsNormProblem&, const RmsNormInputs&, const TensorView& dy,
                        const RmsNormGradients&) override;
  void rope_forward(const RopeProblem&, const RopeInputs&, const TensorView& y) override;
  void rope_backward(const RopeProblem&, const RopeInputs&, const TensorView& dy, const TensorView& dx) override;
  void swiglu_forward(const SwigluInputs&, const TensorView& y) override;
  void swiglu_backward(const SwigluInputs&, const TensorView& dy, const SwigluGradients&) override;
  void cross_entropy_forward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView& loss) override;
  void cross_entropy_backward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView& dloss,
                              const CrossEntropyGradients&) override;
  void adamw_step(const AdamWProblem&, const AdamWInputs&, const AdamWOutputs&) override;
};

}  // namespace dsalt::verification
