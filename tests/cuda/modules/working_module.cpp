// A module that works without a GPU: two made-up devices whose backend hands every operation to the cpu backend. Its
// constructor sets flush-to-zero, as a library linked with fast-math does.
#include <cstdio>
#include <memory>
#include <string>

#include "dsalt/backend.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/module.hpp"
#include "dsalt/registry.hpp"
#include "dsalt/version.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
__attribute__((constructor)) static void flush_to_zero() { _mm_setcsr(_mm_getcsr() | 0x8040); }
#endif

namespace {

using namespace dsalt;

constexpr int device_count = 2;

class ForwardingBackend final : public Backend {
 public:
  ForwardingBackend(int index, const BackendOptions& options)
      : name_("cuda:" + std::to_string(index)), cpu_(make_backend("cpu", options)) {}

  std::string_view name() const override { return name_; }
  std::string description() const override { return "test module, " + std::to_string(calls_) + " calls"; }
  Device device() const override { return cpu_->device(); }
  Reproducibility reproducibility(Operation operation, Direction direction) const override {
    return cpu_->reproducibility(operation, direction);
  }
  using Backend::supports;
  Support supports(Operation operation, Direction direction, DType dtype) const override {
    return cpu_->supports(operation, direction, dtype);
  }

  void attention_forward(const AttentionProblem& p, const AttentionInputs& i, const AttentionOutputs& o) override {
    cpu().attention_forward(p, i, o);
  }
  void attention_backward(const AttentionProblem& p, const AttentionInputs& i, const AttentionSaved& s,
                          const AttentionGradients& g) override {
    cpu().attention_backward(p, i, s, g);
  }
  void merge(const MergeInputs& i, const AttentionOutputs& o) override { cpu().merge(i, o); }
  void window_sizes_forward(const WindowProblem& p, const WindowInputs& i, const TensorView& o) override {
    cpu().window_sizes_forward(p, i, o);
  }
  void window_sizes_backward(const WindowProblem& p, const WindowInputs& i, const TensorView& d,
                             const WindowGradients& g) override {
    cpu().window_sizes_backward(p, i, d, g);
  }
  void energies_forward(const EnergyInputs& i, const Energies& o) override { cpu().energies_forward(i, o); }
  void energies_backward(const EnergyInputs& i, const Energies& d, const EnergyGradients& g) override {
    cpu().energies_backward(i, d, g);
  }
  void select_landmarks_forward(const SelectionProblem& p, const SelectionInputs& i,
                                const SelectionOutputs& o) override {
    cpu().select_landmarks_forward(p, i, o);
  }
  void select_landmarks_backward(const SelectionProblem& p, const SelectionInputs& i, const SelectionSaved& s,
                                 const SelectionGradients& g) override {
    cpu().select_landmarks_backward(p, i, s, g);
  }
  void rmsnorm_forward(const RmsNormProblem& p, const RmsNormInputs& i, const TensorView& y) override {
    cpu().rmsnorm_forward(p, i, y);
  }
  void rmsnorm_backward(const RmsNormProblem& p, const RmsNormInputs& i, const TensorView& d,
                        const RmsNormGradients& g) override {
    cpu().rmsnorm_backward(p, i, d, g);
  }
  void rope_forward(const RopeProblem& p, const RopeInputs& i, const TensorView& y) override {
    cpu().rope_forward(p, i, y);
  }
  void rope_backward(const RopeProblem& p, const RopeInputs& i, const TensorView& dy, const TensorView& dx) override {
    cpu().rope_backward(p, i, dy, dx);
  }
  void swiglu_forward(const SwigluInputs& i, const TensorView& y) override { cpu().swiglu_forward(i, y); }
  void swiglu_backward(const SwigluInputs& i, const TensorView& dy, const SwigluGradients& g) override {
    cpu().swiglu_backward(i, dy, g);
  }
  void cross_entropy_forward(const CrossEntropyProblem& p, const CrossEntropyInputs& i,
                             const TensorView& loss) override {
    cpu().cross_entropy_forward(p, i, loss);
  }
  void cross_entropy_backward(const CrossEntropyProblem& p, const CrossEntropyInputs& i, const TensorView& d,
                              const CrossEntropyGradients& g) override {
    cpu().cross_entropy_backward(p, i, d, g);
  }
  void adamw_step(const AdamWProblem& p, const AdamWInputs& i, const AdamWOutputs& o) override {
    cpu().adamw_step(p, i, o);
  }

 private:
  Backend& cpu() {
    ++calls_;
    return *cpu_;
  }

  std::string name_;
  std::unique_ptr<Backend> cpu_;
  int calls_ = 0;
};

bool probe(int index, char* text, std::size_t text_size) {
  if (index < device_count) {
    std::snprintf(text, text_size, "test device %d", index);
    return true;
  }
  std::snprintf(text, text_size, "device index %d is out of range: this machine has %d CUDA devices", index,
                device_count);
  return false;
}

Backend* create(int index, const BackendOptions& options) {
  if (options.stream != nullptr) throw DeviceError("test device: streams fail here");
  return new ForwardingBackend(index, options);
}

constexpr ModuleInterface interface { .libdsalt_version = DSALT_VERSION_STRING, .probe = probe, .create = create };

}  // namespace

extern "C" DSALT_API const dsalt::ModuleInterface* dsalt_backend_module() { return &interface; }
