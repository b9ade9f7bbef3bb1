#include "device_memory.hpp"

#include <cstdint>
#include <cstring>

namespace dsalt::verification {
namespace {

constexpr std::size_t alignment = 64;

std::size_t bytes_of(const TensorView& view) {
  return static_cast<std::size_t>(extent_of(view).size()) * size_of(view.dtype);
}

/// Where the view's lowest byte is.
std::byte* begin_of(const TensorView& view) {
  return static_cast<std::byte*>(view.data) + extent_of(view).low * static_cast<std::int64_t>(size_of(view.dtype));
}

/// The same shape and strides over other memory, which starts with the lowest element.
TensorView moved(const TensorView& view, void* begin, Device device) {
  TensorView other = view;
  other.data = static_cast<std::byte*>(begin) - extent_of(view).low * static_cast<std::int64_t>(size_of(view.dtype));
  other.device = device;
  return other;
}

Tensor image_of(const TensorView& view) {
  const Tensor bytes = Tensor::empty({extent_of(view).size()}, view.dtype);
  return {bytes.storage(), moved(view, bytes.view().data, Device{})};
}

}  // namespace

Extent extent_of(const TensorView& view) {
  if (view.size() == 0) return {};
  Extent extent{0, 1};
  for (int dim = 0; dim < view.rank; ++dim) {
    const auto n = static_cast<std::size_t>(dim);
    const std::int64_t reach = (view.shape[n] - 1) * view.strides[n];
    (reach < 0 ? extent.low : extent.high) += reach;
  }
  return extent;
}

void upload(Backend& backend, void* destination, const void* host, std::size_t bytes) {
  if (bytes > 0) backend.copy_from_host(destination, host, bytes);
  backend.synchronize();
}

void download(Backend& backend, void* host, const void* source, std::size_t bytes) {
  if (bytes > 0) backend.copy_to_host(host, source, bytes);
  backend.synchronize();
}

Tensor downloaded(Backend& backend, const TensorView& view) {
  Tensor image = image_of(view);
  download(backend, begin_of(image), begin_of(view), bytes_of(view));
  return image;
}

void upload_image(Backend& backend, const TensorView& view, const Tensor& image) {
  upload(backend, begin_of(view), begin_of(image), bytes_of(view));
}

Tensor uploaded(Backend& backend, const TensorView& host) {
  const Tensor image = image_of(host);
  std::memset(begin_of(image), 0xff, bytes_of(host));
  copy_elements(host, image);
  std::shared_ptr<void> memory = backend.allocate(bytes_of(host) + alignment);
  const auto start = reinterpret_cast<std::uintptr_t>(memory.get());
  const auto shift = (reinterpret_cast<std::uintptr_t>(begin_of(host)) - start) % alignment;
  const TensorView view = moved(host, static_cast<std::byte*>(memory.get()) + shift, backend.device());
  upload_image(backend, view, image);
  return {std::move(memory), view};
}

}  // namespace dsalt::verification
