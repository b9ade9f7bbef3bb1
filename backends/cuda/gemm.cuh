// One block's tile of a matrix product, D(i, j) = sum over k of A(i, k) B(j, k), for kernels that have their own use of
// D.
//
// GemmTile<T, a_along_k, b_along_k> is MmaTile for 16-bit elements (tensor cores, float32 sums) and FmaTile for float
// and double (their own multiply-adds). Both have this interface, so that a kernel does not know which one it uses and
// a third one can take the place of either:
//   rows, columns, threads, shared_bytes  of a block, dynamic shared memory
//   multiply(a, i0, b, j0, depth, shared) adds the products of k = 0 .. depth - 1 in ascending order. D(i, j) has the
//   same
//                                         bits wherever in a tile it is computed. Ends with a barrier.
//   value(r, c), row(r), column(c)        a thread's part of D: row_slots x column_slots values and their place in the
//                                         tile. Column slots 2n and 2n + 1 are neighbours, the first at an even column.
//   row_lanes, column_groups              a row of D lies in row_lanes neighbouring lanes of column_groups warps
//   store(to, pitch, rows, columns)       value() as T, to a row-major matrix with a pitch of whole 16-byte vectors
//
// Outside the operands nothing is read: it counts as 0.
#pragma once

#include <cstdint>

#include "elements.cuh"
#include "mma.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

/// Element (i, k) is at data[i * pitch + k] (along_k) or data[k * pitch + i]. Data and pitch are multiples of 16 bytes.
template <class T>
struct Operand {
  const T* data;
  std::int64_t pitch, extent;  // extent: how many i there are
};

template <class T, bool a_along_k, bool b_along_k>
class MmaTile {
 public:
  static constexpr int rows = 128, columns = 256, threads = 256;
  static constexpr int row_slots = 8, column_slots = 16, row_lanes = 4, column_groups = 4;

 private:
  static constexpr int stages = 4, step_depth = 32;  // of k
  static constexpr int stage_elements = (rows + columns) * step_depth;

 public:
  static constexpr int shared_bytes = stages * stage_elements * static_cast<int>(sizeof(T));

  /// Four stages of k are on their way; fragments are loaded one step of 16 ahead of the products, also over the
  /// barrier.
  __device__ void multiply(const Operand<T>& a, std::int64_t i0, const Operand<T>& b, std::int64_t j0,
                           std::int64_t depth, void* shared) {
    T* const buffer = static_cast<T*>(shared);
    const int steps = static_cast<int>((depth + step_depth - 1) / step_depth);
    Source<rows, a_along_k> a_source(a, i0, depth);
    Source<columns, b_along_k> b_source(b, j0, depth);
    const auto fetch = [&](int step) {
      if (step < steps) {
        T* const stage = buffer + step % stages * stage_elements;
        a_source.fetch(stage);
        b_source.fetch(stage + rows * step_depth);
      }
      copy_async_commit();  // an empty group keeps the count
    };
    if (steps > 0) {
      for (int step = 0; step < stages - 1; ++step) fetch(step);
      copy_async_wait<stages - 2>();
      __syncthreads();
      load_fragments<0>(buffer);
      for (int step = 0; step < steps; ++step) {
        load_fragments<1>(buffer + step % stages * stage_elements);
        fetch(step + stages - 1);  // into the stage that the last barrier set free
        add_products<0>();
        copy_async_wait<stages - 2>();
        __syncthreads();
        if (step + 1 < steps) load_fragments<0>(buffer + (step + 1) % stages * stage_elements);
        add_products<1>();
      }
    }
    __syncthreads();
  }

  __device__ float& value(int r, int c) { return sums_[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  __device__ int row(int r) const { return row_base() + r / 2 * 16 + r % 2 * 8 + lane() / 4; }
  __device__ int column(int c) const { return column_base() + c / 2 * 8 + lane() % 4 * 2 + c % 2; }
  __device__ int column_group() const { return warp() % 4; }

  __device__ void store(T* to, std::int64_t pitch, std::int64_t rows_left, std::int64_t columns_left) {
#pragma unroll
    for (int r = 0; r < row_slots; ++r)
#pragma unroll
      for (int c = 0; c < column_slots; c += 8) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) pairs[n] = narrow_pair<T>(value(r, c + 2 * n), value(r, c + 2 * n + 1));
        transpose_in_quad(pairs);  // now eight neighbours of a row
        const int column = column_base() + c / 2 * 8 + lane() % 4 * 8;
        if (row(r) < rows_left && column < columns_left)
          *reinterpret_cast<uint4*>(to + row(r) * pitch + column) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
      }
  }

 private:
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  static __device__ int warp() { return static_cast<int>(threadIdx.x / 32); }
  static __device__ int row_base() { return warp() / 4 * 64; }
  static __device__ int column_base() { return warp() % 4 * 64; }

  /// One operand's part of a stage, in vectors of 8 elements along its contiguous dimension. Vectors change places
  /// within 128 bytes, so that eight of them in a column of the panel lie in different banks.
  template <int extent, bool along_k>
  struct Panel {
    static constexpr int line = along_k ? step_depth : extent;  // elements
    /// Offset of the vector that begins at (i, k).
    static __device__ int at(int i, int k) {
      if constexpr (along_k)
        return i * line + (k / 8 ^ (i / 2 & 3)) * 8;
      else
        return k * line + (i / 8 ^ (k & 7)) * 8;
    }
    /// at(i + 16 n, k + 16 half), where base is at(i, k), i % 64 < 16 and k < 16.
    static __device__ int fragment(int base, int n, int half) {
      if constexpr (along_k)
        return (base ^ half * 16) + n * 16 * line;
      else
        return (base ^ n * 16) + half * 16 * line;
    }
  };

  /// Where a thread's vectors of one operand come from, stage after stage: every `threads / vectors of a line`-th line.
  template <int extent, bool along_k>
  class Source {
   public:
    __device__ Source(const Operand<T>& from, std::int64_t i0, std::int64_t depth) : pitch_(from.pitch) {
      const int i = along_k ? first_line() : along(), k = along_k ? along() : first_line();
      const int i_left = clip(from.extent - i0 - i), k_left = clip(depth - k);
      along_left_ = along_k ? k_left : i_left;
      lines_left_ = along_k ? i_left : k_left;
      from_ = from.data + (along_k ? (i0 + i) * pitch_ + k : k * pitch_ + i0 + i);
    }
    __device__ void fetch(T* panel) {
      const int bytes = along_left_ >= 8 ? 16 : along_left_ > 0 ? along_left_ * 2 : 0;
      T* const to = panel + (along_k ? Lines::at(first_line(), along()) : Lines::at(along(), first_line()));
#pragma unroll
      for (int n = 0; n < extent * step_depth / 8 / threads; ++n)  // lines_at_once is a multiple of 8: as at() needs it
        copy_async_16(to + n * lines_at_once * Lines::line, from_ + n * lines_at_once * pitch_,
                      lines_left_ > n * lines_at_once ? bytes : 0);
      (along_k ? along_left_ : lines_left_) -= step_depth;
      from_ += along_k ? step_depth : step_depth * pitch_;
    }

   private:
    using Lines = Panel<extent, along_k>;
    static constexpr int lines_at_once = threads / (Lines::line / 8);
    static __device__ int along() { return static_cast<int>(threadIdx.x) % (Lines::line / 8) * 8; }
    static __device__ int first_line() { return static_cast<int>(threadIdx.x) / (Lines::line / 8); }
    static __device__ int clip(std::int64_t left) { return static_cast<int>(min(left, std::int64_t{1} << 30)); }

    const T* from_;
    std::int64_t pitch_;
    int along_left_, lines_left_;
  };

  template <int half>
  __device__ void load_fragments(const T* stage) {
    using A = Panel<rows, a_along_k>;
    using B = Panel<columns, b_along_k>;
    const int in_matrix = lane() % 8, odd_matrix = lane() / 8 % 2 * 8, high_matrix = lane() / 16 * 8;
    // The matrices of one ldmatrix: 0 and 1 are neighbours in i of A, but in k of B.
    const int a_base =
        A::at(row_base() + odd_matrix + (a_along_k ? in_matrix : 0), high_matrix + (a_along_k ? 0 : in_matrix));
    const int b_base =
        B::at(column_base() + high_matrix + (b_along_k ? in_matrix : 0), odd_matrix + (b_along_k ? 0 : in_matrix));
#pragma unroll
    for (int m = 0; m < 4; ++m) ldmatrix_x4<!a_along_k>(a_[half][m], stage + A::fragment(a_base, m, half));
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      std::uint32_t two[4];
      ldmatrix_x4<!b_along_k>(two, stage + rows * step_depth + B::fragment(b_base, n, half));
      b_[half][2 * n][0] = two[0];
      b_[half][2 * n][1] = two[1];
      b_[half][2 * n + 1][0] = two[2];
      b_[half][2 * n + 1][1] = two[3];
    }
  }

  template <int half>
  __device__ void add_products() {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) mma_16x8x16<T>(sums_[m][n], a_[half][m], b_[half][n]);
  }

  /// Lane t of four neighbours gets register t of each of them.
  static __device__ void transpose_in_quad(std::uint32_t (&r)[4]) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int low = bit == 1 ? 2 * n : n;
        const bool upper = (lane() & bit) != 0;
        const std::uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? r[low] : r[low + bit], bit);
        if (upper)
          r[low] = other;
        else
          r[low + bit] = other;
      }
  }

  float sums_[4][8][4] = {};
  std::uint32_t a_[2][4][4], b_[2][8][2];
};

template <class Real, bool a_along_k, bool b_along_k>
class FmaTile {
 public:
  static constexpr int rows = 128, columns = 128, threads = 256;
  static constexpr int row_slots = 8, column_slots = 8, row_lanes = 16, column_groups = 1;

 private:
  static constexpr int step_depth = 8;   // of k
  static constexpr int line = rows + 4;  // of a buffer: no bank conflicts when it is written along k
  static constexpr int panel = step_depth * line;

 public:
  static constexpr int shared_bytes = 2 * 2 * panel * static_cast<int>(sizeof(Real));

  /// Two buffers: the next step's elements are on their way through registers during the products of this one.
  __device__ void multiply(const Operand<Real>& a, std::int64_t i0, const Operand<Real>& b, std::int64_t j0,
                           std::int64_t depth, void* shared) {
    Real* const buffer = static_cast<Real*>(shared);
    const int steps = static_cast<int>((depth + step_depth - 1) / step_depth);
    Real a_next[4], b_next[4];
    fetch<a_along_k>(a_next, a, i0, 0, depth);
    fetch<b_along_k>(b_next, b, j0, 0, depth);
    for (int step = 0; step < steps; ++step) {
      Real* const a_panel = buffer + step % 2 * 2 * panel;
      Real* const b_panel = a_panel + panel;
      put<a_along_k>(a_panel, a_next);
      put<b_along_k>(b_panel, b_next);
      __syncthreads();  // one is enough: the other buffer's readers are behind it
      fetch<a_along_k>(a_next, a, i0, (std::int64_t{step} + 1) * step_depth, depth);
      fetch<b_along_k>(b_next, b, j0, (std::int64_t{step} + 1) * step_depth, depth);
#pragma unroll
      for (int k = 0; k < step_depth; ++k) {
        Vector<Real, 4> a_k[2], b_k[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          a_k[n] = load_vector<4>(a_panel + k * line + row(4 * n));
          b_k[n] = load_vector<4>(b_panel + k * line + column(4 * n));
        }
#pragma unroll
        for (int r = 0; r < row_slots; ++r)
#pragma unroll
          for (int c = 0; c < column_slots; ++c)
            sums_[r][c] = fma(a_k[r / 4].element[r % 4], b_k[c / 4].element[c % 4], sums_[r][c]);
      }
    }
    __syncthreads();
  }

  __device__ Real& value(int r, int c) { return sums_[r][c]; }
  __device__ int row(int r) const { return r / 4 * 64 + static_cast<int>(threadIdx.x) / 16 * 4 + r % 4; }
  __device__ int column(int c) const { return c / 4 * 64 + static_cast<int>(threadIdx.x) % 16 * 4 + c % 4; }
  __device__ int column_group() const { return 0; }

  __device__ void store(Real* to, std::int64_t pitch, std::int64_t rows_left, std::int64_t columns_left) {
#pragma unroll
    for (int r = 0; r < row_slots; ++r)
#pragma unroll
      for (int c = 0; c < column_slots; c += 2)  // the pitch has room for the second
        if (row(r) < rows_left && column(c) < columns_left)
          store_vector<2>({value(r, c), value(r, c + 1)}, to + row(r) * pitch + column(c));
  }

 private:
  /// Place (i, k) of a thread's element n in a panel of 128 x 8, neighbours along the contiguous dimension.
  template <bool along_k>
  static __device__ int place_i(int n) {
    const int thread = static_cast<int>(threadIdx.x);
    return along_k ? thread / 2 : thread % 32 + 32 * n;
  }
  template <bool along_k>
  static __device__ int place_k(int n) {
    const int thread = static_cast<int>(threadIdx.x);
    return along_k ? thread % 2 * 4 + n : thread / 32;
  }

  template <bool along_k>
  static __device__ void fetch(Real (&to)[4], const Operand<Real>& from, std::int64_t i0, std::int64_t k0,
                               std::int64_t depth) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const std::int64_t i = i0 + place_i<along_k>(n), k = k0 + place_k<along_k>(n);
      to[n] = i < from.extent && k < depth ? from.data[along_k ? i * from.pitch + k : k * from.pitch + i] : Real{0};
    }
  }
  template <bool along_k>
  static __device__ void put(Real* to, const Real (&from)[4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) to[place_k<along_k>(n) * line + place_i<along_k>(n)] = from[n];
  }

  Real sums_[row_slots][column_slots] = {};
};

template <class T, bool a_along_k, bool b_along_k>
using GemmTile = std::conditional_t<is_16_bit<T>, MmaTile<T, a_along_k, b_along_k>, FmaTile<T, a_along_k, b_along_k>>;

}  // namespace dsalt::cuda
