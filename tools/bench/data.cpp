#include "bench/data.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace dsalt::benchmark {
namespace {

/// SplitMix64: every counter gives 64 bits that look random.
std::uint64_t mixed(std::uint64_t counter) {
  std::uint64_t z = counter * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

bool on_host(const Backend& backend) { return backend.device().type == DeviceType::cpu; }

/// The block of random numbers in the bytes of `dtype`.
std::vector<char> random_block(DType dtype, std::uint64_t seed) {
  constexpr std::int64_t length = 65521;  // a prime: rows of any width start somewhere else in the block
  std::vector<float> numbers(length);
  for (std::size_t n = 0; n < numbers.size(); ++n)
    numbers[n] = static_cast<float>(mixed(seed << 32 | n) >> 40) * 0x1p-23f - 1;
  std::vector<char> bytes(numbers.size() * size_of(dtype));
  copy_elements(TensorView::of(numbers.data(), {length}), TensorView::of(bytes.data(), dtype, {length}));
  return bytes;
}

/// Writes `block` again and again. A device gets it in pieces, without a copy of the whole in host memory.
void repeat(Backend& backend, const std::vector<char>& block, void* to, std::size_t bytes) {
  if (on_host(backend)) {
    for (std::size_t at = 0; at < bytes; at += block.size())
      std::memcpy(static_cast<char*>(to) + at, block.data(), std::min(block.size(), bytes - at));
    return;
  }
  constexpr std::size_t piece_bytes = std::size_t{64} << 20;
  const std::size_t wanted = std::min(bytes, piece_bytes), repeats = (wanted + block.size() - 1) / block.size();
  std::vector<char> piece;
  piece.reserve(repeats * block.size());
  for (std::size_t n = 0; n < repeats; ++n) piece.insert(piece.end(), block.begin(), block.end());
  for (std::size_t at = 0; at < bytes; at += piece.size())
    backend.copy_from_host(static_cast<char*>(to) + at, piece.data(), std::min(piece.size(), bytes - at));
  backend.synchronize();  // `piece` dies here
}

std::size_t bytes_of(const TensorView& view) { return static_cast<std::size_t>(view.size()) * size_of(view.dtype); }

}  // namespace

std::int64_t draw(std::uint64_t counter, std::int64_t count) {
  return static_cast<std::int64_t>(((mixed(counter) >> 32) * static_cast<std::uint64_t>(count)) >> 32);
}

Tensor random_tensor(Backend& backend, std::span<const std::int64_t> shape, DType dtype, std::uint64_t seed) {
  Tensor tensor = empty(backend, shape, dtype);
  repeat(backend, random_block(dtype, seed), tensor.view().data, bytes_of(tensor));
  return tensor;
}

Tensor output_tensor(Backend& backend, std::span<const std::int64_t> shape, DType dtype) {
  Tensor tensor = empty(backend, shape, dtype);
  repeat(backend, std::vector<char>(std::size_t{1} << 20), tensor.view().data, bytes_of(tensor));
  return tensor;
}

Tensor on_device(Backend& backend, const Tensor& host) {
  if (on_host(backend) || !host.present()) return host;
  const TensorView& view = host;
  Tensor copy =
      empty(backend, std::span<const std::int64_t>(view.shape.data(), static_cast<std::size_t>(view.rank)), view.dtype);
  if (bytes_of(view) > 0) backend.copy_from_host(copy.view().data, view.data, bytes_of(view));
  backend.synchronize();  // the caller may let go of `host`
  return copy;
}

Tensor draw_windows(const Shape& shape) {
  if (shape.window < 0) return {};
  Tensor tensor = Tensor::empty({shape.batch, shape.heads, shape.queries}, DType::i32);
  auto* window = tensor.view().at<std::int32_t>(0);
  const std::int64_t span = shape.window - shape.window_low + 1;
  for (std::int64_t n = 0; n < tensor.view().size(); ++n) {
    const auto counter = std::uint64_t{7} << 48 | static_cast<std::uint64_t>(n);
    std::int64_t size = shape.window;
    if (shape.windows == Windows::uniform) size = shape.window_low + draw(counter, span);
    if (shape.windows == Windows::bimodal) size = draw(counter, 2) == 0 ? shape.window_low : shape.window;
    window[n] = static_cast<std::int32_t>(size);
  }
  return tensor;
}

Tensor draw_landmarks(const Shape& shape) {
  const std::int64_t lists = shape.chunk > 0 ? (shape.queries + shape.chunk - 1) / shape.chunk : 1;
  Tensor tensor = Tensor::empty({shape.batch, shape.list_heads(), lists, shape.landmarks}, DType::i32);
  auto* slot = tensor.view().at<std::int32_t>(0);
  for (std::int64_t n = 0; n < tensor.view().size(); ++n) {
    const std::int64_t k = n % shape.landmarks, t = n / shape.landmarks % lists;
    const std::int64_t candidates = shape.chunk > 0 ? std::min(shape.keys, t * shape.chunk) : shape.keys;
    const std::int64_t begin = candidates * k / shape.landmarks, end = candidates * (k + 1) / shape.landmarks;
    const auto counter = std::uint64_t{11} << 48 | static_cast<std::uint64_t>(n);
    if (candidates <= shape.landmarks)
      slot[n] = static_cast<std::int32_t>(k < candidates ? k : -1);
    else
      slot[n] = static_cast<std::int32_t>(begin + draw(counter, end - begin));
  }
  return tensor;
}

Tensor draw_page_table(const Shape& shape) {
  Tensor tensor = Tensor::empty({shape.batch, shape.pages()}, DType::i32);
  auto* page = tensor.view().at<std::int32_t>(0);
  for (std::int64_t n = 0; n < tensor.view().size(); ++n) {
    const std::int64_t other = draw(std::uint64_t{17} << 48 | static_cast<std::uint64_t>(n), n + 1);
    page[n] = page[other];
    page[other] = static_cast<std::int32_t>(n);
  }
  return tensor;
}

Tensor draw_labels(std::int64_t rows, std::int64_t classes) {
  Tensor tensor = Tensor::empty({rows}, DType::i32);
  for (std::int64_t n = 0; n < rows; ++n)
    *tensor.view().at<std::int32_t>(n) =
        static_cast<std::int32_t>(draw(std::uint64_t{13} << 48 | static_cast<std::uint64_t>(n), classes));
  return tensor;
}

}  // namespace dsalt::benchmark
