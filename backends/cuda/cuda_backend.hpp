// The CUDA backend: one device, one stream. Each operation is in the file of its name, as in reference/.
//
// Every call only gives work to the stream: no synchronisation, no host copy of device data, and (inside a stream
// capture) everything becomes nodes of the graph. float32 means float32 arithmetic: TF32 is never used.
#pragma once

#include "context.hpp"
#include "dsalt/backend.hpp"

namespace dsalt::cuda {

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const BackendOptions& options);
  ~CudaBackend() override;

  std::string_view name() const override { return name_; }
  std::string description() const override { return description_; }
  Device device() const override { return {DeviceType::cuda, context_.device}; }
  Reproducibility reproducibility(Operation operation, Direction direction) const override;
  using Backend::supports;
  Support supports(Operation operation, Direction direction, DType dtype) const override;

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
  class Staging;

  std::string name_, description_;
  Context context_;
  std::unique_ptr<Staging> staging_;
  std::uint64_t mark_started_at_ = 0;  // what was in use when the high-water mark was last started anew
};

}  // namespace dsalt::cuda
