// What runs before the sparse backward kernel (sparse_backward.cuh).
#pragma once

#include "sparse_backward.cuh"

namespace dsalt::cuda::hopper {

/// Gives the key of an entry of a row head's lists a row of sums, in any order.
template <class T>
__device__ inline void number_landmark(const AttentionCall<T>& call, std::int64_t entry, const LandmarkSums& sums) {
  const std::int64_t n = entry % call.slots, t = entry / call.slots % call.lists;
  const int z = static_cast<int>(entry / call.slots / call.lists % call.row_heads);
  const std::int64_t b = entry / call.slots / call.lists / call.row_heads;
  const std::int64_t list = (b * call.list_heads + call.list_head(z)) * call.lists + t;
  if (sums.dlambda != nullptr) sums.dlambda[entry] = 0;
  if (n >= call.clean.count[list]) return;
  const SequenceRows s = call.sequence(b);
  const std::int64_t place =
      key_place(call, b, call.kv_head_of_row_head(z), s.k_start, call.clean.index[list * call.slots + n]);
  if (atomicCAS(sums.row + place, 0, -1) != 0) return;  // another entry's
  const int row = atomicAdd(sums.rows, 1);
  sums.row[place] = row + 1;
  sums.place[row] = static_cast<std::int32_t>(place);
}

/// Before: what the windows' kernel reads of a query tile, and the news to the key tiles that it admits.
/// `landmarks_follow`: the landmarks' kernel finds delta (here it becomes -dlse) and begins the sums of dq, which
/// otherwise become zeros. One block of 128 threads per slot of a head, the last slot first: those that the windows'
/// kernel begins with, if it is the next one, stay in L2. The blocks after these number landmarks, each thread one of
/// the `entries` of row heads' lists.
template <class F, class T, int kHead, int kRows>
__global__ void __launch_bounds__(128)
    sparse_backward_prepare_kernel(DenseCall call, unsigned slots, std::int64_t entries, typename F::Parameters p,
                                   Rows<const T> out, Rows<const T> dout, Rows<const float> lse, Rows<const float> dlse,
                                   typename F::Queries* rows, RowExtent* extents, QueryRange* ranges,
                                   bool landmarks_follow) {
  if (blockIdx.x >= slots) {
    const std::int64_t entry = static_cast<std::int64_t>(blockIdx.x - slots) * 128 + threadIdx.x;
    if (entry < entries) number_landmark(p.sparse, entry, p.landmarks);
    return;
  }
  const auto [b, h, m] = query_tile(call, static_cast<int>(slots - 1 - blockIdx.x));
  if (b < 0) return;
  const Extent extent = extent_of(call, b);
  const std::int64_t slot = p.slots.slot(call, kRows, b, h, m);
  if (!landmarks_follow) {
    float4* dq = reinterpret_cast<float4*>(p.slots.dq + slot * kRows * kHead);
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kHead / 4; at += 128) dq[at] = float4{};
    row_statistics<kHead, kRows>(b, h, m * kRows, extent, out, dout, lse, dlse, rows[slot].lse, rows[slot].delta);
  } else if (threadIdx.x < kRows) {
    const int row = static_cast<int>(threadIdx.x);
    store_statistics(b, h, m * kRows + row, extent, 0.0f, lse, dlse, rows[slot].lse + row, rows[slot].delta + row);
  }

  __shared__ RowExtent parts[kRows / 32];
  const int n = static_cast<int>(threadIdx.x), lane = n % 32;
  if (n < kRows) {
    RowExtent part;
    RowMask row;
    const int query = m * kRows + n;
    if constexpr (F::soft) {
      AttentionRow<T> full;
      if (query < extent.nq) {
        full.query = query;
        full.head = h;
        full.fill(p.sparse, p.sparse.sequence(b));
        part.include(full);
      }
      row = RowMask::of(full);
      rows[slot].edge[n] = RowEdge::of(full);
    } else if (query < extent.nq) {
      row = RowMask::of_hard_window(p.sparse, p.sparse.sequence(b), query, h);
      part.include(row);
    }
    // QueryRows::begin
    rows[slot].begin[n] = row.length == 0 && !p.sparse.bidirectional ? row.newest + 1 : row.begin;
    rows[slot].length[n] = row.length;
    if (p.dwindow != nullptr) p.dwindow[slot * kRows + n] = 0;
    part.reduce();
    if (lane == 0) parts[n / 32] = part;
  }
  __syncthreads();
  if (n >= 32) return;
  RowExtent all = parts[lane % (kRows / 32)];
  all.reduce();
  if (lane == 0) extents[slot] = all;
  if (all.begin >= all.end) return;
  ranges += KeyTiles::first(p.call, b) + h * KeyTiles::per_head(p.call);
  for (int tile = all.begin / F::keys + lane; tile * F::keys < all.end; tile += 32) ranges[tile].include(m);
}

}  // namespace dsalt::cuda::hopper
