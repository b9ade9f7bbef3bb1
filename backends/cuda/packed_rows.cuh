// Rows as whole vectors, for kernels that know no other layout: a tensor whose rows are not gets a copy whose are.
#pragma once

#include <optional>

#include "launch.cuh"
#include "vectors.cuh"
#include "walk.cuh"

namespace dsalt::cuda {

enum class Fill : std::uint8_t { now, later };

/// `to_copy`: from a tensor's rows of d elements to rows of `pitch`, filled with zeros; else back.
template <class T, bool to_copy>
__global__ void __launch_bounds__(256) packed_rows_kernel(Walk<1> rows, std::int64_t elements, std::int64_t d,
                                                          std::int64_t pitch, Row<T> tensor, T* copy) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= elements) return;
  std::int64_t row = index;
  const std::int64_t column = take_remainder(row, pitch);
  std::int64_t at[1];
  rows.offsets(row, at);
  T* const element = tensor.data + at[0] + column * tensor.step;
  if (to_copy)
    copy[index] = column < d ? *element : T{};
  else if (column < d)
    *element = copy[index];
}

/// A tensor whose rows along the last dimension consist of whole vectors of n elements (the last one may be filled up),
/// or an absent one. Copies live as long as this object.
class PackedRows {
 public:
  /// Fill::later: an output. What the copy then holds reaches the tensor through copy_back().
  PackedRows(const Context& context, const char* operation, const TensorView& tensor, int n, Fill fill = Fill::now)
      : PackedRows(context, operation, tensor, n, fill, rows_are_packed(tensor, n)) {}
  /// The same where the caller asks for more of a layout: `as_is` says whether the tensor has it.
  PackedRows(const Context& context, const char* operation, const TensorView& tensor, int n, Fill fill, bool as_is)
      : context_(context), operation_(operation), tensor_(tensor), view_(tensor) {
    if (as_is) return;
    const auto last = static_cast<std::size_t>(tensor.rank - 1);
    pitch_ = ceil_div(tensor.shape[last], n) * n;
    std::int64_t stride = pitch_;
    view_.strides[last] = 1;
    for (std::size_t dim = last; dim-- > 0; stride *= tensor.shape[dim]) view_.strides[dim] = stride;
    copy_.emplace(context, operation, stride * static_cast<std::int64_t>(size_of(tensor.dtype)));
    view_.data = copy_->data();
    if (fill == Fill::now) move<true>();
  }
  const TensorView& view() const { return view_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(view_.data);
  }
  void copy_back() const {
    if (copy_) move<false>();
  }

 private:
  template <bool to_copy>
  void move() const {
    for_floating(tensor_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto rows = walk_over(tensor_.rank - 1, tensor_);
      const std::int64_t elements = rows.size() * pitch_, d = tensor_.shape[static_cast<std::size_t>(tensor_.rank - 1)];
      launch(context_, operation_, packed_rows_kernel<T, to_copy>, ceil_div(elements, 256), 256, 0, rows, elements, d,
             pitch_, row_of<T>(tensor_), data<T>());
    });
  }

  const Context& context_;
  const char* operation_;
  TensorView tensor_, view_;
  std::int64_t pitch_ = 0;
  std::optional<Scratch<unsigned char>> copy_;
};

}  // namespace dsalt::cuda
