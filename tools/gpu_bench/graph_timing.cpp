#include "gpu_bench/graph_timing.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/statistics.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::benchmark {
namespace {

void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

class Event {
 public:
  Event() { require(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { require(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  double seconds_since(const Event& start) const {
    require(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& call, std::size_t calls) : stream_(stream) {
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      for (std::size_t n = 0; n < calls; ++n) call();
    } catch (...) {
      cudaGraph_t unfinished = nullptr;
      cudaStreamEndCapture(stream, &unfinished);
      if (unfinished) cudaGraphDestroy(unfinished);
      throw;
    }
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    require(error, "cudaGraphInstantiate");
  }
  ~Graph() { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  double seconds(std::size_t launches) const {
    start_.record(stream_);
    for (std::size_t n = 0; n < launches; ++n) require(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
    end_.record(stream_);
    return end_.seconds_since(start_);
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
  Event start_, end_;
};

/// How many of something that takes `seconds` fill `span`.
std::size_t count_for(double span, double seconds, double most) {
  return static_cast<std::size_t>(std::clamp(std::ceil(span / std::max(seconds, 1e-9)), 1.0, most));
}

}  // namespace

WorkStream::WorkStream(int device) {
  require(cudaSetDevice(device), "cudaSetDevice");
  require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

WorkStream::~WorkStream() { cudaStreamDestroy(stream_); }

Timing time_graph(const WorkStream& stream, const std::function<void()>& call, double seconds) {
  constexpr double graph_span = 2e-3, sample_span = 10e-3, most_calls = 200, most_launches = 1000;
  constexpr std::size_t tries = 5, least_samples = 5, most_samples = 10000;
  std::size_t calls = 1;
  {
    const Graph one(stream.get(), call, 1);
    one.seconds(1);  // the first launch uploads the graph
    calls = count_for(graph_span, one.seconds(tries) / tries, most_calls);
  }
  const Graph graph(stream.get(), call, calls);
  graph.seconds(1);
  const std::size_t launches = count_for(sample_span, graph.seconds(tries) / tries, most_launches);
  std::vector<double> times;
  for (double total = 0; times.size() < most_samples && (times.size() < least_samples || total < seconds);) {
    const double sample = graph.seconds(launches);
    times.push_back(sample / static_cast<double>(launches * calls));
    total += sample;
  }
  std::sort(times.begin(), times.end());
  return {times.size(), calls, quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9)};
}

}  // namespace dsalt::benchmark
