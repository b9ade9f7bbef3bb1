// What every operation of the module shares on the host: device and stream of an instance, errors, memory in stream
// order. Needs the CUDA runtime's API, not its compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <cuda_runtime_api.h>

namespace dsalt::cuda {

/// Throws DeviceError "OPERATION: CALL failed: the runtime's words" unless `status` is success. OPERATION is the name
/// of the Backend member that was called, "attention_forward"; in synchronize() that of the latest launch besides.
void check(cudaError_t status, std::string_view operation, std::string_view call);

/// Makes `index` the calling thread's device until the end of the scope. Everything the module does happens inside one,
/// so a caller's current device is never seen to change.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

/// A stream (its own, or the caller's) and the memory pool that allocations in the stream's order come from. Shared by
/// the backend and by the memory it hands out, so that either may be destroyed first. A caller's stream must outlive
/// both.
class StreamMemory {
 public:
  StreamMemory(int device, cudaStream_t callers_stream);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }
  void* allocate(std::size_t bytes, std::string_view operation) const;
  void release(void* memory) const noexcept;
  /// What the pool counts, in bytes: cudaMemPoolAttrUsedMemCurrent and its like. Does not wait.
  std::uint64_t counted(cudaMemPoolAttr attribute) const;
  void start_high_water_mark_anew() const;

 private:
  int device_;
  bool owns_stream_;
  cudaStream_t stream_ = nullptr;
  cudaMemPool_t pool_ = nullptr;
};

/// One instance's device, as operations see it.
struct Context {
  int device = 0;
  int capability = 0;  // major * 10 + minor
  int multiprocessors = 0;
  std::size_t shared_memory_per_block = 0;  // the most that a kernel can opt in to
  bool deterministic = false;               // BackendOptions::deterministic
  std::shared_ptr<const StreamMemory> memory;
  mutable const char* latest_operation = nullptr;  // the last one launched: a fault that shows up later is likely its

  cudaStream_t stream() const { return memory->stream(); }
  /// Hopper's own instructions (wgmma, TMA): code for sm_90a runs on 9.0 only.
  bool hopper() const { return capability == 90; }
};

/// Uninitialised device memory for `count` elements, returned to the pool in stream order at the end of the scope:
/// kernels launched before that may still use it.
template <class T>
class Scratch {
 public:
  Scratch(const Context& context, std::string_view operation, std::int64_t count)
      : memory_(context.memory),
        data_(count > 0 ? memory_->allocate(static_cast<std::size_t>(count) * sizeof(T), operation) : nullptr) {}
  ~Scratch() {
    if (data_ != nullptr) memory_->release(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return static_cast<T*>(data_); }

 private:
  std::shared_ptr<const StreamMemory> memory_;
  void* data_;
};

}  // namespace dsalt::cuda
