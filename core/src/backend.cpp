#include "dsalt/backend.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "dsalt/errors.hpp"

namespace dsalt {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::attention: return "attention";
    case Operation::merge: return "merge";
    case Operation::window_sizes: return "window_sizes";
    case Operation::energies: return "energies";
    case Operation::select_landmarks: return "select_landmarks";
    case Operation::rmsnorm: return "rmsnorm";
    case Operation::rope: return "rope";
    case Operation::swiglu: return "swiglu";
    case Operation::cross_entropy: return "cross_entropy";
    case Operation::adamw: return "adamw";
  }
  return "unknown";
}

Backend::~Backend() = default;

Support Backend::supports(const AttentionProblem&, const AttentionInputs& inputs, Direction direction) const {
  if (inputs.page_table.present() && direction == Direction::backward)
    return Support::no("a paged cache (page_table) has no backward pass");
  return supports(Operation::attention, direction, inputs.q.dtype);
}

std::shared_ptr<void> Backend::allocate(std::size_t bytes) {
  return Tensor::empty({static_cast<std::int64_t>((bytes + 3) / 4)}, DType::i32).storage();
}

void Backend::copy_to_host(void* host, const void* source, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, source, bytes);
}

void Backend::copy_from_host(void* destination, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(destination, host, bytes);
}

void Backend::synchronize() {}

std::optional<MemoryUse> Backend::memory_use(bool) { return {}; }

Tensor empty(Backend& backend, std::span<const std::int64_t> shape, DType dtype) {
  TensorView view = TensorView::of(nullptr, dtype, shape, backend.device());
  std::shared_ptr<void> storage = backend.allocate(static_cast<std::size_t>(view.size()) * size_of(dtype));
  view.data = storage.get();
  return {std::move(storage), view};
}

}  // namespace dsalt
