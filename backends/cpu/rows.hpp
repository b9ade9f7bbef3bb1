// Rows of strided tensors as float32 buffers, and the walk over the leading dimensions of several tensors at once.
//
// Operations convert a row to float32, compute on unit-stride buffers that the compiler vectorises, and store once with
// one rounding. The 16-bit conversions here give the bits of dsalt/dtype.hpp, written without branches.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "dsalt/tensor.hpp"

namespace dsalt::internal {

inline float widen(float value) { return value; }
inline float widen(double value) { return static_cast<float>(value); }
inline float widen(bfloat16 value) { return to_float(value); }
inline float widen(float16 value) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
  // The exponent is rebiased by an exact multiplication, which also normalises subnormals.
  std::uint32_t bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  bits |= magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(bits | static_cast<std::uint32_t>(value.bits & 0x8000u) << 16);
}

template <class T>
T narrowed(float value);
template <>
inline float narrowed<float>(float value) {
  return value;
}
template <>
inline double narrowed<double>(float value) {
  return static_cast<double>(value);
}
template <>
inline bfloat16 narrowed<bfloat16>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x0040u : rounded)};
}
template <>
inline float16 narrowed<float16>(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // One ulp of 0.5 is 2^-24, the step of float16 subnormals: the addition rounds to it.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
  std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;
  half = magnitude > 0x7f800000u ? nan : half;
  return {static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000u))};
}

template <class T>
void load_strided(const T* source, std::int64_t stride, std::int64_t count, float* into) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) into[i] = widen(source[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) into[i] = widen(source[i * stride]);
  }
}

template <class T>
void store_strided(const float* values, T* into, std::int64_t stride, std::int64_t count) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) into[i] = narrowed<T>(values[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) into[i * stride] = narrowed<T>(values[i]);
  }
}

/// `count` elements from `offset` (in elements of the view's dtype), `stride` apart.
inline void load_row(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
                     float* into) {
  switch (view.dtype) {
    case DType::f32: return load_strided(view.at<float>(offset), stride, count, into);
    case DType::bf16: return load_strided(view.at<bfloat16>(offset), stride, count, into);
    case DType::f16: return load_strided(view.at<float16>(offset), stride, count, into);
    case DType::f64: return load_strided(view.at<double>(offset), stride, count, into);
    case DType::i32: return;  // labels and indices are read as integers
  }
}

inline void store_row(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
                      const float* values) {
  switch (view.dtype) {
    case DType::f32: return store_strided(values, view.at<float>(offset), stride, count);
    case DType::bf16: return store_strided(values, view.at<bfloat16>(offset), stride, count);
    case DType::f16: return store_strided(values, view.at<float16>(offset), stride, count);
    case DType::f64: return store_strided(values, view.at<double>(offset), stride, count);
    case DType::i32: return;
  }
}

/// The same elements where they lie when they are unit-stride float32, else converted into `buffer`.
inline const float* float_row(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t count,
                              float* buffer) {
  if (view.dtype == DType::f32 && (stride == 1 || count <= 1)) return view.at<float>(offset);
  load_row(view, offset, stride, count, buffer);
  return buffer;
}

/// Element offsets of `count` tensors along common leading dimensions, with neighbouring dimensions merged where every
/// tensor allows it. An absent view takes part with offset 0.
template <int count>
struct RowWalk {
  int rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::array<std::int64_t, max_rank>, count> strides{};

  std::int64_t size() const {
    std::int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= shape[d];
    return product;
  }
  std::array<std::int64_t, count> offsets(std::int64_t index) const {
    std::array<std::int64_t, count> result{};
    for (int d = rank - 1; d >= 0; --d) {
      const std::int64_t at = d == 0 ? index : index % shape[d];
      if (d != 0) index /= shape[d];
      for (int n = 0; n < count; ++n) result[n] += at * strides[n][d];
    }
    return result;
  }
};

/// Over the first `rank` dimensions of `shaped` (its shape rules); the other views have at least those dimensions.
template <class... Views>
auto row_walk(int rank, const TensorView& shaped, const Views&... others) {
  constexpr int count = 1 + static_cast<int>(sizeof...(others));
  const TensorView* views[count] = {&shaped, &others...};
  RowWalk<count> walk;
  for (int d = 0; d < rank; ++d) {
    if (shaped.shape[d] == 1) continue;
    bool merges = walk.rank > 0;
    for (int n = 0; n < count && merges; ++n)
      merges = walk.strides[n][walk.rank - 1] == views[n]->strides[d] * shaped.shape[d];
    if (!merges) walk.rank += 1;
    const int to = walk.rank - 1;
    walk.shape[to] = merges ? walk.shape[to] * shaped.shape[d] : shaped.shape[d];
    for (int n = 0; n < count; ++n) walk.strides[n][to] = views[n]->strides[d];
  }
  return walk;
}

/// Element-by-element work on equally shaped views, cut into pieces of at most `piece` elements along the innermost
/// merged dimension: for contiguous tensors of any rank, plain consecutive pieces.
template <int count>
struct PieceWalk {
  static constexpr std::int64_t piece = 1024;
  RowWalk<count> outer;
  std::int64_t length = 1, per_row = 1;  // inner elements, pieces of one inner row
  std::array<std::int64_t, count> inner_strides{};

  std::int64_t size() const { return outer.size() * per_row; }
  std::int64_t extent(std::int64_t index) const { return std::min(piece, length - index % per_row * piece); }
  std::array<std::int64_t, count> offsets(std::int64_t index) const {
    auto result = outer.offsets(index / per_row);
    for (int n = 0; n < count; ++n) result[n] += index % per_row * piece * inner_strides[n];
    return result;
  }
};

template <class... Views>
auto piece_walk(const TensorView& first, const Views&... others) {
  constexpr int count = 1 + static_cast<int>(sizeof...(others));
  PieceWalk<count> walk{row_walk(first.rank, first, others...)};
  if (walk.outer.rank > 0) {
    const int last = --walk.outer.rank;
    walk.length = walk.outer.shape[last];
    for (int n = 0; n < count; ++n) walk.inner_strides[n] = walk.outer.strides[n][last];
  }
  walk.per_row = (walk.length + walk.piece - 1) / walk.piece;
  return walk;
}

}  // namespace dsalt::internal
