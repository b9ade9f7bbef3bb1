// The one list of backends: adding one is a line in `known` below, and what "auto" takes is in make_backend.
#include "dsalt/registry.hpp"

#include <charconv>
#include <cstdlib>
#include <optional>

#include "dsalt/errors.hpp"
#include "internal/factories.hpp"
#include "internal/module_loader.hpp"

namespace dsalt {
namespace {

struct Entry {
  std::string_view name;
  bool has_index;  // accepts ":N"
  std::unique_ptr<Backend> (*make)(int index, const BackendOptions& options);
  BackendInfo (*probe)(int index, const BackendOptions& options);
};

template <auto make>
BackendInfo probe_host(int, const BackendOptions& options) {
  const auto backend = make(options);
  return {std::string(backend->name()), true, backend->description()};
}

/// Never throws an Error: a backend that cannot be made, through a wrong DSALT_CPU_ISA say, is one that is unavailable.
BackendInfo probe(const Entry& entry, const BackendOptions& options) {
  try {
    return entry.probe(0, options);
  } catch (const Error& error) {
    return {std::string(entry.name), false, error.what()};
  }
}

const Entry known[] = {
    {"reference", false, [](int, const BackendOptions& o) { return internal::make_reference_backend(o); },
     probe_host<internal::make_reference_backend>},
    {"cpu", false, [](int, const BackendOptions& o) { return internal::make_cpu_backend(o); },
     probe_host<internal::make_cpu_backend>},
    {"cuda", true, internal::make_cuda_backend, internal::probe_cuda},
};

std::string known_names() {
  std::string names = "auto";
  for (const Entry& entry : known) names += ", " + std::string(entry.name) + (entry.has_index ? "[:N]" : "");
  return names;
}

[[noreturn]] void unknown(const char* source, std::string_view name) {
  throw InvalidArgument(std::string(source) + ": got \"" + std::string(name) + "\", need one of " + known_names());
}

/// "cuda:1" -> 1, "cuda" -> 0; empty when what follows the colon is no index.
std::optional<int> parse_index(std::string_view name, const Entry& entry) {
  if (name.size() == entry.name.size()) return 0;
  const std::string_view digits = name.substr(entry.name.size() + 1);
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc() || end != digits.data() + digits.size() || digits[0] == '-') return std::nullopt;
  return index;
}

}  // namespace

std::vector<BackendInfo> list_backends(const BackendOptions& options) {
  std::vector<BackendInfo> list;
  for (const Entry& entry : known) list.push_back(probe(entry, options));
  return list;
}

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  const char* source = "backend";
  if (name.empty()) {
    source = "DSALT_BACKEND";
    const char* variable = std::getenv("DSALT_BACKEND");
    name = variable && *variable ? variable : "auto";
  }
  if (name == "auto") {
    // Not the first available one: when cpu cannot be made, its error is the answer, and not the slow reference.
    if (internal::probe_cuda(0, options).available) return internal::make_cuda_backend(0, options);
    return internal::make_cpu_backend(options);
  }
  for (const Entry& entry : known) {
    const bool whole = name == entry.name;
    const bool indexed = entry.has_index && name.starts_with(std::string(entry.name) + ":");
    if (!whole && !indexed) continue;
    if (const auto index = parse_index(name, entry)) return entry.make(*index, options);
  }
  unknown(source, name);
}

}  // namespace dsalt
