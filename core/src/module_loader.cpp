// Loads the CUDA backend module on demand. A file that is absent, cut short, of another kind or version, or damaged in
// its headers or dynamic section, ends as one sentence in BackendInfo::detail and in BackendUnavailable, not as the end
// of the process. Damage inside the module's code, data or symbol tables cannot be seen: loading runs what is there.
// (A trial load in a forked child would show some of it, but a fork of a host with threads may find the dynamic
// linker's or the allocator's locks held and hang, so that a sound module would be refused; and the host may reap the
// child itself.)
//
// Order of trust: the file's ELF headers and dynamic section, dlopen, the entry symbol, then magic, abi_version,
// libdsalt_version. Only a module that passed all of them has any other field of its interface read.
#include "internal/module_loader.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include "dsalt/errors.hpp"
#include "dsalt/module.hpp"
#include "dsalt/version.hpp"
#include "internal/shared_object.hpp"

namespace dsalt::internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* module_file = "libdsalt_cuda.so";

/// A usable module, or the reason why there is none.
struct Module {
  const ModuleInterface* interface = nullptr;
  std::string reason;
};

/// Restores rounding, exception flags and flush-to-zero: a library built with fast-math sets the latter in a
/// constructor, for the whole thread that happens to load it.
class FloatingPointGuard {
 public:
  FloatingPointGuard() { std::fegetenv(&environment_); }
  ~FloatingPointGuard() { std::fesetenv(&environment_); }
  FloatingPointGuard(const FloatingPointGuard&) = delete;
  FloatingPointGuard& operator=(const FloatingPointGuard&) = delete;

 private:
  std::fenv_t environment_;
};

/// Where the code of this function was loaded from: libdsalt.so, or the program or library that it is linked into.
fs::path running_file() {
  Dl_info info{};
  link_map* object = nullptr;
  std::error_code error;
  if (dladdr1(reinterpret_cast<void*>(&running_file), &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0)
    return {};
  // The main program's entry carries no name, and argv[0] need not be a path.
  const bool main_program = object == nullptr || object->l_name == nullptr || *object->l_name == '\0';
  const fs::path file = main_program ? fs::read_symlink("/proc/self/exe", error) : fs::canonical(object->l_name, error);
  return error ? fs::path() : file;
}

std::vector<fs::path> default_folders() {
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) {
    if (!folder.empty() && std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(folder);
  };
  const fs::path folder = running_file().parent_path();
  add(folder);
#ifndef DSALT_SHARED
  // A program says nothing about where the library's files are. A shared libdsalt does, and looks only beside itself: a
  // tree that was moved must not load the module of another one.
  if (!folder.empty()) add((folder / ".." / "lib").lexically_normal());
  add(DSALT_INSTALL_LIBDIR);
#endif
  return folders;
}

bool is_present(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() != fs::file_type::not_found && !error;
}

/// The file to load, or empty and the reason. A place named by the caller or the environment is the only one looked at:
/// a module that was asked for is never replaced by another one.
fs::path find_module(const BackendOptions& options, std::string& reason) {
  fs::path named = options.module_path;
  std::string source = "BackendOptions::module_path";
  if (named.empty()) {
    const char* variable = secure_getenv("DSALT_MODULE_PATH");
    if (variable != nullptr) named = variable;
    source = "DSALT_MODULE_PATH";
  }
  if (!named.empty()) {
    std::error_code error;
    const bool folder = fs::is_directory(named, error);
    const fs::path file = folder ? named / module_file : named;
    if (is_present(file)) return file;
    reason = folder ? std::string("module ") + module_file + " not found in " + named.string()
                    : "module " + named.string() + " not found";
    reason += " (named by " + source + ")";
    return {};
  }

  std::string places;
  for (const fs::path& folder : default_folders()) {
    if (is_present(folder / module_file)) return folder / module_file;
    places += (places.empty() ? "" : ", ") + folder.string();
  }
#ifdef DSALT_CUDA_NOT_BUILT
  reason = DSALT_CUDA_NOT_BUILT;
#else
  reason = std::string("module ") + module_file + " not found in " +
           (places.empty() ? "the folder of libdsalt, which is not known" : places);
#endif
  return {};
}

/// Checks what the entry function returned, in the order that module.hpp promises. Empty when it can be used.
std::string interface_fault(const ModuleInterface* interface) {
  if (interface == nullptr) return "offers no interface: its entry function returned null";
  char text[160];
  if (interface->magic != module_magic) {
    std::snprintf(text, sizeof text, "is not a libdsalt module: its magic is %#llx, need %#llx",
                  static_cast<unsigned long long>(interface->magic), static_cast<unsigned long long>(module_magic));
    return text;
  }
  if (interface->abi_version != module_abi_version) {
    std::snprintf(text, sizeof text, "was built for ABI %u, this libdsalt needs %u; rebuild it", interface->abi_version,
                  module_abi_version);
    return text;
  }
  const char* version = interface->libdsalt_version;
  if (version == nullptr || std::strcmp(version, DSALT_VERSION_STRING) != 0)
    return std::string("was built for libdsalt ") + (version ? version : "of no version") +
           ", this libdsalt is " DSALT_VERSION_STRING "; rebuild it";
  if (interface->probe == nullptr || interface->create == nullptr) return "is incomplete: it has no probe or no create";
  return "";
}

Module load(const fs::path& file) {
  if (const std::string fault = shared_object_fault(file); !fault.empty())
    return {nullptr, "not a loadable module: " + file.string() + " " + fault};
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* message = dlerror();
    return {nullptr, "not a loadable module: " + (message ? std::string(message) : file.string())};
  }
  const auto refuse = [&](const std::string& reason) -> Module {
    dlclose(handle);  // nothing of it is in use
    return {nullptr, reason};
  };
  const auto entry = reinterpret_cast<ModuleEntry>(dlsym(handle, module_entry_symbol));
  if (entry == nullptr)
    return refuse("not a loadable module: " + file.string() + " has no symbol " + module_entry_symbol);
  const ModuleInterface* interface = entry();
  if (const std::string fault = interface_fault(interface); !fault.empty())
    return refuse("module " + file.string() + " " + fault);
  return {interface, ""};
}

Module find_and_load(const BackendOptions& options) {
  std::string reason;
  fs::path file = find_module(options, reason);
  if (file.empty()) return {nullptr, reason};
  std::error_code error;
  const fs::path canonical = fs::canonical(file, error);
  // Never a bare name: dlopen would look for that in the system's library folders.
  file = error ? fs::absolute(file) : canonical;

  // Accepted modules stay loaded until the process ends, since their backends may; so the table is never destroyed.
  // Refusals are not remembered: the file may be repaired.
  static std::mutex& mutex = *new std::mutex;
  static auto& accepted = *new std::map<fs::path, const ModuleInterface*>;
  const std::lock_guard lock(mutex);
  if (const auto found = accepted.find(file); found != accepted.end()) return {found->second, ""};
  Module module = load(file);
  if (module.interface != nullptr) accepted.emplace(file, module.interface);
  return module;
}

BackendInfo probe(const Module& module, int index) {
  if (module.interface == nullptr) return {"cuda", false, module.reason};
  char text[512] = "";
  const bool available = module.interface->probe(index, text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (*text == '\0') std::snprintf(text, sizeof text, "the module says nothing about device %d", index);
  return {"cuda", available, text};
}

}  // namespace

BackendInfo probe_cuda(int index, const BackendOptions& options) {
  const FloatingPointGuard guard;
  return probe(find_and_load(options), index);
}

std::unique_ptr<Backend> make_cuda_backend(int index, const BackendOptions& options) {
  const FloatingPointGuard guard;
  const Module module = find_and_load(options);
  if (const BackendInfo info = probe(module, index); !info.available) throw BackendUnavailable(info.detail);
  std::unique_ptr<Backend> backend(module.interface->create(index, options));
  if (backend == nullptr) throw DeviceError("cuda: the module made no backend for device " + std::to_string(index));
  return backend;
}

}  // namespace dsalt::internal
