// The seam between libdsalt and a separately built backend module (a shared object loaded on demand).
//
// A module exports exactly one C symbol, `dsalt_backend_module`, a function that takes nothing and returns a pointer to
// a static ModuleInterface. The loader checks magic, abi_version and libdsalt_version, in that order and before any
// other field, so that a module of another build is refused with a reason instead of crashing.
//
// libdsalt_cuda.so is looked for in one place when BackendOptions::module_path or else the environment variable
// DSALT_MODULE_PATH names it (a file, or a folder that holds it), otherwise beside the running libdsalt (a static
// libdsalt: beside the program and in ../lib) and in the library folder of the installation. An accepted module stays
// loaded until the process ends. Loading one leaves the thread's rounding and flush-to-zero modes as they were.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsalt/backend.hpp"

namespace dsalt {

inline constexpr std::uint64_t module_magic = 0x32424d544c415344;  // "DSALTMB2" in memory order
/// Raised whenever Backend, a problem struct or ModuleInterface changes layout.
inline constexpr std::uint32_t module_abi_version = 2;
inline constexpr const char* module_entry_symbol = "dsalt_backend_module";

struct ModuleInterface {
  std::uint64_t magic = module_magic;
  std::uint32_t abi_version = module_abi_version;
  const char* libdsalt_version = nullptr;  // DSALT_VERSION_STRING of the module's build

  /// Whether device `index` can be used in this process. Returns true and a description, or false and the reason, as a
  /// NUL-terminated sentence in `text`. Never throws.
  bool (*probe)(int index, char* text, std::size_t text_size) = nullptr;
  /// Makes a backend on device `index`; throws BackendUnavailable or DeviceError.
  Backend* (*create)(int index, const BackendOptions& options) = nullptr;
};

using ModuleEntry = const ModuleInterface* (*)();

}  // namespace dsalt
