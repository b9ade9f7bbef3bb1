// Bytes between host memory and a backend's memory, for views of any strides. After every call the copy is done: host
// memory may be freed or read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsalt/backend.hpp"

namespace dsalt::verification {

/// Lowest and one past the highest element offset that a view touches; {0, 0} when it has no element.
struct Extent {
  std::int64_t low = 0, high = 0;
  std::int64_t size() const { return high - low; }
};
Extent extent_of(const TensorView& view);

void upload(Backend& backend, void* destination, const void* host, std::size_t bytes);
void download(Backend& backend, void* host, const void* source, std::size_t bytes);

/// A host copy of everything between the view's first and last byte, seen through the same shape and strides.
Tensor downloaded(Backend& backend, const TensorView& view);
/// Writes such a copy back, the bytes between the elements included.
void upload_image(Backend& backend, const TensorView& view, const Tensor& image);

/// A host tensor in the backend's memory with its strides and its place within 64 bytes, so that the same code paths
/// run; between its elements lie NaNs.
Tensor uploaded(Backend& backend, const TensorView& host);

}  // namespace dsalt::verification
