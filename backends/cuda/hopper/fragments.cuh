// What the threads of a warpgroup do with the sums of a product (wgmma.cuh has their layout): issuing the next one,
// masks, rounding, and storing rows of 16-bit elements in 16-byte pieces.
#pragma once

#include "../vectors.cuh"
#include "dense_call.cuh"
#include "softmax.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

/// d [64, columns] = A B^T over `elements` of the heads: both operands lie along them in boxes of 64. A is 64 rows of a
/// tile of `a_rows`, B all `b_rows` == columns.
template <class T, int elements, int columns, int a_rows, int b_rows, int count>
__device__ inline void issue_k_major(float (&d)[count], const unsigned char* a_tile, const unsigned char* b_tile) {
  const std::uint64_t a = tile_descriptor(a_tile), b = tile_descriptor(b_tile);
  keep_in_registers(d);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < elements / 16; ++step) {
    const std::uint32_t box = step / 4, inside = step % 4 * 32;
    Wgmma<columns>::template shared_shared<T, Major::k, Major::k>(d, advance(a, box * a_rows * 128 + inside),
                                                                  advance(b, box * b_rows * 128 + inside), step > 0);
  }
  wgmma_commit();
}

/// The descriptor of a tile that is the same for all lanes. The compiler does not see that where stages are counted,
/// and would move each word of each advanced descriptor to the registers where products look for it.
__device__ inline std::uint64_t uniform_descriptor(const unsigned char* tile, std::uint32_t box_bytes = 16) {
  const std::uint64_t descriptor = tile_descriptor(tile, box_bytes);
  return (descriptor >> 32 << 32) | __shfl_sync(0xffffffffu, static_cast<std::uint32_t>(descriptor), 0);
}

/// d [64, columns] = A B^T as above, of a `d` that holds nothing until then. By descriptors.
template <class T, int elements, int columns, int a_rows, int b_rows>
__device__ inline void issue_new_k_major(float (&d)[columns / 2], std::uint64_t a, std::uint64_t b) {
  wgmma_fence();
  Wgmma<columns>::template overwrite_shared_shared<T, Major::k, Major::k>(d, a, b);
#pragma unroll
  for (int step = 1; step < elements / 16; ++step) {
    const std::uint32_t box = step / 4, inside = step % 4 * 32;
    Wgmma<columns>::template shared_shared<T, Major::k, Major::k>(d, advance(a, box * a_rows * 128 + inside),
                                                                  advance(b, box * b_rows * 128 + inside), true);
  }
  wgmma_commit();
}

/// d [64, columns] += A B, A from registers, B the first `summed` rows of the tile that `b` describes.
template <class T, int summed, int columns>
__device__ inline void issue_weighted_rows(float (&d)[columns / 2], const std::uint32_t (&a)[summed / 16][4],
                                           std::uint64_t b) {
  keep_in_registers(d);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < summed / 16; ++step)
    Wgmma<columns>::template register_shared<T, Major::mn>(d, a[step], advance(b, step * 2048), true);
  wgmma_commit();
}
/// The same of a tile of `summed` rows.
template <class T, int summed, int columns>
__device__ inline void issue_weighted_rows(float (&d)[columns / 2], const std::uint32_t (&a)[summed / 16][4],
                                           const unsigned char* tile) {
  issue_weighted_rows<T, summed, columns>(d, a, tile_descriptor(tile, summed * 128));
}

/// P of one product, ready to be operand A of the next.
template <class T, int count>
__device__ inline void round_weights(std::uint32_t (&weights)[count / 8][4], const float (&s)[count]) {
#pragma unroll
  for (int step = 0; step < count / 8; ++step)
#pragma unroll
    for (int n = 0; n < 4; ++n) weights[step][n] = narrow_pair<T>(s[8 * step + 2 * n], s[8 * step + 2 * n + 1]);
}

/// Scores of keys from limit[r] on become -inf in row r of the thread's two. Keys before `unmasked` are below both
/// limits.
template <int count>
__device__ inline void mask_scores(float (&s)[count], int first_key, int unmasked, const int (&limit)[2], int lane) {
#pragma unroll
  for (int c = 0; c < count / 4; ++c) {
    if (first_key + 8 * c + 8 <= unmasked) continue;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int key = first_key + 8 * c + lane % 4 * 2 + n % 2;
      if (key >= limit[n / 2]) s[4 * c + n] = -INFINITY;
    }
  }
}

/// a[n] of lane t of four becomes a[t] of lane n.
__device__ inline void transpose_quad(std::uint32_t (&a)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = lane & bit;
    const int second = bit == 1 ? 2 : 1;  // the pairs: (0,1) and (2,3), then (0,2) and (1,3)
    std::uint32_t &x0 = a[0], &x1 = a[bit], &y0 = a[second], &y1 = a[second + bit];
    const std::uint32_t x = __shfl_xor_sync(0xffffffffu, upper ? x0 : x1, bit);
    const std::uint32_t y = __shfl_xor_sync(0xffffffffu, upper ? y0 : y1, bit);
    (upper ? x0 : x1) = x;
    (upper ? y0 : y1) = y;
  }
}

/// Stores row `r` (0, or 1 for the one 8 below) of a thread's sums times `factor` at `to`. Four lanes have a row's
/// columns, each two of every eight: they exchange, so that each stores eight in one go. All lanes call, `inside` says
/// who stores.
template <class T, int count>
__device__ inline void store_row(T* to, bool inside, const float (&d)[count], int r, float factor, int lane) {
#pragma unroll
  for (int block = 0; block < count / 16; ++block) {
    std::uint32_t a[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int at = 4 * (4 * block + n) + 2 * r;
      a[n] = narrow_pair<T>(d[at] * factor, d[at + 1] * factor);
    }
    transpose_quad(a, lane);
    if (inside) reinterpret_cast<uint4*>(to)[4 * block + lane % 4] = uint4{a[0], a[1], a[2], a[3]};
  }
}

/// Divides by the sums and stores the thread's two rows of out and lse.
template <class Parameters, int count>
__device__ inline void store_tile(const Parameters& p, const ForwardWork& w, const float (&o)[count],
                                  const PairedSoftmax& softmax, int row, int lane) {
  const int first = w.row0 + row;
  const std::int64_t at = w.extent.q_start + first;
  auto* out = p.out.at(w.tile.sequence, w.tile.head, at);
  float* lse = p.lse.data == nullptr ? nullptr : p.lse.at(w.tile.sequence, w.tile.head, at);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool inside = first + 8 * r < w.extent.nq;
    const float sum = softmax.sum[r], inverse = sum == 0 ? 0 : reciprocal_fast(sum);  // no key: the row is 0
    store_row(out + r * 8 * p.out.row, inside, o, r, inverse, lane);
    if (lse != nullptr && inside && lane % 4 == 0)
      lse[r * 8 * p.lse.row] = log_sum(softmax.maximum[r], sum, p.call.scale_log2);
  }
}

/// Sets rows [valid, rows) of a swizzled tile (boxes of 128-byte rows) to 0: they belong to somebody else and may be
/// NaN, which a factor of 0 does not remove. All `threads` call; each must pass a barrier before the products that
/// follow.
__device__ inline void clear_rows(unsigned char* tile, int valid, int rows, int boxes, int thread, int threads) {
  const int each = (rows - valid) * 8;  // the swizzle stays within a row
  for (int n = thread; n < each * boxes; n += threads) {
    const int box = n / each, inside = n % each;
    reinterpret_cast<uint4*>(tile + (box * rows + valid) * 128)[inside] = uint4{};
  }
  async_proxy_fence();
}

}  // namespace dsalt::cuda::hopper
