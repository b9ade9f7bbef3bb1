// Loads the CUDA backend module on demand and says honestly why it cannot.
#pragma once

#include <memory>
#include <string>

#include "dsalt/backend.hpp"
#include "dsalt/registry.hpp"

namespace dsalt::internal {

/// State of device `index` of the CUDA module: available with a description, or the reason why not.
BackendInfo probe_cuda(int index, const BackendOptions& options);

/// Throws BackendUnavailable with probe_cuda's reason.
std::unique_ptr<Backend> make_cuda_backend(int index, const BackendOptions& options);

}  // namespace dsalt::internal
