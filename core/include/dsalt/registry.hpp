// Choosing a backend at run time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/backend.hpp"
#include "dsalt/export.hpp"

namespace dsalt {

/// One line of `list_backends`: every known backend is always listed.
struct BackendInfo {
  std::string name;  // "reference", "cpu", "cuda"
  bool available = false;
  std::string detail;  // available: what would run; otherwise the reason it cannot
};

DSALT_API std::vector<BackendInfo> list_backends(const BackendOptions& options = {});

/// `name` is "reference", "cpu", "cuda", "cuda:N", "auto" or "" (the environment variable DSALT_BACKEND, or "auto").
/// "auto" takes cuda when it is available, else cpu; the returned backend's name() says what was chosen.
/// Throws InvalidArgument for an unknown name, BackendUnavailable with the reason for one that cannot run here:
/// nothing is ever substituted for a backend that was asked for by name.
DSALT_API std::unique_ptr<Backend> make_backend(std::string_view name = "", const BackendOptions& options = {});

}  // namespace dsalt
