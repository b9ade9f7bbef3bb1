// Few queries: the parts of a tile of rows put together, where they are too many for a cluster (decode_forward.cuh).
#pragma once

#include "../dependent_launch.cuh"
#include "decode_call.cuh"

namespace dsalt::cuda::hopper {

inline constexpr int combine_threads = 128;

/// One row of a tile from its parts: each thread takes 8 columns of every so many-th part.
template <class F>
__global__ __launch_bounds__(combine_threads) void decode_combine_kernel(const __grid_constant__
                                                                         typename F::Parameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DSALT_EMULATED)
  constexpr int pieces = F::pieces, shares = combine_threads / pieces;
  __shared__ float2 statistics[shares];
  __shared__ float4 values[shares * pieces * 2];
  wait_for_earlier_kernels();
  let_later_kernels_start();
  const unsigned unit = blockIdx.x / F::rows;
  const int row = static_cast<int>(blockIdx.x % F::rows);
  const DecodeTile tile = DecodeTile::at(p, unit);
  if (row >= tile.rows) return;
  const int piece = static_cast<int>(threadIdx.x) % pieces, share = static_cast<int>(threadIdx.x) / pieces;
  DecodeSum total;
  for (int part = share; part < p.parts; part += shares) {
    const std::int64_t at = (static_cast<std::int64_t>(unit) * p.parts + part) * F::rows + row;
    total.add(p.statistics[at], p.values + (at * pieces + piece) * 8);
  }
  if (piece == 0) statistics[share] = {total.maximum, total.sum};
  total.keep(reinterpret_cast<float*>(values + threadIdx.x * 2));
  __syncthreads();
  if (share > 0) return;
  for (int other = 1; other < shares; ++other)
    total.add(statistics[other], reinterpret_cast<const float*>(values + (other * pieces + piece) * 2));
  total.store(p, tile, row, piece * 8);
#endif
}

}  // namespace dsalt::cuda::hopper
