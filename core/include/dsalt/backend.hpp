// The interface that every backend implements. Users call the free functions (attention_forward(backend, ...)), which
// validate first; a backend may rely on that validation having passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dsalt/attention.hpp"
#include "dsalt/export.hpp"
#include "dsalt/network.hpp"
#include "dsalt/selectors.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt {

enum class Operation : std::uint8_t {
  attention,
  merge,
  window_sizes,
  energies,
  select_landmarks,
  rmsnorm,
  rope,
  swiglu,
  cross_entropy,
  adamw,
};
inline constexpr Operation all_operations[] = {
    Operation::attention,        Operation::merge,   Operation::window_sizes, Operation::energies,
    Operation::select_landmarks, Operation::rmsnorm, Operation::rope,         Operation::swiglu,
    Operation::cross_entropy,    Operation::adamw};

/// The name in case files: "attention", "merge", "window_sizes", ...
DSALT_API std::string_view name_of(Operation operation);

enum class Direction : std::uint8_t { forward, backward };

/// Yes, or one sentence why not.
struct Support {
  std::string reason;  // empty: supported
  bool supported() const { return reason.empty(); }
  explicit operator bool() const { return supported(); }
  static Support yes() { return {}; }
  static Support no(std::string why) { return {std::move(why)}; }
};

/// Which bytes are promised to be equal (docs/semantics.md, "Reproducibility").
struct Reproducibility {
  bool run = false;      // the same call again
  bool threads = false;  // another number of threads
  bool batch = false;    // a row alone, in another batch or pack, with other padding
  bool prefill = false;  // decode and chunked prefill against the full forward
};

struct BackendOptions {
  int threads = 0;             // CPU: 0 takes OpenMP's default at every call
  bool deterministic = false;  // CUDA: the mode that promises run and batch everywhere
  void* stream = nullptr;  // CUDA: the caller's stream, which must outlive the backend and its tensors; null makes one
  // CUDA: the module's file, or the folder of libdsalt_cuda.so, and then the only place looked at. Empty takes
  // DSALT_MODULE_PATH in the same way; when that is not set either, the module is looked for beside libdsalt (beside
  // the program, in ../lib and in the install folder, when libdsalt is a static library).
  std::string module_path;
};

/// What a backend's memory holds, in bytes: all that allocate() gave out and the temporary memory of its calls.
struct MemoryUse {
  std::size_t now = 0;
  std::size_t most = 0;  // at once, since the count was last started anew
};

/// One device, one stream of work. Not thread-safe: use one instance per thread. Views handed to an operation must live
/// on `device()`; the host backends use Device{cpu, 0}.
class DSALT_API Backend {
 public:
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;    // "reference", "cpu", "cuda:0"
  virtual std::string description() const = 0;  // what it really runs: "OpenMP, AVX-512, 2 threads"
  virtual Device device() const = 0;
  virtual Reproducibility reproducibility(Operation operation, Direction direction) const = 0;

  /// Whether the operation runs on main inputs of this dtype.
  virtual Support supports(Operation operation, Direction direction, DType dtype) const = 0;
  /// The same for one attention call, where shapes and options may matter; by default only the dtype does, and
  /// no backend goes backward through a page table.
  virtual Support supports(const AttentionProblem& problem, const AttentionInputs& inputs, Direction direction) const;

  // Memory of this device. The defaults serve host backends. Copies are ordered with the backend's work.
  virtual std::shared_ptr<void> allocate(std::size_t bytes);
  virtual void copy_to_host(void* host, const void* source, std::size_t bytes);
  virtual void copy_from_host(void* destination, const void* host, std::size_t bytes);
  /// Returns when all work given to this backend is done.
  virtual void synchronize();
  /// Empty where nobody counts, as in the host backends. `start_anew`: after this answer `most` starts again from
  /// `now`. Never waits; exact when all work is done.
  virtual std::optional<MemoryUse> memory_use(bool start_anew);

  virtual void attention_forward(const AttentionProblem&, const AttentionInputs&, const AttentionOutputs&) = 0;
  virtual void attention_backward(const AttentionProblem&, const AttentionInputs&, const AttentionSaved&,
                                  const AttentionGradients&) = 0;
  virtual void merge(const MergeInputs&, const AttentionOutputs&) = 0;
  virtual void window_sizes_forward(const WindowProblem&, const WindowInputs&, const TensorView& window) = 0;
  virtual void window_sizes_backward(const WindowProblem&, const WindowInputs&, const TensorView& dwindow,
                                     const WindowGradients&) = 0;
  virtual void energies_forward(const EnergyInputs&, const Energies&) = 0;
  virtual void energies_backward(const EnergyInputs&, const Energies& energy_gradients, const EnergyGradients&) = 0;
  virtual void select_landmarks_forward(const SelectionProblem&, const SelectionInputs&, const SelectionOutputs&) = 0;
  virtual void select_landmarks_backward(const SelectionProblem&, const SelectionInputs&, const SelectionSaved&,
                                         const SelectionGradients&) = 0;
  virtual void rmsnorm_forward(const RmsNormProblem&, const RmsNormInputs&, const TensorView& y) = 0;
  virtual void rmsnorm_backward(const RmsNormProblem&, const RmsNormInputs&, const TensorView& dy,
                                const RmsNormGradients&) = 0;
  virtual void rope_forward(const RopeProblem&, const RopeInputs&, const TensorView& y) = 0;
  virtual void rope_backward(const RopeProblem&, const RopeInputs&, const TensorView& dy, const TensorView& dx) = 0;
  virtual void swiglu_forward(const SwigluInputs&, const TensorView& y) = 0;
  virtual void swiglu_backward(const SwigluInputs&, const TensorView& dy, const SwigluGradients&) = 0;
  virtual void cross_entropy_forward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView& loss) = 0;
  virtual void cross_entropy_backward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView& dloss,
                                      const CrossEntropyGradients&) = 0;
  virtual void adamw_step(const AdamWProblem&, const AdamWInputs&, const AdamWOutputs&) = 0;

 protected:
  Backend() = default;
};

/// Uninitialised contiguous tensor in the backend's memory.
DSALT_API Tensor empty(Backend& backend, std::span<const std::int64_t> shape, DType dtype);

}  // namespace dsalt
