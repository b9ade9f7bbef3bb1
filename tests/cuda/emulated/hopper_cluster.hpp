// hopper/cluster.cuh on the host.
#pragma once

namespace emulator {

unsigned blocks_of_cluster();
unsigned rank_in_cluster();
void* in_block_of_cluster(const void* shared, unsigned rank);
void sync_cluster();

}  // namespace emulator

namespace dsalt::cuda::hopper {

inline int blocks_of_cluster() { return static_cast<int>(emulator::blocks_of_cluster()); }
inline int rank_in_cluster() { return static_cast<int>(emulator::rank_in_cluster()); }
template <class T>
T* in_block_of_cluster(T* shared, int rank) {
  return static_cast<T*>(emulator::in_block_of_cluster(shared, static_cast<unsigned>(rank)));
}
inline void start_cluster() { emulator::sync_cluster(); }
inline void sync_cluster() { emulator::sync_cluster(); }

}  // namespace dsalt::cuda::hopper
