// A host backend that computes nothing: a case that is run on it gets every check of its arguments, values included.
//
// The library looks at values (cu_seqlens, k_lengths, page_table, positions, labels, weights of used slots) only where
// they lie in host memory. A case lives there, so its values are checked here before they go to a device, where a wrong
// one is a read out of bounds.
#pragma once

#include "dsalt/backend.hpp"

namespace dsalt::verification {

class ArgumentCheck final : public Backend {
 public:
  std::string_view name() const override { return "the host"; }
  std::string description() const override { return "checks arguments"; }
  Device device() const override { return {}; }
  Reproducibility reproducibility(Operation, Direction) const override { return {}; }
  using Backend::supports;
  Support supports(Operation, Direction, DType) const override { return Support::yes(); }

  void attention_forward(const AttentionProblem&, const AttentionInputs&, const AttentionOutputs&) override {}
  void attention_backward(const AttentionProblem&, const AttentionInputs&, const AttentionSaved&,
                          const AttentionGradients&) override {}
  void merge(const MergeInputs&, const AttentionOutputs&) override {}
  void window_sizes_forward(const WindowProblem&, const WindowInputs&, const TensorView&) override {}
  void window_sizes_backward(const WindowProblem&, const WindowInputs&, const TensorView&,
                             const WindowGradients&) override {}
  void energies_forward(const EnergyInputs&, const Energies&) override {}
  void energies_backward(const EnergyInputs&, const Energies&, const EnergyGradients&) override {}
  void select_landmarks_forward(const SelectionProblem&, const SelectionInputs&, const SelectionOutputs&) override {}
  void select_landmarks_backward(const SelectionProblem&, const SelectionInputs&, const SelectionSaved&,
                                 const SelectionGradients&) override {}
  void rmsnorm_forward(const RmsNormProblem&, const RmsNormInputs&, const TensorView&) override {}
  void rmsnorm_backward(const RmsNormProblem&, const RmsNormInputs&, const TensorView&,
                        const RmsNormGradients&) override {}
  void rope_forward(const RopeProblem&, const RopeInputs&, const TensorView&) override {}
  void rope_backward(const RopeProblem&, const RopeInputs&, const TensorView&, const TensorView&) override {}
  void swiglu_forward(const SwigluInputs&, const TensorView&) override {}
  void swiglu_backward(const SwigluInputs&, const TensorView&, const SwigluGradients&) override {}
  void cross_entropy_forward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView&) override {}
  void cross_entropy_backward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView&,
                              const CrossEntropyGradients&) override {}
  void adamw_step(const AdamWProblem&, const AdamWInputs&, const AdamWOutputs&) override {}
};

}  // namespace dsalt::verification
