// Streams of the caller, and one that stands still until it is told to go on.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "dsalt/registry.hpp"

namespace gpu_test {

inline void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

/// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  bool idle() const {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state != cudaErrorNotReady) require(state, "cudaStreamQuery");
    return state == cudaSuccess;
  }
  void wait() const { require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Holds up all later work of a stream until `open()`, and at most twenty seconds.
class Gate {
 public:
  explicit Gate(const Stream& stream) {
    require(cudaLaunchHostFunc(
                stream.get(),
                [](void* state) {
                  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
                  while (!static_cast<State*>(state)->opened && std::chrono::steady_clock::now() < end)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  static_cast<State*>(state)->passed = true;
                },
                state_.get()),
            "cudaLaunchHostFunc");
  }
  ~Gate() {
    open();
    while (!state_->passed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() { state_->opened = true; }

 private:
  struct State {
    std::atomic<bool> opened = false, passed = false;
  };
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

inline std::unique_ptr<dsalt::Backend> make_cuda(cudaStream_t stream = nullptr, bool deterministic = false,
                                                 int index = 0) {
  dsalt::BackendOptions options;
  options.stream = stream;
  options.deterministic = deterministic;
  return dsalt::make_backend("cuda:" + std::to_string(index), options);
}

inline int device_count() {
  int count = 0;
  require(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}

}  // namespace gpu_test
