#include "dsalt/verification/forwarding_backend.hpp"

namespace dsalt::verification {

ForwardingBackend::~ForwardingBackend() = default;

std::string_view ForwardingBackend::name() const { return target_->name(); }
std::string ForwardingBackend::description() const { return target_->description(); }
Device ForwardingBackend::device() const { return target_->device(); }

Reproducibility ForwardingBackend::reproducibility(Operation operation, Direction direction) const {
  return target_->reproducibility(operation, direction);
}
Support ForwardingBackend::supports(Operation operation, Direction direction, DType dtype) const {
  return target_->supports(operation, direction, dtype);
}
Support ForwardingBackend::supports(const AttentionProblem& problem, const AttentionInputs& inputs,
                                    Direction direction) const {
  return target_->supports(problem, inputs, direction);
}

std::shared_ptr<void> ForwardingBackend::allocate(std::size_t bytes) { return target_->allocate(bytes); }
void ForwardingBackend::copy_to_host(void* host, const void* source, std::size_t bytes) {
  target_->copy_to_host(host, source, bytes);
}
void ForwardingBackend::copy_from_host(void* destination, const void* host, std::size_t bytes) {
  target_->copy_from_host(destination, host, bytes);
}
void ForwardingBackend::synchronize() { target_->synchronize(); }
std::optional<MemoryUse> ForwardingBackend::memory_use(bool start_anew) { return target_->memory_use(start_anew); }

void ForwardingBackend::attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                          const AttentionOutputs& outputs) {
  target_->attention_forward(problem, inputs, outputs);
}
void ForwardingBackend::attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                           const AttentionSaved& saved, const AttentionGradients& gradients) {
  target_->attention_backward(problem, inputs, saved, gradients);
}
void ForwardingBackend::merge(const MergeInputs& inputs, const AttentionOutputs& outputs) {
  target_->merge(inputs, outputs);
}
void ForwardingBackend::window_sizes_forward(const WindowProblem& problem, const WindowInputs& inputs,
                                             const TensorView& window) {
  target_->window_sizes_forward(problem, inputs, window);
}
void ForwardingBackend::window_sizes_backward(const WindowProblem& problem, const WindowInputs& inputs,
                                              const TensorView& dwindow, const WindowGradients& gradients) {
  target_->window_sizes_backward(problem, inputs, dwindow, gradients);
}
void ForwardingBackend::energies_forward(const EnergyInputs& inputs, const Energies& energies) {
  target_->energies_forward(inputs, energies);
}
void ForwardingBackend::energies_backward(const EnergyInputs& inputs, const Energies& energy_gradients,
                                          const EnergyGradients& gradients) {
  target_->energies_backward(inputs, energy_gradients, gradients);
}
void ForwardingBackend::select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                                 const SelectionOutputs& outputs) {
  target_->select_landmarks_forward(problem, inputs, outputs);
}
void ForwardingBackend::select_landmarks_backward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                                  const SelectionSaved& saved, const SelectionGradients& gradients) {
  target_->select_landmarks_backward(problem, inputs, saved, gradients);
}
void ForwardingBackend::rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& inputs,
                                        const TensorView& y) {
  target_->rmsnorm_forward(problem, inputs, y);
}
void ForwardingBackend::rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& inputs,
                                         const TensorView& dy, const RmsNormGradients& gradients) {
  target_->rmsnorm_backward(problem, inputs, dy, gradients);
}
void ForwardingBackend::rope_forward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) {
  target_->rope_forward(problem, inputs, y);
}
void ForwardingBackend::rope_backward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& dy,
                                      const TensorView& dx) {
  target_->rope_backward(problem, inputs, dy, dx);
}
void ForwardingBackend::swiglu_forward(const SwigluInputs& inputs, const TensorView& y) {
  target_->swiglu_forward(inputs, y);
}
void ForwardingBackend::swiglu_backward(const SwigluInputs& inputs, const TensorView& dy,
                                        const SwigluGradients& gradients) {
  target_->swiglu_backward(inputs, dy, gradients);
}
void ForwardingBackend::cross_entropy_forward(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                                              const TensorView& loss) {
  target_->cross_entropy_forward(problem, inputs, loss);
}
void ForwardingBackend::cross_entropy_backward(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                                               const TensorView& dloss, const CrossEntropyGradients& gradients) {
  target_->cross_entropy_backward(problem, inputs, dloss, gradients);
}
void ForwardingBackend::adamw_step(const AdamWProblem& problem, const AdamWInputs& inputs,
                                   const AdamWOutputs& outputs) {
  target_->adamw_step(problem, inputs, outputs);
}

}  // namespace dsalt::verification
