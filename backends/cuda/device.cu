// Finds out whether a CUDA device can run this module's code, without assuming that there is a driver.
#include <cuda_runtime.h>

#include "context.hpp"
#include "device.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::cuda {
namespace {

constexpr int oldest_capability = 80;  // major * 10 + minor: the oldest code that this module carries

/// Exists to be looked up: present for a device exactly when this module has code for it.
__global__ void presence_kernel() {}

std::string version_string(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string failure(const char* call, cudaError_t error) {
  return std::string(call) + " failed: " + cudaGetErrorString(error);
}

DeviceState unusable(std::string reason) { return {false, std::move(reason)}; }

}  // namespace

DeviceState inspect_device(int index) {
  int driver = 0;
  if (const cudaError_t error = cudaDriverGetVersion(&driver); error != cudaSuccess)
    return unusable(failure("cudaDriverGetVersion", error));
  if (driver == 0) return unusable("no driver (libcuda.so.1 not found)");

  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorInsufficientDriver)
    return unusable("the driver supports CUDA " + version_string(driver) + ", this module needs " +
                    version_string(CUDART_VERSION) + " or newer");
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && count == 0)) return unusable("no CUDA device");
  if (counted != cudaSuccess) return unusable(failure("cudaGetDeviceCount", counted));
  if (index < 0 || index >= count)
    return unusable("device index " + std::to_string(index) + " is out of range: this machine has " +
                    std::to_string(count) + " CUDA device" + (count == 1 ? "" : "s"));

  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess)
    return unusable(failure("cudaGetDeviceProperties", error));
  const std::string capability = std::to_string(properties.major) + "." + std::to_string(properties.minor);
  const std::string device = "device " + std::to_string(index);
  if (properties.major * 10 + properties.minor < oldest_capability)
    return unusable(device + " is compute capability " + capability + ", needs " +
                    std::to_string(oldest_capability / 10) + "." + std::to_string(oldest_capability % 10) +
                    " or newer");

  const std::string named = device + " (" + properties.name + ")";
  try {
    const CurrentDevice current(index);
    cudaFuncAttributes attributes{};
    const cudaError_t found = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(presence_kernel));
    cudaGetLastError();  // no error stays behind for the caller's next call
    if (found == cudaErrorNoKernelImageForDevice || found == cudaErrorInvalidDeviceFunction ||
        found == cudaErrorUnsupportedPtxVersion)
      return unusable(named + ": no code for compute capability " + capability + " in this module");
    if (found != cudaSuccess) return unusable(named + ": " + failure("cudaFuncGetAttributes", found));
  } catch (const DeviceError& error) {
    return unusable(named + ": " + error.what());
  }
  return {true, named};
}

}  // namespace dsalt::cuda
