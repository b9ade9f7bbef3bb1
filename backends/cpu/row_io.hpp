// Rows of strided tensors as contiguous float32, for the row kernels: unit-stride float32 is used where it lies, unit
// strides of the 16-bit types are converted by the kernels, everything else element by element (rows.hpp).
#pragma once

#include <vector>

#include "kernels.hpp"
#include "row_kernels.hpp"
#include "rows.hpp"

namespace dsalt::internal {

/// `count` rows of `length` floats, each on a cache line of its own.
class RowBuffers {
 public:
  RowBuffers(std::int64_t count, std::int64_t length)
      : stride_((length + line - 1) / line * line), storage_(count * stride_ + line) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) / sizeof(float);
    first_ = static_cast<std::int64_t>((line - address % line) % line);
  }
  float* operator[](std::int64_t row) { return storage_.data() + first_ + row * stride_; }
  std::int64_t stride() const { return stride_; }

 private:
  static constexpr std::int64_t line = 16;
  std::int64_t stride_, first_ = 0;
  std::vector<float> storage_;
};

class RowIo {
 public:
  explicit RowIo(const Kernels& kernels) : rows(row_kernels_for(kernels)), kernels_(kernels) {}

  const RowKernels& rows;

  /// Whether the elements of a row are contiguous float32.
  static bool in_place(const TensorView& view, std::int64_t stride, std::int64_t count) {
    return view.present() && view.dtype == DType::f32 && (stride == 1 || count <= 1);
  }

  /// `count` elements from `offset` on, `stride` apart: where they lie, or converted into `buffer`.
  const float* read(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
                    float* buffer) const {
    if (stride != 1 && count > 1) {
      load_row(view, offset, stride, count, buffer);
      return buffer;
    }
    switch (view.dtype) {
      case DType::f32: return view.at<float>(offset);
      case DType::bf16: rows.widen_bf16(view.at<std::uint16_t>(offset), buffer, count); break;
      case DType::f16: kernels_.widen_f16(view.at<std::uint16_t>(offset), buffer, count); break;
      default: load_row(view, offset, stride, count, buffer);
    }
    return buffer;
  }

  /// Where to compute those elements of an output: in place, or in `buffer`. An absent view takes the buffer.
  float* target(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
                float* buffer) const {
    return in_place(view, stride, count) ? view.at<float>(offset) : buffer;
  }

  /// Stores what was computed at target(...) with one rounding.
  void write(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
             const float* values) const {
    if (view.present() && !in_place(view, stride, count)) write_all(view, offset, stride, count, values);
  }

  /// Stores values that were computed elsewhere.
  void write_all(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
                 const float* values) const {
    if (view.dtype == DType::bf16 && stride == 1)
      kernels_.narrow_bf16(values, view.at<std::uint16_t>(offset), count);
    else if (view.dtype == DType::f16 && stride == 1)
      kernels_.narrow_f16(values, view.at<std::uint16_t>(offset), count);
    else
      store_row(view, offset, stride, count, values);
  }

 private:
  const Kernels& kernels_;
};

}  // namespace dsalt::internal
