// A device without hardware: a host backend behind memory that the host cannot touch and work that is only queued.
//
//   memory   addresses of pages without access rights, so that reading or writing through a view is a crash; the bytes
//            lie elsewhere and are reached by copies and operations alone
//   work     copies and operations wait in a queue until synchronize(), as on a slow stream: host memory that is freed
//            or read too early, and device memory that is freed too early, show
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dsalt/errors.hpp"
#include "dsalt/verification/forwarding_backend.hpp"

namespace fake_device {

using namespace dsalt;

/// Device addresses and the host bytes behind them: one memory, however many instances work on it.
class Memory : public std::enable_shared_from_this<Memory> {
 public:
  static const std::shared_ptr<Memory>& of_process() {
    static const auto memory = std::make_shared<Memory>();
    return memory;
  }

  std::shared_ptr<void> allocate(std::size_t bytes) {
    constexpr std::size_t page = 4096;
    const std::size_t size = (bytes / page + 1) * page;
    void* address = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw DeviceError("fake device: out of addresses");
    const Tensor storage = Tensor::empty({static_cast<std::int64_t>(size / 4)}, DType::i32);
    const std::lock_guard lock(mutex_);
    regions_[static_cast<std::byte*>(address)] = {bytes, storage.storage()};
    return {address, [self = shared_from_this(), size](void* p) { self->free(p, size); }};
  }

  /// The host address behind a device address: the first of `bytes` bytes that lie in one allocation.
  void* real(const void* address, std::int64_t bytes) {
    if (bytes == 0) return const_cast<void*>(address);
    const std::lock_guard lock(mutex_);
    auto region = regions_.upper_bound(static_cast<const std::byte*>(address));
    if (region == regions_.begin()) throw DeviceError("fake device: an address that is not the device's");
    --region;
    const std::ptrdiff_t offset = static_cast<const std::byte*>(address) - region->first;
    if (offset + bytes > static_cast<std::ptrdiff_t>(region->second.bytes))
      throw DeviceError("fake device: an address that is not the device's, or was freed before its work was done");
    return static_cast<std::byte*>(region->second.storage.get()) + offset;
  }

 private:
  struct Region {
    std::size_t bytes;
    std::shared_ptr<void> storage;
  };

  void free(void* address, std::size_t size) {
    const std::lock_guard lock(mutex_);
    regions_.erase(static_cast<std::byte*>(address));
    munmap(address, size);
  }

  std::mutex mutex_;
  std::map<const std::byte*, Region> regions_;
};

class FakeDevice : public verification::ForwardingBackend {
 public:
  explicit FakeDevice(std::unique_ptr<Backend> host, int index = 0)
      : ForwardingBackend(std::move(host)), index_(index), name_("cuda:" + std::to_string(index)) {}

  std::string_view name() const override { return name_; }
  std::string description() const override {
    return "device " + std::to_string(index_) +
           " (NVIDIA H200), compute capability 9.0, a stand-in on the host: " + target().description();
  }
  Device device() const override { return {DeviceType::cuda, index_}; }
  /// Operations that were queued so far.
  int calls() const { return calls_; }

  std::shared_ptr<void> allocate(std::size_t bytes) override { return memory_->allocate(bytes); }
  void copy_to_host(void* host, const void* source, std::size_t bytes) override {
    queue_.push_back([=, this] { std::memcpy(host, memory_->real(source, static_cast<std::int64_t>(bytes)), bytes); });
  }
  void copy_from_host(void* destination, const void* host, std::size_t bytes) override {
    queue_.push_back(
        [=, this] { std::memcpy(memory_->real(destination, static_cast<std::int64_t>(bytes)), host, bytes); });
  }
  void synchronize() override {
    std::vector<std::function<void()>> work;
    work.swap(queue_);
    for (const auto& item : work) item();
    target().synchronize();
  }

  void attention_forward(const AttentionProblem& p, const AttentionInputs& i, const AttentionOutputs& o) override {
    enqueue([=, this] { target().attention_forward(p, real(i), real(o)); });
  }
  void attention_backward(const AttentionProblem& p, const AttentionInputs& i, const AttentionSaved& s,
                          const AttentionGradients& g) override {
    enqueue([=, this] {
      const AttentionSaved saved{real(s.out), real(s.lse), real(s.dout), real(s.dlse)};
      target().attention_backward(p, real(i), saved,
                                  {real(g.dq), real(g.dk), real(g.dv), real(g.dwindow), real(g.dlandmark_log_weight)});
    });
  }
  void merge(const MergeInputs& i, const AttentionOutputs& o) override {
    enqueue([=, this] { target().merge({real(i.out1), real(i.lse1), real(i.out2), real(i.lse2)}, real(o)); });
  }
  void window_sizes_forward(const WindowProblem& p, const WindowInputs& i, const TensorView& window) override {
    enqueue([=, this] { target().window_sizes_forward(p, {real(i.x), real(i.weight), real(i.bias)}, real(window)); });
  }
  void window_sizes_backward(const WindowProblem& p, const WindowInputs& i, const TensorView& d,
                             const WindowGradients& g) override {
    enqueue([=, this] {
      target().window_sizes_backward(p, {real(i.x), real(i.weight), real(i.bias)}, real(d),
                                     {real(g.dx), real(g.dweight), real(g.dbias)});
    });
  }
  void energies_forward(const EnergyInputs& i, const Energies& o) override {
    enqueue([=, this] { target().energies_forward({real(i.x), real(i.v)}, {real(o.nx), real(o.nv)}); });
  }
  void energies_backward(const EnergyInputs& i, const Energies& d, const EnergyGradients& g) override {
    enqueue([=, this] {
      target().energies_backward({real(i.x), real(i.v)}, {real(d.nx), real(d.nv)}, {real(g.dx), real(g.dv)});
    });
  }
  void select_landmarks_forward(const SelectionProblem& p, const SelectionInputs& i,
                                const SelectionOutputs& o) override {
    enqueue([=, this] {
      target().select_landmarks_forward(p, real(i), {real(o.landmarks), real(o.score), real(o.landmark_log_weight)});
    });
  }
  void select_landmarks_backward(const SelectionProblem& p, const SelectionInputs& i, const SelectionSaved& s,
                                 const SelectionGradients& g) override {
    enqueue([=, this] {
      target().select_landmarks_backward(p, real(i), {real(s.landmarks), real(s.dlandmark_log_weight)},
                                         {real(g.dnx), real(g.dnv), real(g.dalpha_raw)});
    });
  }
  void rmsnorm_forward(const RmsNormProblem& p, const RmsNormInputs& i, const TensorView& y) override {
    enqueue([=, this] { target().rmsnorm_forward(p, {real(i.x), real(i.gamma)}, real(y)); });
  }
  void rmsnorm_backward(const RmsNormProblem& p, const RmsNormInputs& i, const TensorView& d,
                        const RmsNormGradients& g) override {
    enqueue([=, this] {
      target().rmsnorm_backward(p, {real(i.x), real(i.gamma)}, real(d), {real(g.dx), real(g.dgamma)});
    });
  }
  void rope_forward(const RopeProblem& p, const RopeInputs& i, const TensorView& y) override {
    enqueue([=, this] { target().rope_forward(p, {real(i.x), real(i.positions), real(i.cu_seqlens)}, real(y)); });
  }
  void rope_backward(const RopeProblem& p, const RopeInputs& i, const TensorView& dy, const TensorView& dx) override {
    enqueue([=, this] {
      target().rope_backward(p, {real(i.x), real(i.positions), real(i.cu_seqlens)}, real(dy), real(dx));
    });
  }
  void swiglu_forward(const SwigluInputs& i, const TensorView& y) override {
    enqueue([=, this] { target().swiglu_forward({real(i.gate), real(i.up)}, real(y)); });
  }
  void swiglu_backward(const SwigluInputs& i, const TensorView& d, const SwigluGradients& g) override {
    enqueue([=, this] { target().swiglu_backward({real(i.gate), real(i.up)}, real(d), {real(g.dgate), real(g.dup)}); });
  }
  void cross_entropy_forward(const CrossEntropyProblem& p, const CrossEntropyInputs& i,
                             const TensorView& loss) override {
    enqueue([=, this] {
      target().cross_entropy_forward(p, {real(i.hidden), real(i.weight), real(i.labels)}, real(loss));
    });
  }
  void cross_entropy_backward(const CrossEntropyProblem& p, const CrossEntropyInputs& i, const TensorView& d,
                              const CrossEntropyGradients& g) override {
    enqueue([=, this] {
      target().cross_entropy_backward(p, {real(i.hidden), real(i.weight), real(i.labels)}, real(d),
                                      {real(g.dhidden), real(g.dweight)});
    });
  }
  void adamw_step(const AdamWProblem& p, const AdamWInputs& i, const AdamWOutputs& o) override {
    enqueue([=, this] {
      target().adamw_step(p, {real(i.param), real(i.grad), real(i.m), real(i.v)},
                          {real(o.param), real(o.m), real(o.v)});
    });
  }

 private:
  void enqueue(std::function<void()> work) {
    ++calls_;
    queue_.push_back(std::move(work));
  }

  /// The same view over the host bytes, every element of which must lie in one allocation.
  TensorView real(TensorView view) const {
    if (!view.present()) return view;
    if (view.device != device()) throw DeviceError("fake device: a tensor that is not on the device");
    std::int64_t low = 0, high = view.size() > 0 ? 1 : 0;
    for (std::size_t dim = 0; dim < static_cast<std::size_t>(view.rank) && high > 0; ++dim) {
      const std::int64_t reach = (view.shape[dim] - 1) * view.strides[dim];
      (reach < 0 ? low : high) += reach;
    }
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    void* begin = memory_->real(static_cast<std::byte*>(view.data) + low * size, (high - low) * size);
    view.data = static_cast<std::byte*>(begin) - low * size;
    view.device = Device{};
    return view;
  }
  AttentionInputs real(AttentionInputs in) const {
    for (TensorView* view : {&in.q, &in.k, &in.v, &in.window, &in.landmarks, &in.landmark_log_weight, &in.cu_seqlens_q,
                             &in.cu_seqlens_k, &in.k_lengths, &in.page_table})
      *view = real(*view);
    return in;
  }
  AttentionOutputs real(const AttentionOutputs& out) const { return {real(out.out), real(out.lse)}; }
  SelectionInputs real(const SelectionInputs& in) const {
    return {real(in.nx), real(in.nv), real(in.alpha_raw), real(in.cu_seqlens)};
  }

  int index_, calls_ = 0;
  std::string name_;
  std::shared_ptr<Memory> memory_ = Memory::of_process();
  std::vector<std::function<void()>> queue_;
};

}  // namespace fake_device
