#include "suites/guards.hpp"

#include <algorithm>
#include <cstring>

#include "device_memory.hpp"
#include "internal/elements.hpp"
#include "suites/suite.hpp"

namespace dsalt::verification {
namespace {

constexpr std::int64_t margin = 256, alignment = 64;
/// Of outputs: a NaN in every floating dtype (accumulating onto it shows), and no index or -1.
constexpr std::byte sentinel_of(DType dtype) { return dtype == DType::i32 ? std::byte{0xa5} : std::byte{0xff}; }
constexpr std::byte nan_low{0xff}, nan_high{0x7f};  // around inputs: another NaN

}  // namespace

Guards::Buffer& Guards::make(TensorView& view, std::string_view name, std::byte even, std::byte odd) {
  const Extent extent = extent_of(view);
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  Buffer& buffer = buffers_.emplace_back();
  buffer.name = name;
  buffer.written = false;
  buffer.rows = all_rows;
  buffer.original = buffer.guarded = buffer.image = view;
  buffer.bytes.resize(static_cast<std::size_t>(extent.size() * size + 2 * margin + alignment));
  for (std::size_t n = 0; n < buffer.bytes.size(); ++n) buffer.bytes[n] = n % 2 == 0 ? even : odd;
  buffer.memory = backend_.allocate(buffer.bytes.size());
  // the first element keeps its alignment, so that the same code path runs
  const auto start = reinterpret_cast<std::uintptr_t>(buffer.memory.get());
  const auto before = static_cast<std::uintptr_t>(margin - extent.low * size);
  const auto shift = (reinterpret_cast<std::uintptr_t>(view.data) - start - before) % std::uintptr_t{alignment};
  buffer.guarded.data = static_cast<std::byte*>(buffer.memory.get()) + before + shift;
  buffer.image.data = buffer.bytes.data() + before + shift;
  buffer.image.device = Device{};
  view = buffer.guarded;
  return buffer;
}

void Guards::input(TensorView& view, std::string_view name) {
  if (!view.present()) return;
  Buffer& buffer = make(view, name, nan_low, nan_high);
  copy_elements(downloaded(backend_, buffer.original), buffer.image);
  buffer.before = buffer.bytes;
  upload(backend_, buffer.memory.get(), buffer.bytes.data(), buffer.bytes.size());
}

void Guards::output(TensorView& view, std::string_view name, std::int64_t rows) {
  if (!view.present()) return;
  Buffer& buffer = make(view, name, sentinel_of(view.dtype), sentinel_of(view.dtype));
  buffer.written = true;
  buffer.rows = rows;
  upload(backend_, buffer.memory.get(), buffer.bytes.data(), buffer.bytes.size());
}

void Guards::finish() {
  for (Buffer& buffer : buffers_) {
    download(backend_, buffer.bytes.data(), buffer.memory.get(), buffer.bytes.size());
    if (buffer.written)
      check_output(buffer);
    else
      check_input(buffer);
  }
}

void Guards::check_input(const Buffer& buffer) const {
  if (buffer.bytes != buffer.before) fail(buffer, "an input was written to");
}

void Guards::check_output(Buffer& buffer) const {
  const std::size_t size = size_of(buffer.image.dtype);
  const std::byte sentinel = sentinel_of(buffer.image.dtype);
  const std::int64_t rows = buffer.image.rank == 0 ? 1 : buffer.image.shape[0];
  const std::int64_t per_row = rows == 0 ? 0 : buffer.image.size() / rows;
  const std::int64_t written_rows = buffer.rows == all_rows ? rows : buffer.rows;
  const Tensor original = downloaded(backend_, buffer.original);
  std::int64_t element = 0, missing = 0, stray = 0;
  internal::for_each_element(
      [&](std::int64_t at, std::int64_t there) {
        std::byte* value = static_cast<std::byte*>(buffer.image.data) + at * static_cast<std::int64_t>(size);
        const bool touched = std::any_of(value, value + size, [&](std::byte b) { return b != sentinel; });
        const bool expected = element++ / std::max<std::int64_t>(per_row, 1) < written_rows;
        missing += expected && !touched;
        stray += touched && !expected;
        if (!touched) return;
        std::memcpy(static_cast<std::byte*>(original.view().data) + there * static_cast<std::int64_t>(size), value,
                    size);
        std::fill(value, value + size, sentinel);
      },
      buffer.image, original.view());
  upload_image(backend_, buffer.original, original);
  if (std::any_of(buffer.bytes.begin(), buffer.bytes.end(), [&](std::byte b) { return b != sentinel; }))
    fail(buffer, "bytes outside the output were written");
  if (missing > 0) fail(buffer, std::to_string(missing) + " elements of the output were never written");
  if (stray > 0) fail(buffer, std::to_string(stray) + " elements past the last sequence were written");
}

void Guards::fail(const Buffer& buffer, std::string_view what) const {
  throw CheckFailure(operation_ + ", " + buffer.name + ": " + std::string(what));
}

}  // namespace dsalt::verification
