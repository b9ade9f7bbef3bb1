// The matrix products of attention, on tiles of 64 rows in shared memory:
//
//   scores  S += A B^T      A, B [64,width]          S [64,64] spread over the threads' registers
//   sums    O += P B        P like S, B [64,width]   O [64,width] likewise
//
// 16-bit elements use the tensor cores (mma.cuh) and P is rounded to them; float32 and float64 use plain multiply-adds.
// Each of the four warps owns 16 rows, so that nothing of P leaves a warp.
#pragma once

#include "attention_call.cuh"
#include "mma.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

/// Which rows and columns of a 64-row product a thread owns.
template <class T>
struct Ownership {
  static constexpr int lanes = is_16_bit<T> ? 4 : 8;  // neighbouring lanes that share rows
  static constexpr int rows = lanes / 2 == 2 ? 2 : 4;
  __device__ static int row(int r) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return 16 * warp + lane / lanes + 32 / lanes * r;
  }
  /// Over the lanes that share a row; all of them get the result.
  template <class Real>
  __device__ static Real row_sum(Real value) {
    for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
  }
  template <class Real>
  __device__ static Real row_max(Real value) {
    for (int step = lanes / 2; step > 0; step /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
  }
};

/// A thread's part of a product [64,width]. `spread`: which columns are a thread's is free in the kernels of wide
/// types; scores take single columns, so that rows of B are read without bank conflicts, sums take 16 bytes of columns.
template <class T, int width, bool spread>
struct Part {
  using Real = accumulator_t<T>;
  static constexpr int rows = Ownership<T>::rows, columns = width / Ownership<T>::lanes;

  __device__ static int column(int c) {
    const int lane = threadIdx.x % 32;
    if constexpr (is_16_bit<T>) return 8 * (c / 2) + 2 * (lane % 4) + c % 2;
    if constexpr (spread) return lane % 8 + 8 * c;
    constexpr int v = vector_length<T>;
    return v * (c / v * 8 + lane % 8) + c % v;
  }
  __device__ Real& operator()(int r, int c) {
    if constexpr (is_16_bit<T>)
      return value[c / 2][2 * r + c % 2];
    else
      return value[r][c];
  }
  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int c = 0; c < columns; ++c) (*this)(r, c) = 0;
  }

  Real value[is_16_bit<T> ? columns / 2 : rows][is_16_bit<T> ? 4 : columns];
};
template <class T>
using Scores = Part<T, attention_tile, true>;
template <class T, int width>
using Sums = Part<T, width, false>;

/// Rows of `width` elements in shared memory, apart by 16 bytes more than their length: no bank conflicts down a
/// column.
template <class T, int width>
struct Tile {
  static constexpr int stride = width + vector_length<T>;
  static constexpr int size = attention_tile * stride;
  T* data;
  __device__ T* row(int n) const { return data + n * stride; }
};

/// What sums() needs of shared memory to hand P from thread to thread within a warp; tensor cores need none.
template <class T>
inline constexpr int exchange_stride = is_16_bit<T> ? 0 : attention_tile + vector_length<T>;

template <class T, int width>
__device__ inline void add_scores(Scores<T>& s, Tile<T, width> a, Tile<T, width> b) {
  if constexpr (is_16_bit<T>) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T* a_row = a.row(16 * warp + lane % 16) + lane / 16 * 8;
    const T* b_row = b.row(lane / 16 * 8 + lane % 8) + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < width; k += 16) {
      std::uint32_t a_part[4];
      ldmatrix_x4(a_part, a_row + k);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        std::uint32_t b_part[4];
        ldmatrix_x4(b_part, b_row + 16 * n * Tile<T, width>::stride + k);
        mma_16x8x16<T>(s.value[2 * n], a_part, {b_part[0], b_part[1]});
        mma_16x8x16<T>(s.value[2 * n + 1], a_part, {b_part[2], b_part[3]});
      }
    }
  } else {
    constexpr int v = vector_length<T>;
#pragma unroll 2
    for (int k = 0; k < width; k += v) {
      Vector<T, v> a_part[Scores<T>::rows];
#pragma unroll
      for (int r = 0; r < Scores<T>::rows; ++r)
        a_part[r] = *reinterpret_cast<const Vector<T, v>*>(a.row(Ownership<T>::row(r)) + k);
#pragma unroll
      for (int c = 0; c < Scores<T>::columns; ++c) {
        const auto b_part = *reinterpret_cast<const Vector<T, v>*>(b.row(Scores<T>::column(c)) + k);
#pragma unroll
        for (int e = 0; e < v; ++e)
#pragma unroll
          for (int r = 0; r < Scores<T>::rows; ++r) s(r, c) += a_part[r].element[e] * b_part.element[e];
      }
    }
  }
}

/// `exchange`: [64, exchange_stride<T>], of which a warp uses its own 16 rows.
template <class T, int width>
__device__ inline void add_sums(Sums<T, width>& sums, Scores<T>& p, Tile<T, width> b, T* exchange) {
  if constexpr (is_16_bit<T>) {
    const int lane = threadIdx.x % 32;
    const T* b_row = b.row(lane / 8 % 2 * 8 + lane % 8) + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t a_part[4] = {
          narrow_pair<T>(p(0, 4 * k), p(0, 4 * k + 1)), narrow_pair<T>(p(1, 4 * k), p(1, 4 * k + 1)),
          narrow_pair<T>(p(0, 4 * k + 2), p(0, 4 * k + 3)), narrow_pair<T>(p(1, 4 * k + 2), p(1, 4 * k + 3))};
#pragma unroll
      for (int n = 0; n < width / 16; ++n) {
        std::uint32_t b_part[4];
        ldmatrix_x4<true>(b_part, b_row + 16 * k * Tile<T, width>::stride + 16 * n);
        mma_16x8x16<T>(sums.value[2 * n], a_part, {b_part[0], b_part[1]});
        mma_16x8x16<T>(sums.value[2 * n + 1], a_part, {b_part[2], b_part[3]});
      }
    }
  } else {
    constexpr int v = vector_length<T>, vectors = Sums<T, width>::columns / v;
#pragma unroll
    for (int r = 0; r < Scores<T>::rows; ++r)
#pragma unroll
      for (int c = 0; c < Scores<T>::columns; ++c)
        exchange[Ownership<T>::row(r) * exchange_stride<T> + Scores<T>::column(c)] = p(r, c);
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < attention_tile; k += v) {
      Vector<T, v> p_part[Scores<T>::rows];
#pragma unroll
      for (int r = 0; r < Scores<T>::rows; ++r)
        p_part[r] = *reinterpret_cast<const Vector<T, v>*>(exchange + Ownership<T>::row(r) * exchange_stride<T> + k);
#pragma unroll
      for (int e = 0; e < v; ++e)
#pragma unroll
        for (int m = 0; m < vectors; ++m) {
          const auto b_part = *reinterpret_cast<const Vector<T, v>*>(b.row(k + e) + Sums<T, width>::column(m * v));
#pragma unroll
          for (int r = 0; r < Scores<T>::rows; ++r)
#pragma unroll
            for (int n = 0; n < v; ++n) sums(r, m * v + n) += p_part[r].element[e] * b_part.element[n];
        }
    }
    __syncwarp();  // the exchange may be written again
  }
}

/// Starts loading 64 rows into a tile: columns [first, first + width) of those that `row_of(n)` points to; null rows
/// and columns at or past `columns` become 0. With `vector` rows the copy is asynchronous: commit and wait.
template <int width, class T, class RowOf>
__device__ inline void load_tile(Tile<T, width> tile, const RowTensor<const T>& source, int first, int columns,
                                 RowOf&& row_of) {
  constexpr int v = vector_length<T>, per_row = width / v;
#pragma unroll 4
  for (int n = threadIdx.x; n < attention_tile * per_row; n += attention_threads) {
    const int row = n / per_row, column = n % per_row * v;
    const T* from = row_of(row);
    const int present = from == nullptr ? 0 : max(0, min(v, columns - first - column));
    T* to = tile.row(row) + column;
    if (source.vector) {
      copy_async_16(to, present == 0 ? source.data : from + first + column, present * static_cast<int>(sizeof(T)));
    } else {
#pragma unroll 1
      for (int e = 0; e < v; ++e)
        to[e] = e < present ? from[(first + column + e) * source.element] : narrow<T>(accumulator_t<T>{0});
    }
  }
}

}  // namespace dsalt::cuda
