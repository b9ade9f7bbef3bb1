// How long a call takes on the device alone: many of them in one CUDA graph, so that what it costs to start work from
// the host is not in it.
#pragma once

#include <driver_types.h>

#include <functional>

#include "bench/timing.hpp"

namespace dsalt::benchmark {

/// A stream of its own, for a backend to be made on.
class WorkStream {
 public:
  explicit WorkStream(int device);
  ~WorkStream();
  WorkStream(const WorkStream&) = delete;
  WorkStream& operator=(const WorkStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// `call` hands its work to a backend on `stream` and has run before. Timing::calls is the number in one graph; a
/// sample, from event to event, is as many launches of the graph as last ten milliseconds. DeviceError, also when
/// `call` does something that cannot be captured.
Timing time_graph(const WorkStream& stream, const std::function<void()>& call, double seconds);

}  // namespace dsalt::benchmark
