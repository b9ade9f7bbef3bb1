// The entry of the kernels that copy with TMA and multiply with wgmma. `F` has Parameters, threads,
// blocks_per_multiprocessor, shared_bytes, init_barriers() and run(thread).
#pragma once

#include "../dependent_launch.cuh"
#include "../launch.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

template <class F>
__global__ __launch_bounds__(F::threads,
                             F::blocks_per_multiprocessor) void warp_specialized_kernel(const __grid_constant__
                                                                                        typename F::Parameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DSALT_EMULATED)
  unsigned char* const memory = dynamic_shared_memory<unsigned char>();
  const std::uint32_t misaligned = shared_address(memory) % 1024;  // swizzled tiles repeat every 1024 bytes
  F f(p, memory + (misaligned ? 1024 - misaligned : 0));
  if (threadIdx.x == 0) {
    f.init_barriers();
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_earlier_kernels();
  let_later_kernels_start();
  f.run(static_cast<int>(threadIdx.x));
#endif
}

}  // namespace dsalt::cuda::hopper
