// The entry point of libdsalt_cuda.so (core/include/dsalt/module.hpp).
#include "dsalt/module.hpp"

#include <cstdio>
#include <exception>

#include "cuda_backend.hpp"
#include "device.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/version.hpp"

namespace dsalt::cuda {
namespace {

bool probe(int index, char* text, std::size_t text_size) {
  try {
    const DeviceState state = inspect_device(index);
    std::snprintf(text, text_size, "%s", state.text.c_str());
    return state.usable;
  } catch (const std::exception& error) {
    std::snprintf(text, text_size, "the device check failed: %s", error.what());
    return false;
  }
}

Backend* create(int index, const BackendOptions& options) {
  const DeviceState state = inspect_device(index);
  if (!state.usable) throw BackendUnavailable(state.text);
  return new CudaBackend(index, options);
}

constexpr ModuleInterface interface {
  .magic = module_magic, .abi_version = module_abi_version, .libdsalt_version = DSALT_VERSION_STRING, .probe = probe,
  .create = create,
};

}  // namespace
}  // namespace dsalt::cuda

extern "C" DSALT_API const dsalt::ModuleInterface* dsalt_backend_module() { return &dsalt::cuda::interface; }
