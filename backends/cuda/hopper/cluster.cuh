// Blocks of a cluster: they run at the same time and reach each other's shared memory. One thin function per
// instruction (sm_90).
#pragma once

#include <cstdint>

#ifdef DSALT_EMULATED
#include "hopper_cluster.hpp"  // the same functions on the host
#else

namespace dsalt::cuda::hopper {

__device__ inline int blocks_of_cluster() {
  std::uint32_t count;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return static_cast<int>(count);
}
__device__ inline int rank_in_cluster() {
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// Where block `rank` of the cluster has what this block has at `shared`.
template <class T>
__device__ inline T* in_block_of_cluster(T* shared, int rank) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(shared), "r"(rank));
  return there;
}
/// Waits until all threads of the cluster have come here: before one touches another block's shared memory.
__device__ inline void start_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// Waits for all threads of the cluster, and makes what they wrote to shared memory visible.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace dsalt::cuda::hopper
#endif
