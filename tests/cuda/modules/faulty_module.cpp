// A module that the loader must refuse, chosen by FAULT. The interface ends where the loader has to stop reading: the
// page after it is not readable, so that touching any later field ends the test program.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "dsalt/module.hpp"
#include "dsalt/version.hpp"

#define FAULT_MAGIC 1
#define FAULT_ABI 2
#define FAULT_VERSION 3
#define FAULT_NO_VERSION 4
#define FAULT_INCOMPLETE 5
#define FAULT_NULL 6

namespace {

[[maybe_unused]] dsalt::ModuleInterface faulty() {
  dsalt::ModuleInterface interface;
  interface.libdsalt_version = DSALT_VERSION_STRING;
#if FAULT == FAULT_MAGIC
  interface.magic = 0x1234;
#elif FAULT == FAULT_ABI
  interface.abi_version = 7;
#elif FAULT == FAULT_VERSION
  interface.libdsalt_version = "9.8.7";
#elif FAULT == FAULT_NO_VERSION
  interface.libdsalt_version = nullptr;
#endif
  return interface;
}

[[maybe_unused]] constexpr std::size_t readable_bytes() {
#if FAULT == FAULT_MAGIC
  return offsetof(dsalt::ModuleInterface, abi_version);
#elif FAULT == FAULT_ABI
  return offsetof(dsalt::ModuleInterface, libdsalt_version);
#elif FAULT == FAULT_VERSION || FAULT == FAULT_NO_VERSION
  return offsetof(dsalt::ModuleInterface, probe);
#else
  return sizeof(dsalt::ModuleInterface);
#endif
}

}  // namespace

extern "C" DSALT_API const dsalt::ModuleInterface* dsalt_backend_module() {
#if FAULT == FAULT_NULL
  return nullptr;
#else
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::byte* second = static_cast<std::byte*>(memory) + page;
  const dsalt::ModuleInterface interface = faulty();
  std::byte* start = second - readable_bytes();
  std::memcpy(start, &interface, readable_bytes());
  mprotect(second, page, PROT_NONE);
  return reinterpret_cast<const dsalt::ModuleInterface*>(start);
#endif
}
