// Float32 sums of the gradients of keys that are landmarks: several jobs of the sparse backward kernels
// (sparse_backward.cuh, landmark_backward.cuh, list_backward.cuh) add to them, a last kernel rounds them.
#pragma once

#include "../attention_call.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

/// A place is that of a key among those of all kv heads: [B,Hkv,Nk] or, packed, [Hkv,R].
struct LandmarkSums {
  std::int32_t* row = nullptr;    // [places]: 1 + its row of dk_dv; 0: not a landmark; null: there are no lists
  std::int32_t* place = nullptr;  // [rows]: the inverse
  std::int32_t* rows = nullptr;   // how many
  float* dk_dv = nullptr;         // [rows, 2 D], dk not yet scaled; columns in the order of sum_of_column()
  float* dlambda = nullptr;       // [B, row heads, T, K], in the order of clean lists; null: not wanted
};

template <class T>
__device__ inline std::int64_t key_place(const AttentionCall<T>& call, std::int64_t b, int kv_head,
                                         std::int64_t k_start, int key) {
  return call.packed ? kv_head * call.nk + k_start + key : (b * call.kv_heads + kv_head) * call.nk + key;
}

/// Where the sum of a column lies: a thread's four of every sixteen columns (8 c + 2 t and the next, c even and odd)
/// side by side, so that it adds them in one go.
__device__ inline int sum_of_column(int column) {
  return column / 16 * 16 + column % 8 / 2 * 4 + column % 16 / 8 * 2 + column % 2;
}

/// Adds row r of the thread's two (wgmma.cuh has the layout) to row `sum_row` of the sums; negative: it is nobody's.
template <int count>
__device__ inline void add_to_landmark(const LandmarkSums& sums, int sum_row, const float (&dk)[count],
                                       const float (&dv)[count], int r, int lane) {
  if (sum_row < 0) return;
  constexpr int head = 2 * count;
  float* to = sums.dk_dv + static_cast<std::int64_t>(sum_row) * 2 * head + lane % 4 * 4;
#pragma unroll
  for (int c = 0; c < head / 8; c += 2) {
    const int n = 4 * c + 2 * r;
    reduce_add(to + 8 * c, dk[n], dk[n + 1], dk[n + 4], dk[n + 5]);
    reduce_add(to + head + 8 * c, dv[n], dv[n + 1], dv[n + 4], dv[n + 5]);
  }
}

}  // namespace dsalt::cuda::hopper
