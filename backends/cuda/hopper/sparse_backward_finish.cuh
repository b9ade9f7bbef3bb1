// What runs after the sparse backward kernel (sparse_backward.cuh): sums become gradients.
#pragma once

#include "backward_fragments.cuh"
#include "landmark_sums.cuh"

namespace dsalt::cuda::hopper {

/// The gradients of the key whose sums are `row`. A warp calls.
template <int kHead, class T>
__device__ inline void store_landmark(const AttentionCall<T>& call, const LandmarkSums& sums, const Rows<T>& dk,
                                      const Rows<T>& dv, float scale, int row, int lane) {
  if (row >= *sums.rows) return;
  const std::int64_t place = sums.place[row], key = place % call.nk, outer = place / call.nk;
  const int b = call.packed ? 0 : static_cast<int>(outer / call.kv_heads),
            kv_head = static_cast<int>(outer % call.kv_heads);
  const float* from = sums.dk_dv + static_cast<std::int64_t>(row) * 2 * kHead;
  for (int column = lane; column < kHead; column += 32) {
    dk.at(b, kv_head, key)[column] = narrow<T>(from[sum_of_column(column)] * scale);
    dv.at(b, kv_head, key)[column] = narrow<T>(from[kHead + sum_of_column(column)]);
  }
}

/// Rounds all sums: of landmarks in the first blocks, eight each, then of dq, a slot of a head each. 256 threads.
template <class T, int kHead, int kRows>
__global__ void sparse_backward_finish_kernel(AttentionCall<T> call, LandmarkSums sums, Rows<T> dk, Rows<T> dv,
                                              unsigned landmark_blocks, DenseCall queries, QuerySlots slots, Rows<T> dq,
                                              float scale) {
  const int thread = static_cast<int>(threadIdx.x);
  if (blockIdx.x < landmark_blocks)
    store_landmark<kHead>(call, sums, dk, dv, scale, static_cast<int>(8 * blockIdx.x) + thread / 32, thread % 32);
  else
    store_query_gradient_rows<kHead, kRows>(queries, slots, dq, scale, static_cast<int>(blockIdx.x - landmark_blocks));
}

/// One block per list: dlambda of its slots, summed over the row heads that share it; 0 where a slot admits nothing.
template <class T>
__global__ void store_dlambda_kernel(AttentionCall<T> call, const float* sums, View<float, 4> dlambda) {
  const std::int64_t list = blockIdx.x, t = list % call.lists, hl = list / call.lists % call.list_heads,
                     b = list / call.lists / call.list_heads;
  for (std::int64_t slot = threadIdx.x; slot < call.slots; slot += blockDim.x) *dlambda.at(b, hl, t, slot) = 0;
  __syncthreads();
  const std::int64_t first_z = call.list_heads == 1 ? 0 : hl, last_z = call.list_heads == 1 ? call.row_heads : hl + 1;
  for (int n = threadIdx.x; n < call.clean.count[list]; n += blockDim.x) {
    float sum = 0;
    for (std::int64_t z = first_z; z < last_z; ++z)
      sum += sums[((b * call.row_heads + z) * call.lists + t) * call.slots + n];
    *dlambda.at(b, hl, t, call.clean.slot[list * call.slots + n]) = sum;
  }
}

/// One block of `rows` threads per slot of a window head: dw, summed over the heads that share a window.
template <int rows>
__global__ void store_dwindow_kernel(DenseCall call, QuerySlots slots, const float* sums, int window_heads,
                                     Rows<float> dwindow) {
  const auto [b, h, m] = query_tile(call, static_cast<int>(blockIdx.x));
  if (b < 0 || h >= window_heads) return;
  const Extent extent = extent_of(call, b);
  const int i = m * rows + static_cast<int>(threadIdx.x);
  if (i >= extent.nq) return;
  float sum = 0;
  if (sums != nullptr)
    for (int head = h; head < (window_heads == 1 ? call.hq : h + 1); ++head)
      sum += sums[slots.slot(call, rows, b, head, m) * rows + threadIdx.x];
  *dwindow.at(b, h, extent.q_start + i) = sum;
}

}  // namespace dsalt::cuda::hopper
