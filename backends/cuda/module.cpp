// The entry point of libdsalt_cuda.so (core/include/dsalt/module.hpp).
//
// This release finds and checks devices but has no kernels, so every device is reported as not available, with that
// reason: "auto" then takes another backend, and asking for cuda by name fails instead of giving half a backend.
#include "dsalt/module.hpp"

#include <cstdio>
#include <exception>
#include <string>

#include "device.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/version.hpp"

namespace dsalt::cuda {
namespace {

std::string reason_for(int index) {
  const DeviceState state = inspect_device(index);
  if (!state.usable) return state.text;
  return state.text + " works, but this release of the module contains no attention kernels yet";
}

bool probe(int index, char* text, std::size_t text_size) {
  try {
    std::snprintf(text, text_size, "%s", reason_for(index).c_str());
  } catch (const std::exception& error) {
    std::snprintf(text, text_size, "the device check failed: %s", error.what());
  }
  return false;
}

Backend* create(int index, const BackendOptions&) { throw BackendUnavailable(reason_for(index)); }

constexpr ModuleInterface interface {
  .magic = module_magic, .abi_version = module_abi_version, .libdsalt_version = DSALT_VERSION_STRING, .probe = probe,
  .create = create,
};

}  // namespace
}  // namespace dsalt::cuda

extern "C" DSALT_API const dsalt::ModuleInterface* dsalt_backend_module() { return &dsalt::cuda::interface; }
