// The few functions of the CUDA runtime that the module calls, on host memory: everything is done at once, in order.
// Device memory that nobody wrote is NaN. DSALT_EMULATED_CAPABILITY=90 makes the device a Hopper, unset or 80 an
// Ampere; DSALT_EMULATED_MULTIPROCESSORS says how many multiprocessors it has: the fewer, the more work of a call for
// each block.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <cuda_runtime_api.h>

#include "blocks.hpp"
#include "tensor_map.hpp"

namespace {

int current_device = 0;
constexpr int device_count = 2;

bool hopper() {
  const char* capability = std::getenv("DSALT_EMULATED_CAPABILITY");
  if (capability == nullptr || std::strcmp(capability, "80") == 0) return false;
  if (std::strcmp(capability, "90") != 0)
    emulator::give_up("DSALT_EMULATED_CAPABILITY is %s, need 80 or 90", capability);
  return true;
}

int multiprocessors() {
  const char* count = std::getenv("DSALT_EMULATED_MULTIPROCESSORS");
  if (count == nullptr) return hopper() ? 8 : 2;
  if (std::atoi(count) < 1) emulator::give_up("DSALT_EMULATED_MULTIPROCESSORS is %s, need at least 1", count);
  return std::atoi(count);
}

/// What all pools together hold.
struct Pool {
  std::uint64_t now = 0, most = 0;
  std::map<void*, std::size_t> sizes = {};

  void took(void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    sizes[memory] = bytes;
    now += bytes;
    most = std::max(most, now);
  }
  void gave_back(void* memory) {
    const std::lock_guard lock(mutex);
    const auto entry = sizes.find(memory);
    if (entry == sizes.end()) emulator::give_up("memory is given back that no pool gave out");
    now -= entry->second;
    sizes.erase(entry);
  }

 private:
  std::mutex mutex = {};
} pool;

/// cuTensorMapEncodeTiled, as far as the module uses it. What the driver would refuse is refused.
CUresult encode_tensor_map(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                           const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                           const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const bool is_16_bit = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  if ((!is_16_bit && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT32) || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return CUDA_ERROR_NOT_SUPPORTED;
  emulator::TensorMap map{emulator::TensorMap::expected_magic,
                          rank,
                          is_16_bit ? 2u : 4u,
                          static_cast<const unsigned char*>(address),
                          {},
                          {},
                          {}};
  if (rank < 1 || rank > 5 || reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
  map.strides[0] = map.element_bytes;
  for (cuuint32_t d = 0; d < rank; ++d) {
    if (sizes[d] < 1 || sizes[d] > cuuint64_t{1} << 32 || box[d] < 1 || box[d] > 256 || steps[d] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    map.sizes[d] = sizes[d];
    map.box[d] = box[d];
    if (d == 0) continue;
    if (strides[d - 1] % 16 != 0 || strides[d - 1] == 0 || strides[d - 1] >= cuuint64_t{1} << 40)
      return CUDA_ERROR_INVALID_VALUE;
    map.strides[d] = strides[d - 1];
  }
  if (box[0] * map.element_bytes != 128) return CUDA_ERROR_INVALID_VALUE;  // less is allowed, but nobody uses it
  std::memset(to, 0xff, sizeof *to);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = device_count, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count) return cudaErrorInvalidDevice;
  return current_device = device, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = cudaDeviceProp{};
  std::strcpy(properties->name, "emulated on the host");
  properties->major = hopper() ? 9 : 8;
  properties->multiProcessorCount = multiprocessors();
  properties->sharedMemPerBlockOptin = (hopper() ? 227 : 163) * 1024;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return *attributes = cudaFuncAttributes{}, cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&encode_tensor_map) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an emulated failure"; }

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { return *pool = nullptr, cudaSuccess; }
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void*) {
  if (attribute == cudaMemPoolAttrUsedMemHigh) pool.most = 0;  // until the next allocation, as on a device
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr attribute, void* value) {
  if (attribute != cudaMemPoolAttrUsedMemCurrent && attribute != cudaMemPoolAttrUsedMemHigh)
    return cudaErrorNotSupported;
  const std::uint64_t bytes = attribute == cudaMemPoolAttrUsedMemHigh ? pool.most : pool.now;
  return std::memcpy(value, &bytes, sizeof bytes), cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  const std::size_t rounded = (bytes + 511) / 512 * 512;
  *memory = std::aligned_alloc(512, rounded);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);
  pool.took(*memory, rounded);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  pool.gave_back(memory);
  return std::free(memory), cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return (*memory = std::malloc(bytes)) != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  return std::memset(memory, value, bytes), cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = nullptr, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
}
