// Runs CUDA kernels, compiled as ordinary C++, on the host: every thread of a block is a fiber, blocks run one after
// the other, those of a cluster together. Threads are switched where they wait and where they let others go on; warps
// start in a random order, and now and then one falls behind. What is asynchronous (cp.async, TMA, wgmma) happens at a
// random time between the instruction and the wait for it, and until then there is NaN. What real hardware would hang
// or go wrong at ends the process with a message: threads that wait for each other, a barrier or collective that not
// all of its threads reach, addresses outside of dynamic shared memory, a missing fence.
//
// Covers what the kernels use: threadIdx and friends, __shared__, dynamic shared memory, __syncthreads, shuffles and
// votes, atomics, fast-math intrinsics, mma, ldmatrix and cp.async; of Hopper, behind the functions of hopper/tma.cuh,
// wgmma.cuh and cluster.cuh, barriers in shared memory, tensor maps with 128-byte swizzle, stmatrix, wgmma and clusters
// (hopper_*.hpp). Not covered: races that need a switch where no thread waits, writes outside of tensors (sanitizers on
// a device find both), ordinary stores that wgmma reads without a fence (stmatrix and cp.async are covered), accesses
// of the wrong memory order, how long anything takes, inline PTX.
//
// Environment variables, for the process:
//   DSALT_EMULATED_CAPABILITY       80 or 90; 80 if unset
//   DSALT_EMULATED_MULTIPROCESSORS  2, or 8 of 90, if unset: how a call is shared out between blocks depends on it
//   DSALT_EMULATED_EVERY_LANE_ARRIVES   1: as if built with DSALT_CUDA_EVERY_LANE_ARRIVES; 0 if unset
//   DSALT_EMULATED_SEED             another order of warps, copies and products; 0 if unset
//   DSALT_EMULATED_FAULT            barrier_wait:7 leaves out every seventh call: see left_out()
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#undef __shared__
#define __shared__ static
#define __launch_bounds__(...)
#define __trap() std::abort()
#ifndef __restrict__
#define __restrict__ __restrict
#endif

// Of the fiber that runs now.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace emulator {

void barrier();
/// Gives `bytes` (at most 64) of every lane in `mask` to all of them: returns 32 slots of 64 bytes, valid until the
/// second next collective of the warp.
const unsigned char* exchange(std::uint32_t mask, const void* value, std::size_t bytes);
int lane();
void* dynamic_shared_memory();
/// As instructions see it: relative to the block's shared memory.
std::uint32_t shared_address(const void* shared);
/// Blocks run one after the other, those of a cluster together.
void run_blocks(dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster, void (*body)(void*), void* argument);

template <class... Parameters, class... Arguments>
void run(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, unsigned cluster,
         Arguments&&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::decay_t<Parameters>...> parameters;
  } call{kernel, {std::forward<Arguments>(arguments)...}};
  run_blocks(
      grid, block, shared_bytes, cluster,
      [](void* argument) {
        Call& c = *static_cast<Call*>(argument);
        std::apply(c.kernel, c.parameters);
      },
      &call);
}

template <class T>
T from_lane(const unsigned char* slots, int source) {
  T value;
  std::memcpy(&value, slots + 64 * source, sizeof(T));
  return value;
}

inline float element(std::uint32_t pair, int half, __nv_bfloat16) {
  return std::bit_cast<float>(half ? pair & 0xffff0000u : pair << 16);
}
inline float element(std::uint32_t pair, int half, __half) {
  __half_raw raw;
  raw.x = static_cast<unsigned short>(half ? pair >> 16 : pair & 0xffffu);
  return __half2float(__half(raw));
}

template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const unsigned char* slots = exchange(0xffffffffu, mine, sizeof mine);
  const int g = lane() / 4, t = lane() % 4;
  for (int n = 0; n < 4; ++n) {
    const int row = g + (n >= 2 ? 8 : 0), column = 2 * t + n % 2;
    double sum = d[n];
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t a_pair =
          from_lane<std::uint32_t>(slots + 4 * ((row >= 8) + 2 * (k >= 8)), row % 8 * 4 + k % 8 / 2);
      const std::uint32_t b_pair = from_lane<std::uint32_t>(slots + 4 * (4 + (k >= 8)), column * 4 + k % 8 / 2);
      sum += static_cast<double>(element(a_pair, k % 2, T{})) * element(b_pair, k % 2, T{});
    }
    d[n] = static_cast<float>(sum);
  }
}

template <bool transposed>
void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  const unsigned char* slots = exchange(0xffffffffu, &row, sizeof row);
  const int g = lane() / 4, t = lane() % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t pair[2];
    for (int half = 0; half < 2; ++half) {
      const int y = transposed ? 2 * t + half : g, x = transposed ? g : 2 * t + half;
      pair[half] = from_lane<const std::uint16_t*>(slots, 8 * matrix + y)[x];
    }
    r[matrix] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
  }
}

// cp.async: copies that are done some time before the wait for their group; until then NaN is there.
void copy_async_16(void* shared, const void* global, int bytes);
void copy_async_commit();
void copy_async_wait(unsigned pending);

}  // namespace emulator

// What device code calls.
inline std::size_t __cvta_generic_to_shared(const void* shared) { return emulator::shared_address(shared); }
inline void __syncthreads() { emulator::barrier(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __syncwarp(std::uint32_t mask = 0xffffffffu) {
  const char nothing = 0;
  emulator::exchange(mask, &nothing, 1);
}
template <class T>
T __shfl_sync(std::uint32_t mask, T value, int source, int width = 32) {
  const int base = emulator::lane() / width * width;
  return emulator::from_lane<T>(emulator::exchange(mask, &value, sizeof value), base + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(std::uint32_t mask, T value, int bits, int width = 32) {
  const int source = emulator::lane() ^ bits;
  const bool inside = source / width == emulator::lane() / width;
  return emulator::from_lane<T>(emulator::exchange(mask, &value, sizeof value), inside ? source : emulator::lane());
}
template <class T>
T __shfl_down_sync(std::uint32_t mask, T value, int delta, int width = 32) {
  const int source = emulator::lane() + delta;
  const bool inside = source / width == emulator::lane() / width;
  return emulator::from_lane<T>(emulator::exchange(mask, &value, sizeof value), inside ? source : emulator::lane());
}
template <class T>
T __shfl_up_sync(std::uint32_t mask, T value, int delta, int width = 32) {
  const int source = emulator::lane() - delta;
  const bool inside = source >= emulator::lane() / width * width;
  return emulator::from_lane<T>(emulator::exchange(mask, &value, sizeof value), inside ? source : emulator::lane());
}
inline std::uint32_t __ballot_sync(std::uint32_t mask, bool vote) {
  const unsigned char byte = vote;
  const unsigned char* slots = emulator::exchange(mask, &byte, 1);
  std::uint32_t result = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1u && slots[64 * lane]) result |= 1u << lane;
  return result;
}
inline bool __any_sync(std::uint32_t mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(std::uint32_t mask, bool vote) { return __ballot_sync(mask, vote) == mask; }
/// The number of threads of the block for which the vote is true.
int __syncthreads_count(bool vote);
inline bool __syncthreads_or(bool vote) { return __syncthreads_count(vote) != 0; }
inline bool __syncthreads_and(bool vote) { return __syncthreads_count(!vote) == 0; }

template <class T>
T __ldg(const T* address) {
  return *address;
}
inline int __popc(std::uint32_t bits) { return std::popcount(bits); }
inline int __popcll(unsigned long long bits) { return std::popcount(bits); }
inline int __ffs(std::uint32_t bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline int __clz(std::uint32_t bits) { return std::countl_zero(bits); }
inline std::uint32_t __umulhi(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline long long __double_as_longlong(double value) { return std::bit_cast<long long>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __double2float_rd(double value) {
  const auto nearest = static_cast<float>(value);
  return nearest > value ? std::nextafter(nearest, -INFINITY) : nearest;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

template <class T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* address, T value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}
using std::max;
using std::min;
