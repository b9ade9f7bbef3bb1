// The CUDA backend's identity, memory and copies.
#include "cuda_backend.hpp"

#include <algorithm>
#include <cstring>

#include "dsalt/errors.hpp"

namespace dsalt::cuda {
namespace {

/// Throws, with `why`, where the stream is being captured into a graph. The stream's device must be current.
void refuse_capture(cudaStream_t stream, const char* operation, const char* why) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), operation, "cudaStreamIsCapturing");
  if (status != cudaStreamCaptureStatusNone)
    throw DeviceError(std::string(operation) + ": the stream is being captured into a graph, " + why);
}

}  // namespace

/// Two pinned buffers between pageable host memory and the device: the host fills one while the other is on its way,
/// and a call returns as soon as its last bytes are in a buffer.
class CudaBackend::Staging {
 public:
  static constexpr std::size_t size = std::size_t{4} << 20;

  Staging(const Context& context, std::string_view operation) : context_(context) {
    for (Buffer& buffer : buffers_) {
      check(cudaMallocHost(&buffer.memory, size), operation, "cudaMallocHost");
      check(cudaEventCreateWithFlags(&buffer.free, cudaEventDisableTiming), operation, "cudaEventCreate");
    }
  }

  void to_device(char* destination, const char* host, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes; done += size) {
      Buffer& buffer = buffers_[next_];
      next_ ^= 1;
      const std::size_t part = std::min(size, bytes - done);
      check(cudaEventSynchronize(buffer.free), "copy_from_host", "cudaEventSynchronize");
      std::memcpy(buffer.memory, host + done, part);
      check(cudaMemcpyAsync(destination + done, buffer.memory, part, cudaMemcpyHostToDevice, context_.stream()),
            "copy_from_host", "cudaMemcpyAsync");
      check(cudaEventRecord(buffer.free, context_.stream()), "copy_from_host", "cudaEventRecord");
    }
  }

  void to_host(char* host, const char* source, std::size_t bytes) {
    const auto fetch = [&](std::size_t start, Buffer& buffer) {
      check(cudaMemcpyAsync(buffer.memory, source + start, std::min(size, bytes - start), cudaMemcpyDeviceToHost,
                            context_.stream()),
            "copy_to_host", "cudaMemcpyAsync");
      check(cudaEventRecord(buffer.free, context_.stream()), "copy_to_host", "cudaEventRecord");
    };
    fetch(0, buffers_[next_]);
    for (std::size_t done = 0; done < bytes; done += size) {
      Buffer& buffer = buffers_[next_];
      next_ ^= 1;
      if (done + size < bytes) fetch(done + size, buffers_[next_]);
      check(cudaEventSynchronize(buffer.free), "copy_to_host", "cudaEventSynchronize");
      std::memcpy(host + done, buffer.memory, std::min(size, bytes - done));
    }
  }

 private:
  struct Buffer {
    void* memory = nullptr;
    cudaEvent_t free = nullptr;

    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
      if (free != nullptr) {
        cudaEventSynchronize(free);  // the device may still be reading it
        cudaEventDestroy(free);
      }
      if (memory != nullptr) cudaFreeHost(memory);
      cudaGetLastError();  // an earlier fault of the device is not the next call's
    }
  };
  const Context& context_;
  Buffer buffers_[2];
  int next_ = 0;
};

CudaBackend::CudaBackend(int device, const BackendOptions& options) : name_("cuda:" + std::to_string(device)) {
  const CurrentDevice current(device);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "make_backend", "cudaGetDeviceProperties");
  context_.device = device;
  context_.capability = properties.major * 10 + properties.minor;
  context_.multiprocessors = properties.multiProcessorCount;
  context_.shared_memory_per_block = properties.sharedMemPerBlockOptin;
  context_.deterministic = options.deterministic;
  context_.memory = std::make_shared<StreamMemory>(device, static_cast<cudaStream_t>(options.stream));
  description_ = "device " + std::to_string(device) + " (" + properties.name + "), compute capability " +
                 std::to_string(properties.major) + "." + std::to_string(properties.minor) + ", " +
                 std::to_string(properties.multiProcessorCount) + " multiprocessors" +
                 (context_.hopper() ? ", Hopper kernels" : ", portable kernels") +
                 (options.deterministic ? ", deterministic" : "");
#ifdef DSALT_CUDA_EVERY_LANE_ARRIVES
  description_ += ", built for racecheck";
#endif
}

CudaBackend::~CudaBackend() = default;

Reproducibility CudaBackend::reproducibility(Operation operation, Direction direction) const {
  const bool forward = direction == Direction::forward;
  if (operation == Operation::attention && context_.hopper() && !context_.deterministic) {
    // The kernels for Hopper split keys by how much work a call has, and add up gradients in the order in which blocks
    // come.
    return {.run = forward, .threads = true, .batch = false, .prefill = false};
  }
  return {.run = true, .threads = true, .batch = true, .prefill = forward};
}

Support CudaBackend::supports(Operation, Direction, DType) const { return Support::yes(); }

std::shared_ptr<void> CudaBackend::allocate(std::size_t bytes) {
  const CurrentDevice current(context_.device);
  void* data = context_.memory->allocate(std::max<std::size_t>(bytes, 1), "allocate");
  return {data, [memory = context_.memory](void* released) { memory->release(released); }};
}

void CudaBackend::copy_to_host(void* host, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  const CurrentDevice current(context_.device);
  refuse_capture(context_.stream(), "copy_to_host", "and this call would have to wait for it");
  if (!staging_) staging_ = std::make_unique<Staging>(context_, "copy_to_host");
  staging_->to_host(static_cast<char*>(host), static_cast<const char*>(source), bytes);
}

void CudaBackend::copy_from_host(void* destination, const void* host, std::size_t bytes) {
  if (bytes == 0) return;
  const CurrentDevice current(context_.device);
  refuse_capture(context_.stream(), "copy_from_host",
                 "which would copy the memory of now at every launch; copy before the capture");
  if (!staging_) staging_ = std::make_unique<Staging>(context_, "copy_from_host");
  staging_->to_device(static_cast<char*>(destination), static_cast<const char*>(host), bytes);
}

void CudaBackend::synchronize() {
  const CurrentDevice current(context_.device);
  refuse_capture(context_.stream(), "synchronize", "and this call would have to wait for it");
  const char* latest = context_.latest_operation;
  check(cudaStreamSynchronize(context_.stream()),
        latest == nullptr ? "synchronize" : std::string("synchronize after ") + latest, "cudaStreamSynchronize");
}

std::optional<MemoryUse> CudaBackend::memory_use(bool start_anew) {
  const CurrentDevice current(context_.device);
  const std::uint64_t now = context_.memory->counted(cudaMemPoolAttrUsedMemCurrent),
                      most = context_.memory->counted(cudaMemPoolAttrUsedMemHigh);
  const MemoryUse use{now, std::max({now, most, mark_started_at_})};
  if (start_anew) {
    context_.memory->start_high_water_mark_anew();
    mark_started_at_ = now;  // the pool's own mark is 0 until the next allocation
  }
  return use;
}

}  // namespace dsalt::cuda
