// Finds out whether a CUDA device can run this module's code, without assuming that there is a driver.
#include <cuda_runtime.h>

#include "device.hpp"

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

/// Returns to the caller's device, and leaves no error behind for the next call to find.
class CurrentDevice {
 public:
  CurrentDevice() : known_(cudaGetDevice(&previous_) == cudaSuccess) {}
  ~CurrentDevice() {
    if (known_) cudaSetDevice(previous_);
    cudaGetLastError();
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
  bool known_;
};

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

  const CurrentDevice restore;
  const std::string named = device + " (" + properties.name + ")";
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess)
    return unusable(named + ": " + failure("cudaSetDevice", error));
  cudaFuncAttributes attributes{};
  const cudaError_t found = cudaFuncGetAttributes(&attributes, presence_kernel);
  if (found == cudaErrorNoKernelImageForDevice || found == cudaErrorInvalidDeviceFunction ||
      found == cudaErrorUnsupportedPtxVersion)
    return unusable(named + ": no code for compute capability " + capability + " in this module");
  if (found != cudaSuccess) return unusable(named + ": " + failure("cudaFuncGetAttributes", found));
  return {true, named};
}

}  // namespace dsalt::cuda
