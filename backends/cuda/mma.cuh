// Warp-level matrix products of 16-bit elements with float32 sums (sm_80 and newer), one thin function per instruction.
//
// Fragment layout, lane l = 4 g + t (g = l / 4, t = l % 4), two elements to a 32-bit register, the lower index in the
// lower half:
//   A 16x16 (row, k):  a[0] (g, 2t..)  a[1] (g + 8, 2t..)  a[2] (g, 2t + 8..)  a[3] (g + 8, 2t + 8..)
//   B 16x8  (k, col):  b[0] (2t.., g)  b[1] (2t + 8.., g)
//   D 16x8  (row, col): d[0] (g, 2t)  d[1] (g, 2t + 1)  d[2] (g + 8, 2t)  d[3] (g + 8, 2t + 1)
#pragma once

#include <cstdint>

#include "elements.cuh"
#include "launch.cuh"

namespace dsalt::cuda {

/// d += a b
template <class T>
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  static_assert(is_16_bit<T>);
#ifdef DSALT_EMULATED
  emulator::mma_16x8x16<T>(d, a, b);
#else
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// Four 8x8 matrices of 16-bit elements from shared memory: lane l names the 16-byte row l % 8 of matrix l / 8.
/// Register i gets elements (g, 2t..2t+1) of matrix i; with `transposed`, elements (2t, g) and (2t + 1, g).
template <bool transposed = false>
__device__ inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
#ifdef DSALT_EMULATED
  emulator::ldmatrix_x4<transposed>(r, row);
#else
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

/// 16 bytes from global to shared memory without registers; `bytes` of them are read (0 to 16), the rest become 0.
__device__ inline void copy_async_16(void* shared, const void* global, int bytes = 16) {
#ifdef DSALT_EMULATED
  emulator::copy_async_16(shared, global, bytes);
#else
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
#endif
}
/// The same of what is read once and together with what lies around it: the cache fetches 256 bytes at a time.
__device__ inline void copy_async_16_streamed(void* shared, const void* global) {
#ifdef DSALT_EMULATED
  emulator::copy_async_16(shared, global, 16);
#else
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#endif
}
__device__ inline void copy_async_commit() {
#ifdef DSALT_EMULATED
  emulator::copy_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until at most `pending` of the latest groups are under way.
template <int pending>
__device__ inline void copy_async_wait() {
#ifdef DSALT_EMULATED
  emulator::copy_async_wait(pending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace dsalt::cuda
