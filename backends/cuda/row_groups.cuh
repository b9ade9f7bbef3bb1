// Groups of threads that share one row: up to 32 threads, of which a warp holds several groups, or a whole block.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "launch.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

/// Blocks of (threads of a group, groups), where each thread holds up to `vectors` vectors of the row: number
/// threadIdx.x, threadIdx.x + blockDim.x, ... Which elements a thread adds up depends on nothing but the row's length.
struct GroupLayout {
  unsigned threads = 1, groups = 1;

  GroupLayout(std::int64_t row_vectors, int vectors) {
    const auto needed = static_cast<unsigned>(ceil_div(std::max<std::int64_t>(row_vectors, 1), vectors));
    threads = needed <= 32 ? std::bit_ceil(needed) : (needed + 31) / 32 * 32;
    groups = threads <= 32 ? 128 / threads : 1;
  }
  dim3 block() const { return {threads, groups}; }
  unsigned size() const { return threads * groups; }
};

/// Every thread gets combine() over its group of each of the values. All threads of the block must call it.
template <int count, class Real, class Combine>
__device__ inline void group_reduce(Real (&values)[count], Combine&& combine) {
  const int threads = blockDim.x;
  const auto over_lanes = [&](int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
      for (int k = 0; k < count; ++k) values[k] = combine(values[k], __shfl_xor_sync(0xffffffffu, values[k], step));
    }
  };
  over_lanes(threads < 32 ? threads : 32);
  if (threads <= 32) return;
  __shared__ Real partial[count][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = threads / 32;
  __syncthreads();  // the last call's values have been read
#pragma unroll
  for (int k = 0; k < count; ++k)
    if (lane == 0) partial[k][warp] = values[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < count; ++k) values[k] = lane < warps ? partial[k][lane] : Real{0};  // 0: sums, and sizes
  over_lanes(32);
}

template <int count, class Real>
__device__ inline void group_sum(Real (&values)[count]) {
  group_reduce(values, [](Real a, Real b) { return a + b; });
}

}  // namespace dsalt::cuda
