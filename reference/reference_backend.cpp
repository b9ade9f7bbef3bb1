#include "reference_backend.hpp"

#include <Eigen/Core>

#include "internal/factories.hpp"

namespace dsalt::internal {

ReferenceBackend::ReferenceBackend(const BackendOptions&) {}

std::string ReferenceBackend::description() const {
  return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." + std::to_string(EIGEN_MAJOR_VERSION) + "." +
         std::to_string(EIGEN_MINOR_VERSION) + ", double precision, one thread";
}

Reproducibility ReferenceBackend::reproducibility(Operation, Direction direction) const {
  // Gradients sum over all queries or lists of a sequence: a part of it cannot give the same bytes.
  return {.run = true, .threads = true, .batch = true, .prefill = direction == Direction::forward};
}

Support ReferenceBackend::supports(Operation, Direction, DType) const { return Support::yes(); }

std::unique_ptr<Backend> make_reference_backend(const BackendOptions& options) {
  return std::make_unique<ReferenceBackend>(options);
}

}  // namespace dsalt::internal
