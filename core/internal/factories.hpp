// The constructors that the registry knows; each is defined in its backend's own folder.
#pragma once

#include <memory>

#include "dsalt/backend.hpp"

namespace dsalt::internal {

std::unique_ptr<Backend> make_reference_backend(const BackendOptions& options);
std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);

}  // namespace dsalt::internal
