// The OpenMP backend: float32, bfloat16 and float16 with float32 accumulation, the same bits for any thread count.
// Each operation is in the file of its name.
#pragma once

#include "dsalt/backend.hpp"
#include "memory_pool.hpp"

namespace dsalt::internal {

struct Kernels;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options);

  std::string_view name() const override { return "cpu"; }
  std::string description() const override;
  Device device() const override { return {}; }
  Reproducibility reproducibility(Operation operation, Direction direction) const override;
  using Backend::supports;
  Support supports(Operation operation, Direction direction, DType dtype) const override;

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
  /// Threads for the next parallel region: the request, or OpenMP's default; 1 in a process that was forked, because
  /// libgomp's pool does not survive fork() and waiting for it would hang. Every region says num_threads(threads()).
  int threads() const;

  int requested_threads_;
  MemoryPool pool_;
  const Kernels& kernels_;  // of the best instruction set, or the one DSALT_CPU_ISA names
};

}  // namespace dsalt::internal
