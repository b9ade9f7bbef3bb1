// Barriers in shared memory (mbarrier), the bulk tensor copy engine (TMA), matrices to shared memory, additions to
// global memory, register reallocation and named barriers: one thin function per instruction (sm_90a).
#pragma once

#include <cstdint>

#include <cuda.h>

#ifdef DSALT_EMULATED
#include "hopper_tma.hpp"  // the same functions on the host
#endif

namespace dsalt::cuda::hopper {

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

#ifndef DSALT_EMULATED
/// How often a barrier counts a warp that release_by_warp() lets arrive. Once is enough; but compute-sanitizer's
/// racecheck does not see that __syncwarp() has put the other lanes' reads before it. docs/verification.md, "Races".
__device__ constexpr int arrivals_of_warp() {
#ifdef DSALT_CUDA_EVERY_LANE_ARRIVES
  return 32;
#else
  return 1;
#endif
}

/// Counts arrivals and expected bytes; a phase ends when both are complete. Waiters name the parity of the phase they
/// wait for: the first phase is 0.
using Barrier = std::uint64_t;

__device__ inline void barrier_init(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the copy engine and to other blocks of the cluster.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and adds `bytes` to what the phase waits for.
__device__ inline void barrier_expect(Barrier* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(Barrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// The same where the wait is long: the thread sleeps until then and leaves its scheduler to others.
__device__ inline void barrier_wait_asleep(Barrier* barrier, std::uint32_t parity) {
  constexpr std::uint32_t longest_nanoseconds = 10'000'000;
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n}" ::"r"(shared_address(barrier)),
      "r"(parity), "r"(longest_nanoseconds)
      : "memory");
}

/// Copies one box to shared memory; the barrier is told of its full size also where the box leaves the tensor (there it
/// is filled with zeros). Coordinates in elements, innermost first.
__device__ inline void tma_load(void* shared, const CUtensorMap* map, Barrier* barrier, int column, int row, int head,
                                int sequence) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(sequence)
      : "memory");
}

/// The same from a matrix.
__device__ inline void tma_load(void* shared, const CUtensorMap* map, Barrier* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}

/// `bytes` (a multiple of 16, both addresses too) of plain memory to shared memory.
__device__ inline void bulk_load(void* shared, const void* global, std::uint32_t bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// Four 8x8 matrices of 16-bit elements to shared memory: lane l names the 16-byte row l % 8 of matrix l / 8; register
/// i holds elements (g, 2t..2t+1) of matrix i, lane = 4 g + t.
__device__ inline void stmatrix_x4(void* row, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// Adds four floats to global memory (16-byte aligned) without waiting; in no particular order with other blocks.
__device__ inline void reduce_add(float* global, float a, float b, float c, float d) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

/// The same of two floats (8-byte aligned).
__device__ inline void reduce_add(float* global, float a, float b) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(global), "f"(a), "f"(b) : "memory");
}

/// Reads what another block wrote before it released it.
__device__ inline int load_acquire(const int* global) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}

/// Ordinary writes to shared memory before this are seen by wgmma and TMA after it.
__device__ inline void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Sets the registers of each thread of the warpgroup.
template <int count>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// Barriers of some threads of the block by number (1 to 15; 0 is __syncthreads): `threads` counts all that sync or
/// arrive.
__device__ inline void named_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
#endif

/// A warp's arrival, after everything that its lanes have read: that of one lane, for all of them.
__device__ inline void release_by_warp(Barrier* barrier, int lane) {
  __syncwarp();
  if (arrivals_of_warp() == 32 || lane == 0) barrier_arrive(barrier);
}

}  // namespace dsalt::cuda::hopper
