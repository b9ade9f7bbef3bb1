#include "dsalt/tensor.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"
#include "internal/huge_pages.hpp"

namespace dsalt {
namespace {

void check_dim(const TensorView& view, int dim, const char* method) {
  if (dim < 0 || dim >= view.rank)
    throw InvalidArgument(std::string(method) + ": dim: got " + std::to_string(dim) + ", need 0 to " +
                          std::to_string(view.rank - 1) + " for " + to_string(view));
}

std::byte* advance(const TensorView& view, std::int64_t elements) {
  if (view.data == nullptr || view.size() == 0) return static_cast<std::byte*>(view.data);
  return static_cast<std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(view.dtype));
}

TensorView make_view(void* data, DType dtype, std::span<const std::int64_t> shape, Device device) {
  if (shape.size() > max_rank)
    throw InvalidArgument("shape: got rank " + std::to_string(shape.size()) + ", need at most " +
                          std::to_string(max_rank));
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    const std::int64_t length = shape[static_cast<std::size_t>(dim)];
    if (length < 0) throw InvalidArgument("shape: got " + shape_string(shape) + ", need no negative length");
    const auto n = static_cast<std::size_t>(dim);
    view.shape[n] = length;
    view.strides[n] = stride;
    if (length > 0 && __builtin_mul_overflow(stride, length, &stride))
      throw InvalidArgument("shape: got " + shape_string(shape) + ", need a size below 2^63");
  }
  return view;
}

std::size_t bytes_of(const TensorView& view) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(view.size(), static_cast<std::int64_t>(size_of(view.dtype)), &bytes))
    throw InvalidArgument("shape: got " + to_string(view) + ", need fewer than 2^63 bytes");
  return static_cast<std::size_t>(bytes);
}

}  // namespace

std::string to_string(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

std::string shape_string(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t n = 0; n < shape.size(); ++n) text += (n ? "," : "") + std::to_string(shape[n]);
  return text + "]";
}

std::string to_string(const TensorView& view) {
  if (!view.present()) return "absent";
  const auto rank = static_cast<std::size_t>(view.rank);
  std::string text = std::string(name_of(view.dtype)) + " " + shape_string({view.shape.data(), rank});
  if (!view.contiguous()) text += " strides " + shape_string({view.strides.data(), rank});
  if (view.device.type != DeviceType::cpu) text += " on " + to_string(view.device);
  return text;
}

std::int64_t TensorView::size() const {
  if (rank < 0) return 0;
  std::int64_t elements = 1;
  for (int dim = 0; dim < rank; ++dim) elements *= shape[static_cast<std::size_t>(dim)];
  return elements;
}

bool TensorView::contiguous() const {
  if (size() == 0) return true;
  std::int64_t stride = 1;
  for (int dim = rank - 1; dim >= 0; --dim) {
    const auto n = static_cast<std::size_t>(dim);
    if (shape[n] != 1 && strides[n] != stride) return false;
    stride *= shape[n];
  }
  return true;
}

TensorView TensorView::select(int dim, std::int64_t index) const {
  check_dim(*this, dim, "select");
  const auto at_dim = static_cast<std::size_t>(dim);
  if (index < 0 || index >= shape[at_dim])
    throw InvalidArgument("select: index: got " + std::to_string(index) + ", need 0 to " +
                          std::to_string(shape[at_dim] - 1) + " for " + to_string(*this));
  TensorView view = *this;
  view.data = advance(*this, index * strides[at_dim]);
  for (auto n = at_dim; n + 1 < static_cast<std::size_t>(rank); ++n) {
    view.shape[n] = shape[n + 1];
    view.strides[n] = strides[n + 1];
  }
  view.rank = rank - 1;
  return view;
}

TensorView TensorView::narrow(int dim, std::int64_t start, std::int64_t length) const {
  check_dim(*this, dim, "narrow");
  const auto n = static_cast<std::size_t>(dim);
  if (start < 0 || length < 0 || length > shape[n] - start)
    throw InvalidArgument("narrow: got start " + std::to_string(start) + " and length " + std::to_string(length) +
                          ", need them inside dimension " + std::to_string(dim) + " of " + to_string(*this));
  TensorView view = *this;
  if (length > 0) view.data = advance(*this, start * strides[n]);
  view.shape[n] = length;
  return view;
}

TensorView TensorView::transpose(int a, int b) const {
  check_dim(*this, a, "transpose");
  check_dim(*this, b, "transpose");
  TensorView view = *this;
  std::swap(view.shape[static_cast<std::size_t>(a)], view.shape[static_cast<std::size_t>(b)]);
  std::swap(view.strides[static_cast<std::size_t>(a)], view.strides[static_cast<std::size_t>(b)]);
  return view;
}

TensorView TensorView::of(void* data, DType dtype, std::span<const std::int64_t> shape, Device device) {
  return make_view(data, dtype, shape, device);
}

Tensor Tensor::empty(std::span<const std::int64_t> shape, DType dtype) {
  TensorView view = make_view(nullptr, dtype, shape, {});
  const std::size_t bytes = bytes_of(view);
  constexpr std::size_t alignment = 64;
  if (bytes > std::numeric_limits<std::size_t>::max() - alignment) throw std::bad_alloc();
  const std::size_t rounded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) throw std::bad_alloc();
  internal::advise_huge_pages(data, rounded);
  std::shared_ptr<void> storage(data, std::free);
  view.data = data;
  return {std::move(storage), view};
}

Tensor Tensor::zeros(std::span<const std::int64_t> shape, DType dtype) {
  Tensor tensor = empty(shape, dtype);
  std::memset(tensor.view().data, 0, bytes_of(tensor.view()));
  return tensor;
}

void copy_elements(const TensorView& source, const TensorView& destination) {
  for (const TensorView* view : {&source, &destination})
    if (!view->present() || view->device.type != DeviceType::cpu)
      throw InvalidArgument("copy_elements: got " + to_string(*view) + ", need a tensor in host memory");
  bool same_shape = source.rank == destination.rank;
  for (int dim = 0; same_shape && dim < source.rank; ++dim)
    same_shape = source.shape[static_cast<std::size_t>(dim)] == destination.shape[static_cast<std::size_t>(dim)];
  if (!same_shape)
    throw InvalidArgument("copy_elements: destination: got " + to_string(destination) + ", need the shape of " +
                          to_string(source));
  if (is_floating(source.dtype) != is_floating(destination.dtype))
    throw InvalidArgument("copy_elements: destination: got " + std::string(name_of(destination.dtype)) +
                          ", need a dtype that " + std::string(name_of(source.dtype)) + " converts to");
  if (source.dtype == destination.dtype) {
    const std::size_t bytes = size_of(source.dtype);
    if (source.contiguous() && destination.contiguous()) {
      if (source.size() > 0) std::memcpy(destination.data, source.data, bytes_of(source));
      return;
    }
    auto* from = static_cast<const std::byte*>(source.data);
    auto* to = static_cast<std::byte*>(destination.data);
    const auto step = static_cast<std::int64_t>(bytes);
    internal::for_each_element(
        [&](std::int64_t a, std::int64_t b) { std::memcpy(to + b * step, from + a * step, bytes); }, source,
        destination);
    return;
  }
  internal::for_each_element(
      [&](std::int64_t a, std::int64_t b) { internal::store_double(destination, b, internal::load_double(source, a)); },
      source, destination);
}

}  // namespace dsalt
