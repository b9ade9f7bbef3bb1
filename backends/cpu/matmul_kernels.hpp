// The register tiles behind matmul.hpp, for one vector width. Included once by each matmul_<isa>.cpp, which is compiled
// for that instruction set; everything here has internal linkage and no standard library code, so that no instruction
// of a wider set can reach another translation unit.
#pragma once

#include <utility>

#include "matmul.hpp"

namespace dsalt::internal {
namespace {

template <class T, int bytes>
struct VectorOf {
  // may_alias and the element's alignment: loads and stores go to arrays of T at any address.
  typedef T Unaligned __attribute__((vector_size(bytes), aligned(alignof(T)), may_alias));
  typedef T Type __attribute__((vector_size(bytes)));
};

template <class T, int bytes>
struct Tiles {
  using Unaligned = typename VectorOf<T, bytes>::Unaligned;
  using Vector = typename VectorOf<T, bytes>::Type;
  static constexpr int lanes = bytes / static_cast<int>(sizeof(T));
  static constexpr std::int64_t dot_block = 512, accumulate_block = 128;

  static std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

  /// The first `count` < lanes elements, then zeros.
  static void load_part(const T* from, std::int64_t count, Vector& into) {
    T part[lanes] = {};
    for (std::int64_t l = 0; l < count; ++l) part[l] = from[l];
    into = *reinterpret_cast<const Unaligned*>(part);
  }

  /// Every lane l plus lane l + width: the upper half folded onto the lower one.
  template <int width, int... lane>
  static void fold(Vector& v, std::integer_sequence<int, lane...>) {
    v += __builtin_shufflevector(v, v, ((lane + width) % lanes)...);
  }

  /// Lanes in a fixed tree.
  template <int width = lanes / 2>
  static T lane_sum(Vector v) {
    if constexpr (width == 0) {
      return v[0];
    } else {
      fold<width>(v, std::make_integer_sequence<int, lanes>{});
      return lane_sum<width / 2>(v);
    }
  }

  template <int rows, int columns>
  static void dot_tile(std::int64_t k, const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T* c,
                       std::int64_t c_stride) {
    Vector sum[rows][columns] = {};
    std::int64_t at = 0;
    for (; at + lanes <= k; at += lanes) {
      Vector av[rows], bv[columns];
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) av[i] = *reinterpret_cast<const Unaligned*>(a + i * a_stride + at);
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) bv[j] = *reinterpret_cast<const Unaligned*>(b + j * b_stride + at);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < columns; ++j) sum[i][j] += av[i] * bv[j];
    }
    if (at < k) {
      Vector av[rows], bv[columns];
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) load_part(a + i * a_stride + at, k - at, av[i]);
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) load_part(b + j * b_stride + at, k - at, bv[j]);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < columns; ++j) sum[i][j] += av[i] * bv[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) c[i * c_stride + j] += lane_sum(sum[i][j]);
  }

  template <int rows, int columns>
  static void dot_rows(std::int64_t m, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
                       std::int64_t b_stride, T* c, std::int64_t c_stride) {
    std::int64_t i = 0;
    for (; i + rows <= m; i += rows)
      dot_tile<rows, columns>(k, a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride);
    for (; i < m; ++i) dot_tile<1, columns>(k, a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride);
  }

  template <int rows, int columns>
  static void dot(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
                  std::int64_t b_stride, T* c, std::int64_t c_stride) {
    for (std::int64_t at = 0; at < k; at += dot_block) {
      const std::int64_t part = smaller(dot_block, k - at);
      std::int64_t j = 0;
      for (; j + columns <= n; j += columns)
        dot_rows<rows, columns>(m, part, a + at, a_stride, b + j * b_stride + at, b_stride, c + j, c_stride);
      for (; j < n; ++j) dot_rows<rows, 1>(m, part, a + at, a_stride, b + j * b_stride + at, b_stride, c + j, c_stride);
    }
  }

  template <int rows, int columns>  // columns in vectors
  static void accumulate_tile(std::int64_t k, const T* a, std::int64_t a_row, std::int64_t a_column, const T* b,
                              std::int64_t b_stride, T* c, std::int64_t c_stride) {
    Vector sum[rows][columns] = {};
    for (std::int64_t at = 0; at < k; ++at) {
      Vector bv[columns];
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) bv[j] = *reinterpret_cast<const Unaligned*>(b + at * b_stride + j * lanes);
#pragma GCC unroll 8
      for (int i = 0; i < rows; ++i) {
        const T factor = a[i * a_row + at * a_column];
#pragma GCC unroll 8
        for (int j = 0; j < columns; ++j) sum[i][j] += factor * bv[j];
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < columns; ++j) {
        Unaligned* to = reinterpret_cast<Unaligned*>(c + i * c_stride + j * lanes);
        *to = *to + sum[i][j];
      }
  }

  /// The last count < lanes columns: the additions of accumulate_tile in each lane.
  static void accumulate_part(std::int64_t count, std::int64_t k, const T* a, std::int64_t a_column, const T* b,
                              std::int64_t b_stride, T* c) {
    Vector sum = {};
    for (std::int64_t at = 0; at < k; ++at) {
      Vector bv;
      load_part(b + at * b_stride, count, bv);
      sum += a[at * a_column] * bv;
    }
    T part[lanes];
    *reinterpret_cast<Unaligned*>(part) = sum;
    for (std::int64_t l = 0; l < count; ++l) c[l] += part[l];
  }

  template <int rows, int columns>
  static void accumulate_rows(std::int64_t m, std::int64_t k, const T* a, std::int64_t a_row, std::int64_t a_column,
                              const T* b, std::int64_t b_stride, T* c, std::int64_t c_stride) {
    std::int64_t i = 0;
    for (; i + rows <= m; i += rows)
      accumulate_tile<rows, columns>(k, a + i * a_row, a_row, a_column, b, b_stride, c + i * c_stride, c_stride);
    for (; i < m; ++i)
      accumulate_tile<1, columns>(k, a + i * a_row, a_row, a_column, b, b_stride, c + i * c_stride, c_stride);
  }

  template <int rows, int columns>
  static void accumulate(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_row,
                         std::int64_t a_column, const T* b, std::int64_t b_stride, T* c, std::int64_t c_stride) {
    for (std::int64_t at = 0; at < k; at += accumulate_block) {
      const std::int64_t part = smaller(accumulate_block, k - at);
      const T* a_part = a + at * a_column;
      const T* b_part = b + at * b_stride;
      std::int64_t j = 0;
      for (; j + columns * lanes <= n; j += columns * lanes)
        accumulate_rows<rows, columns>(m, part, a_part, a_row, a_column, b_part + j, b_stride, c + j, c_stride);
      for (; j + lanes <= n; j += lanes)
        accumulate_rows<rows, 1>(m, part, a_part, a_row, a_column, b_part + j, b_stride, c + j, c_stride);
      if (j == n) continue;
      for (std::int64_t i = 0; i < m; ++i)
        accumulate_part(n - j, part, a_part + i * a_row, a_column, b_part + j, b_stride, c + i * c_stride + j);
    }
  }
};

}  // namespace
}  // namespace dsalt::internal
