// What the dense and the sparse backward kernels do alike: dS to shared memory, its product with the keys, and the sums
// of dQ, which lie in the order in which the threads hold them, so that every addition is a coalesced 16 bytes.
#pragma once

#include "dense_call.cuh"
#include "fragments.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

/// Scratch of the backward pass. Query tiles of `rows` rows are numbered through a sequence's heads: tile m of (b, h)
/// is slot(b, h, m).
struct QuerySlots {
  float* dq = nullptr;  // [slots, rows * D], in thread order
  int per_head = 0;     // slots of one head: of one sequence, or of the whole pack

  /// Packed: a closed form with room for every sequence's partial tile.
  __device__ std::int64_t slot(const DenseCall& call, int rows, int b, int h, int m) const {
    if (!call.cu_q.present()) return (static_cast<std::int64_t>(b) * call.hq + h) * per_head + m;
    return static_cast<std::int64_t>(h) * per_head + (call.cu_q[b] + static_cast<std::int64_t>(b) * rows) / rows + m;
  }
};

/// dS^T of 64 keys x the tile's queries, as a thread holds it, to rows of 128 bytes: boxes of `keys` keys by 64
/// queries.
template <int keys, int count>
__device__ inline void store_transposed(unsigned char* shared_ds, const std::uint32_t (&ds)[count][4], int half,
                                        int warp, int lane) {
#pragma unroll
  for (int k = 0; k < count; ++k) {
    const int matrix = lane / 8, row = 64 * half + 16 * warp + matrix % 2 * 8 + lane % 8;
    const int piece = (2 * k + matrix / 2) % 8, box = k / 4;
    const std::uint32_t ordered[4] = {ds[k][0], ds[k][1], ds[k][2], ds[k][3]};
    stmatrix_x4(shared_ds + (box * keys + row) * 128 + (piece ^ row % 8) * 16, ordered);
  }
}

/// A quarter or half of dQ = dS K: 64 queries (box `half` of dS if there are two) by 64 columns (box `half` of K if
/// there are).
template <class T, int keys, int query_boxes, int boxes>
__device__ inline void issue_query_gradient(float (&d)[32], const unsigned char* ds, const unsigned char* k_tile,
                                            int half) {
  const std::uint64_t a = tile_descriptor(ds + (query_boxes == 2 ? half * keys * 128 : 0));
  const std::uint64_t b = tile_descriptor(k_tile + (boxes == 2 ? half * keys * 128 : 0));
  keep_in_registers(d);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < keys / 16; ++step)
    Wgmma<64>::template shared_shared<T, Major::mn, Major::mn>(d, advance(a, step * 2048), advance(b, step * 2048),
                                                               step > 0);
  wgmma_commit();
}
/// That part becomes a slot's sums.
__device__ inline void store_query_gradient(float* sums, const float (&dq)[32], int half, int thread) {
  sums += half * 64 * 64 + thread % 128 * 4;
#pragma unroll
  for (int c = 0; c < 8; ++c)
    *reinterpret_cast<float4*>(sums + c * 512) = float4{dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]};
}
/// Adds that part to a slot's sums.
__device__ inline void add_query_gradient(float* sums, const float (&dq)[32], int half, int thread) {
  sums += half * 64 * 64 + thread % 128 * 4;
#pragma unroll
  for (int c = 0; c < 8; ++c) reduce_add(sums + c * 512, dq[4 * c], dq[4 * c + 1], dq[4 * c + 2], dq[4 * c + 3]);
}

/// The n-th of a call's query tiles, head after head: its sequence (-1: there is none), head and number.
__device__ inline Tile query_tile(const DenseCall& call, int n) {
  const int rest = n / call.tiles, index = n % call.tiles;
  if (call.packed_tiles == nullptr) return {rest / call.hq, rest % call.hq, index};
  const int2 tile = call.packed_tiles[index];
  return {tile.x, rest, tile.y};
}

/// lse * log2(e) and delta - dlse of row i, delta being `sum`; inf and 0 for rows that do not exist or see nothing.
__device__ inline void store_statistics(int b, int h, int i, const Extent& extent, float sum,
                                        const Rows<const float>& lse, const Rows<const float>& dlse, float* lse_log2,
                                        float* delta) {
  const float value = i < extent.nq ? *lse.at(b, h, extent.q_start + i) : -INFINITY;
  const bool sees = value != -INFINITY;
  if (sees && dlse.data != nullptr) sum -= *dlse.at(b, h, extent.q_start + i);
  *lse_log2 = sees ? value * 1.44269504088896341f : INFINITY;
  *delta = sees ? sum : 0;
}

/// Before: the statistics of the rows from row0 on. A block of 128 threads calls.
template <int kHead, int kRows, class T>
__device__ inline void row_statistics(int b, int h, int row0, const Extent& extent, const Rows<const T>& out,
                                      const Rows<const T>& dout, const Rows<const float>& lse,
                                      const Rows<const float>& dlse, float* lse_log2, float* delta) {
  constexpr int lanes = kHead / 8;  // of a row, eight elements each
  constexpr int rows_at_once = 128 / lanes, count = kRows / rows_at_once;
  const int first = static_cast<int>(threadIdx.x) / lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  uint4 x[count], y[count];  // all asked for before any is used
#pragma unroll
  for (int n = 0; n < count; ++n) {
    const int i = row0 + first + n * rows_at_once;
    x[n] = y[n] = uint4{};
    if (i >= extent.nq) continue;
    x[n] = reinterpret_cast<const uint4*>(out.at(b, h, extent.q_start + i))[lane];
    y[n] = reinterpret_cast<const uint4*>(dout.at(b, h, extent.q_start + i))[lane];
  }
#pragma unroll
  for (int n = 0; n < count; ++n) {
    const int row = first + n * rows_at_once, i = row0 + row;
    const T* a = reinterpret_cast<const T*>(x + n);
    const T* c = reinterpret_cast<const T*>(y + n);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += widen(a[e]) * widen(c[e]);
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) store_statistics(b, h, i, extent, sum, lse, dlse, lse_log2 + row, delta + row);
  }
}

/// After: dq = scale * sums, from thread order to rows, of a slot of a head. The last slot comes first: its sums are
/// still in L2. A block of 256 threads calls, number `n` of as many as there are slots.
template <int kHead, int kRows, class T>
__device__ inline void store_query_gradient_rows(const DenseCall& call, const QuerySlots& slots, const Rows<T>& to,
                                                 float scale, int n) {
  const auto [b, h, m] =
      query_tile(call, call.tiles * call.hq * (call.packed_tiles == nullptr ? call.batch : 1) - 1 - n);
  if (b < 0) return;
  const Extent extent = extent_of(call, b);
  const int thread = static_cast<int>(threadIdx.x), half = thread / 128, lane = thread % 32;
  const float* sums = slots.dq + slots.slot(call, kRows, b, h, m) * kRows * kHead + half * 64 * 64 + thread % 128 * 4;
  float d[32];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float4 part = *reinterpret_cast<const float4*>(sums + c * 512);
    d[4 * c] = part.x, d[4 * c + 1] = part.y, d[4 * c + 2] = part.z, d[4 * c + 3] = part.w;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = m * kRows + (kRows == 128 ? 64 * half : 0) + 16 * (thread / 32 % 4) + lane / 4 + 8 * r;
    T* at = to.at(b, h, extent.q_start + row) + (kRows == 128 ? 0 : 64 * half);
    store_row(at, row < extent.nq, d, r, scale, lane);
  }
}
template <class T, int kHead, int kRows>
__global__ void query_gradient_kernel(DenseCall call, QuerySlots slots, Rows<T> to, float scale) {
  store_query_gradient_rows<kHead, kRows>(call, slots, to, scale, static_cast<int>(blockIdx.x));
}

}  // namespace dsalt::cuda::hopper
