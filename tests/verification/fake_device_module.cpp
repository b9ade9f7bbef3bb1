// The stand-in of fake_device.hpp as a module, so that the `dsalt` command and the scripts can be run on a "device"
// where there is none. Device 0 calls itself an H200, device 1 something that nobody has limits for.
#include <cstdio>

#include "dsalt/module.hpp"
#include "dsalt/registry.hpp"
#include "dsalt/version.hpp"
#include "fake_device.hpp"

namespace {

using namespace dsalt;

constexpr int device_count = 2;

struct Unheard final : fake_device::FakeDevice {
  using FakeDevice::FakeDevice;
  std::string description() const override { return "device 1 (Unheard X1), compute capability 9.0"; }
};

bool probe(int index, char* text, std::size_t text_size) {
  const bool known = index >= 0 && index < device_count;
  std::snprintf(text, text_size, known ? "stand-in for device %d" : "device index %d is out of range", index);
  return known;
}

Backend* create(int index, const BackendOptions& options) {
  auto host = make_backend("cpu", options);
  if (index == 1) return new Unheard(std::move(host), index);
  return new fake_device::FakeDevice(std::move(host), index);
}

constexpr ModuleInterface interface { .libdsalt_version = DSALT_VERSION_STRING, .probe = probe, .create = create };

}  // namespace

extern "C" DSALT_API const dsalt::ModuleInterface* dsalt_backend_module() { return &interface; }
