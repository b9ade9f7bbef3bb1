// hopper/wgmma.cuh on the host. Products happen at any time between the instruction and the wait for them; until its
// thread's wait, D is filled with NaN.
#pragma once

#include <cstdint>

#include "../../../backends/cuda/elements.cuh"

namespace emulator {

struct WgmmaShape {
  int columns;
  bool is_half, a_transposed, b_transposed, a_in_registers;
  bool operator==(const WgmmaShape&) const = default;
};
/// d [columns / 2]; a_registers [4] or null.
void wgmma(const WgmmaShape& shape, float* d, std::uint64_t a, const std::uint32_t* a_registers, std::uint64_t b,
           bool add);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(unsigned pending);

}  // namespace emulator

namespace dsalt::cuda::hopper {

enum class Major;

inline void wgmma_fence() { emulator::wgmma_fence(); }
inline void wgmma_commit() { emulator::wgmma_commit(); }
template <int pending>
void wgmma_wait() {
  emulator::wgmma_wait(pending);
}
template <int count>
void keep_in_registers(float (&)[count]) {}

template <int n>
struct Wgmma {
  template <class T, Major a_major, Major b_major>
  static void shared_shared(float (&d)[n / 2], std::uint64_t a, std::uint64_t b, bool add) {
    emulator::wgmma({n, std::is_same_v<T, f16>, a_major != Major{}, b_major != Major{}, false}, d, a, nullptr, b, add);
  }
  template <class T, Major a_major, Major b_major>
  static void overwrite_shared_shared(float (&d)[n / 2], std::uint64_t a, std::uint64_t b) {
    shared_shared<T, a_major, b_major>(d, a, b, false);
  }
  template <class T, Major b_major>
  static void register_shared(float (&d)[n / 2], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
    emulator::wgmma({n, std::is_same_v<T, f16>, false, b_major != Major{}, true}, d, 0, a, b, add);
  }
};

}  // namespace dsalt::cuda::hopper
