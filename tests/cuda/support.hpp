// Shared by the tests of the module seam.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dsalt/registry.hpp"

namespace module_test {

/// Sets or removes an environment variable until the end of the scope.
class Environment {
 public:
  Environment(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Environment() { set(old_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value)
      setenv(name_, value->c_str(), 1);
    else
      unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> old_;
};

/// A new empty folder, removed at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dsalt-module-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + pattern);
    path_ = std::filesystem::canonical(pattern);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::vector<char> read_bytes(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (bytes.empty()) throw std::runtime_error("no bytes in " + file.string());
  return bytes;
}

/// Writes a new file: an earlier one of that name is unlinked, since it may be mapped.
inline void write_bytes(const std::filesystem::path& file, const char* bytes, std::size_t size) {
  std::filesystem::remove(file);
  std::ofstream stream(file, std::ios::binary);
  stream.write(bytes, static_cast<std::streamsize>(size));
  if (!stream) throw std::runtime_error("cannot write " + file.string());
}

inline dsalt::BackendOptions with_module(const std::filesystem::path& file) {
  dsalt::BackendOptions options;
  options.module_path = file.string();
  return options;
}

inline dsalt::BackendInfo cuda_info(const dsalt::BackendOptions& options) {
  for (const dsalt::BackendInfo& info : dsalt::list_backends(options))
    if (info.name == "cuda") return info;
  throw std::runtime_error("list_backends does not list cuda");
}

/// A test module built next to this program.
inline std::filesystem::path test_module(const std::string& name) {
  return std::filesystem::path(DSALT_TEST_MODULES) / (name + ".so");
}

}  // namespace module_test
