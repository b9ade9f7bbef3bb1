// Reading and writing single host elements of any floating dtype, and walking strided views.
#pragma once

#include <cstdint>
#include <utility>

#include "dsalt/errors.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt::internal {

inline double load_double(const TensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::f64: return *view.at<double>(offset);
    case DType::f32: return static_cast<double>(*view.at<float>(offset));
    case DType::bf16: return static_cast<double>(to_float(*view.at<bfloat16>(offset)));
    case DType::f16: return static_cast<double>(to_float(*view.at<float16>(offset)));
    case DType::i32: return static_cast<double>(*view.at<std::int32_t>(offset));
  }
  return 0;
}

/// Rounds once, to nearest even. int32 is not a target: indices are written as integers.
inline void store_double(const TensorView& view, std::int64_t offset, double value) {
  switch (view.dtype) {
    case DType::f64: *view.at<double>(offset) = value; return;
    case DType::f32: *view.at<float>(offset) = static_cast<float>(value); return;
    case DType::bf16: *view.at<bfloat16>(offset) = to_bfloat16(value); return;
    case DType::f16: *view.at<float16>(offset) = to_float16(value); return;
    case DType::i32: throw InvalidArgument("store_double: int32 is not a floating dtype");
  }
}

inline std::int32_t load_i32(const TensorView& view, std::int64_t index) {
  return *view.at<std::int32_t>(index * view.strides[0]);
}

/// Calls body(offset of a, offset of b, ...) for every element of equally shaped views, in row-major order.
template <class Body, class... Views>
void for_each_element(Body&& body, const TensorView& first, const Views&... rest) {
  constexpr int count = 1 + static_cast<int>(sizeof...(rest));
  const TensorView* views[count] = {&first, &rest...};
  if (first.size() == 0) return;
  std::int64_t index[max_rank] = {};
  std::int64_t offsets[count] = {};
  for (;;) {
    [&]<int... n>(std::integer_sequence<int, n...>) { body(offsets[n]...); }
    (std::make_integer_sequence<int, count>{});
    int dim = first.rank - 1;
    for (; dim >= 0; --dim) {
      for (int n = 0; n < count; ++n) offsets[n] += views[n]->strides[dim];
      if (++index[dim] < first.shape[dim]) break;
      for (int n = 0; n < count; ++n) offsets[n] -= index[dim] * views[n]->strides[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace dsalt::internal
