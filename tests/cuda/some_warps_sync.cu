// What compute-sanitizer's racecheck does not see (docs/verification.md, "Races"): four of a block's twelve warps meet
// once at a barrier of their own. Then every thread writes a word, the block meets (__syncthreads()), and every thread
// reads another one's word. That is ordered whatever four warps did before.
//
//   compute-sanitizer --tool racecheck some_warps_sync number     at a barrier by number (bar.sync 8, 128): a hazard
//                                                                 that there is none of
//   compute-sanitizer --tool racecheck some_warps_sync shared     at one in shared memory (mbarrier): 0 hazards
//   compute-sanitizer --tool racecheck some_warps_sync none       nowhere: 0 hazards
#include <cstdio>
#include <string_view>

#include "hopper/tma.cuh"

using namespace dsalt::cuda::hopper;

enum class Meet { none, number, shared };

constexpr int threads = 384, some = 128;

__global__ void write_then_read(Meet meet, int* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ int words[threads];
  __shared__ Barrier barrier;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    barrier_init(&barrier, some);
    barrier_init_fence();
  }
  __syncthreads();
  if (thread < some) {
    if (meet == Meet::number) named_sync(8, some);
    if (meet == Meet::shared) {
      barrier_arrive(&barrier);
      barrier_wait(&barrier, 0);
    }
  }
  __syncthreads();
  words[thread] = thread;
  __syncthreads();
  out[thread] = words[threads - 1 - thread];
#endif
}

int main(int argc, char** argv) {
  const std::string_view name = argc == 2 ? argv[1] : "";
  if (name != "none" && name != "number" && name != "shared") {
    std::fprintf(stderr, "usage: some_warps_sync none|number|shared\n");
    return 2;
  }
  const Meet meet = name == "none" ? Meet::none : name == "number" ? Meet::number : Meet::shared;
  int *out = nullptr, host[threads] = {};
  cudaMalloc(&out, sizeof host);
  write_then_read<<<1, threads>>>(meet, out);
  const cudaError_t status = cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  for (int n = 0; n < threads && status == cudaSuccess; ++n)
    if (host[n] != threads - 1 - n)
      return std::fprintf(stderr, "word %d is %d, need %d\n", n, host[n], threads - 1 - n), 1;
  if (status != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  return status == cudaSuccess ? 0 : 1;
}
