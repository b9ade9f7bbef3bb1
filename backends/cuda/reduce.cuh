// Sums over a warp and over a block in a fixed order: the same bits at every run.
#pragma once

#include <cstdint>

namespace dsalt::cuda {

/// Every lane gets the sum over the warp.
template <class Real>
__device__ inline Real warp_sum(Real value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

template <class Real>
__device__ inline Real warp_max(Real value) {
  for (int step = 16; step > 0; step /= 2) {
    const Real other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other > value ? other : value;
  }
  return value;
}

/// Not the negated maximum of negated values: ptxas 13.0 for sm_90a was seen to lose the outer sign of that.
template <class Real>
__device__ inline Real warp_min(Real value) {
  for (int step = 16; step > 0; step /= 2) {
    const Real other = __shfl_xor_sync(0xffffffffu, value, step);
    value = other < value ? other : value;
  }
  return value;
}

/// Every thread gets the sum over the block (x dimension, whole warps, at most 1024 threads).
template <class Real>
__device__ inline Real block_sum(Real value) {
  __shared__ Real partial[32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  const int warps = blockDim.x / 32;
  Real total = lane < warps ? partial[lane] : Real{0};
  total = warp_sum(total);
  __syncthreads();  // partial may be written again
  return total;
}

}  // namespace dsalt::cuda
