#include "context.hpp"

#include "dsalt/errors.hpp"

namespace dsalt::cuda {

void check(cudaError_t status, std::string_view operation, std::string_view call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the next call must not report this one again
  throw DeviceError(std::string(operation) + ": " + std::string(call) + " failed: " + cudaGetErrorString(status));
}

CurrentDevice::CurrentDevice(int index) {
  int current = 0;
  check(cudaGetDevice(&current), "device", "cudaGetDevice");
  if (current == index) return;
  check(cudaSetDevice(index), "device", "cudaSetDevice");
  previous_ = current;
}

CurrentDevice::~CurrentDevice() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

StreamMemory::StreamMemory(int device, cudaStream_t callers_stream)
    : device_(device), owns_stream_(callers_stream == nullptr), stream_(callers_stream) {
  if (owns_stream_)
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make_backend", "cudaStreamCreateWithFlags");
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaError_t status = cudaMemPoolCreate(&pool_, &properties);
  if (status == cudaSuccess) {
    // Freed memory stays here for the next call; without this every synchronisation would give it back to the driver.
    std::uint64_t keep = UINT64_MAX;
    status = cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep);
  }
  if (status == cudaSuccess) return;
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  if (owns_stream_) cudaStreamDestroy(stream_);
  check(status, "make_backend", "making a memory pool");
}

StreamMemory::~StreamMemory() {
  // Destroying either does not wait: work under way and memory in use are finished with first.
  cudaMemPoolDestroy(pool_);
  if (owns_stream_) cudaStreamDestroy(stream_);
  cudaGetLastError();
}

void* StreamMemory::allocate(std::size_t bytes, std::string_view operation) const {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw DeviceError(std::string(operation) + ": device " + std::to_string(device_) + " has no room for " +
                      std::to_string(bytes) + " bytes");
  }
  check(status, operation, "cudaMallocFromPoolAsync");
  return memory;
}

std::uint64_t StreamMemory::counted(cudaMemPoolAttr attribute) const {
  std::uint64_t bytes = 0;
  check(cudaMemPoolGetAttribute(pool_, attribute, &bytes), "memory_use", "cudaMemPoolGetAttribute");
  return bytes;
}

void StreamMemory::start_high_water_mark_anew() const {
  std::uint64_t zero = 0;  // the only value it takes: the next allocation lifts it to what is then in use
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &zero), "memory_use", "cudaMemPoolSetAttribute");
}

void StreamMemory::release(void* memory) const noexcept {
  int current = device_;
  cudaGetDevice(&current);
  if (current != device_) cudaSetDevice(device_);  // the special streams mean those of the current device
  cudaFreeAsync(memory, stream_);
  if (current != device_) cudaSetDevice(current);
  cudaGetLastError();  // a failure here is not the next call's
}

}  // namespace dsalt::cuda
