// Must be refused by backends/cuda/refuse_serialised_wgmma: a sum is changed while a product that adds to it is under
// way, so ptxas makes the products wait for each other, with a message that is no warning. With -DSOUND nothing
// touches it.
#include <cuda_bf16.h>

#include "hopper/wgmma.cuh"

using namespace dsalt::cuda;
using namespace dsalt::cuda::hopper;

__global__ void planted_kernel(const unsigned char* tile, float* to, int products) {
  extern __shared__ __align__(1024) unsigned char shared[];
  shared[threadIdx.x] = tile[threadIdx.x];
  __syncthreads();
  const std::uint64_t operand = tile_descriptor(shared);
  float d[32] = {};
  for (int n = 0; n < products; ++n) {
    keep_in_registers(d);
    wgmma_fence();
    Wgmma<64>::shared_shared<bf16, Major::k, Major::k>(d, operand, operand, true);
    wgmma_commit();
#ifndef SOUND
    d[1] += 1;
#endif
    wgmma_wait<0>();
    keep_in_registers(d);
  }
  for (int n = 0; n < 32; ++n) to[threadIdx.x * 32 + n] = d[n];
}
