// What this process can do with one CUDA device. The only header of this folder that plain C++ files include.
#pragma once

#include <string>

namespace dsalt::cuda {

struct DeviceState {
  bool usable = false;
  std::string text;  // usable: the device, "device 0 (NVIDIA H200)"; otherwise one sentence, why not
};

/// Driver, device count, compute capability, and code for this device in this module, in that order. Leaves the calling
/// thread's current device as it was. A usable device gets its primary context.
DeviceState inspect_device(int index);

}  // namespace dsalt::cuda
