// A backend that hands every call to another one: the base of decorators that watch, guard or disturb a backend.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "dsalt/backend.hpp"

namespace dsalt::verification {

/// Everything, name() included, is the target's; override what the decorator changes. The operations go to the
/// target's virtual functions directly: arguments have been validated on the way to the decorator.
class DSALT_API ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> target) : owned_(std::move(target)), target_(owned_.get()) {}
  /// Does not own: the target must outlive the decorator.
  explicit ForwardingBackend(Backend& target) : target_(&target) {}
  ~ForwardingBackend() override;

  Backend& target() const { return *target_; }

  std::string_view name() const override;
  std::string description() const override;
  Device device() const override;
  Reproducibility reproducibility(Operation operation, Direction direction) const override;
  Support supports(Operation operation, Direction direction, DType dtype) const override;
  Support supports(const AttentionProblem& problem, const AttentionInputs& inputs, Direction direction) const override;
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  void copy_to_host(void* host, const void* source, std::size_t bytes) override;
  void copy_from_host(void* destination, const void* host, std::size_t bytes) override;
  void synchronize() override;
  std::optional<MemoryUse> memory_use(bool start_anew) override;

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

 private:
  std::unique_ptr<Backend> owned_;
  Backend* target_;
};

}  // namespace dsalt::verification
