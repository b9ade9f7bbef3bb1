// Blocks of a cluster: they run at the same time and reach each other's shared memory (sm_90).
#pragma once

#ifdef DSALT_EMULATED
#include "hopper_cluster.hpp"  // the same functions on the host
#else
#include <cooperative_groups.h>

namespace dsalt::cuda::hopper {

__device__ inline int blocks_of_cluster() { return static_cast<int>(cooperative_groups::this_cluster().num_blocks()); }
__device__ inline int rank_in_cluster() { return static_cast<int>(cooperative_groups::this_cluster().block_rank()); }
/// Where block `rank` of the cluster has what this block has at `shared`.
template <class T>
__device__ inline T* in_block_of_cluster(T* shared, int rank) {
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
}
/// Waits for all threads of the cluster, and makes what they wrote to shared memory visible.
__device__ inline void sync_cluster() { cooperative_groups::this_cluster().sync(); }

}  // namespace dsalt::cuda::hopper
#endif
