// Programmatic dependent launch: a kernel launched with it starts while the one before it in the stream still runs.
// Both do nothing in code for devices before 9.0, and in the emulation.
#pragma once

#ifdef DSALT_EMULATED
#include "emulator.hpp"
#endif

namespace dsalt::cuda {

/// Until it returns, a kernel launched so may touch nothing that an earlier kernel reads or writes.
__device__ inline void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel may begin to start, if it was launched so.
__device__ inline void let_later_kernels_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace dsalt::cuda
