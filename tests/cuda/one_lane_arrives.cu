// What compute-sanitizer's racecheck does not see (docs/verification.md, "Races"): a warp reads shared memory, and
// after
// __syncwarp() one of its lanes arrives at a barrier (mbarrier) for all of them. A second warp waits for the barrier
// and writes there. That is ordered, and so is the same with an arrival of every lane, which racecheck understands.
//
//   compute-sanitizer --tool racecheck one_lane_arrives 1      reports a hazard that there is none of
//   compute-sanitizer --tool racecheck one_lane_arrives 32     0 hazards
#include <cstdio>
#include <cstdlib>

#include "hopper/tma.cuh"

using namespace dsalt::cuda::hopper;

__global__ void read_then_write(int arrivals, int* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ int words[32];
  __shared__ Barrier empty;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x < 32) words[lane] = lane;
  if (threadIdx.x == 0) {
    barrier_init(&empty, arrivals);
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    out[lane] = words[31 - lane];
    __syncwarp();
    if (lane < arrivals) barrier_arrive(&empty);
  } else {
    barrier_wait(&empty, 0);
    words[lane] = -1;
  }
#endif
}

int main(int argc, char** argv) {
  const int arrivals = argc == 2 ? std::atoi(argv[1]) : 0;
  if (arrivals != 1 && arrivals != 32) {
    std::fprintf(stderr, "usage: one_lane_arrives 1|32\n");
    return 2;
  }
  int *out = nullptr, host[32] = {};
  cudaMalloc(&out, sizeof host);
  read_then_write<<<1, 64>>>(arrivals, out);
  const cudaError_t status = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  for (int n = 0; n < 32 && status == cudaSuccess; ++n)
    if (host[n] != 31 - n) return std::fprintf(stderr, "word %d is %d, need %d\n", n, host[n], 31 - n), 1;
  if (status != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  return status == cudaSuccess ? 0 : 1;
}
