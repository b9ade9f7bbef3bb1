// hopper/tma.cuh on the host. Copies happen at any time between the instruction and the wait for them.
#pragma once

#include <cstdint>

#include <cuda.h>

namespace emulator {

void barrier_init(std::uint64_t* barrier, int arrivals);
void barrier_arrive(std::uint64_t* barrier, std::uint32_t expected_bytes);
void barrier_wait(std::uint64_t* barrier, std::uint32_t parity);
void load_box(void* shared, const CUtensorMap* map, std::uint64_t* barrier, unsigned rank, const int* coordinates);
void load_bytes(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* barrier);
void stmatrix_x4(void* row, const std::uint32_t (&r)[4]);
void async_proxy_fence();
void named_barrier(int number, int count, bool wait);
/// What is there once other threads have run.
int watch(const int* global);
/// DSALT_CUDA_EVERY_LANE_ARRIVES of the module for devices; here it is an environment variable (emulator.hpp).
bool every_lane_arrives();

}  // namespace emulator

namespace dsalt::cuda::hopper {

using Barrier = std::uint64_t;

inline int arrivals_of_warp() { return emulator::every_lane_arrives() ? 32 : 1; }
inline void barrier_init(Barrier* barrier, int arrivals) { emulator::barrier_init(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(Barrier* barrier) { emulator::barrier_arrive(barrier, 0); }
inline void barrier_expect(Barrier* barrier, std::uint32_t bytes) { emulator::barrier_arrive(barrier, bytes); }
inline void barrier_wait(Barrier* barrier, std::uint32_t parity) { emulator::barrier_wait(barrier, parity); }
inline void barrier_wait_asleep(Barrier* barrier, std::uint32_t parity) { emulator::barrier_wait(barrier, parity); }
inline void tma_load(void* shared, const CUtensorMap* map, Barrier* barrier, int column, int row, int head,
                     int sequence) {
  const int coordinates[4] = {column, row, head, sequence};
  emulator::load_box(shared, map, barrier, 4, coordinates);
}
inline void tma_load(void* shared, const CUtensorMap* map, Barrier* barrier, int column, int row) {
  const int coordinates[2] = {column, row};
  emulator::load_box(shared, map, barrier, 2, coordinates);
}
inline void bulk_load(void* shared, const void* global, std::uint32_t bytes, Barrier* barrier) {
  emulator::load_bytes(shared, global, bytes, barrier);
}
inline void stmatrix_x4(void* row, const std::uint32_t (&r)[4]) { emulator::stmatrix_x4(row, r); }
inline void reduce_add(float* global, float a, float b, float c, float d) {
  if (reinterpret_cast<std::uintptr_t>(global) % 16 != 0) std::abort();
  global[0] += a, global[1] += b, global[2] += c, global[3] += d;
}
inline void reduce_add(float* global, float a, float b) {
  if (reinterpret_cast<std::uintptr_t>(global) % 8 != 0) std::abort();
  global[0] += a, global[1] += b;
}
inline int load_acquire(const int* global) { return emulator::watch(global); }
inline void async_proxy_fence() { emulator::async_proxy_fence(); }
template <int count>
void fewer_registers() {}
template <int count>
void more_registers() {}
inline void named_sync(int number, int threads) { emulator::named_barrier(number, threads, true); }
inline void named_arrive(int number, int threads) { emulator::named_barrier(number, threads, false); }

}  // namespace dsalt::cuda::hopper
