// 2^x in float, in one instruction: within 2 units, and 0 below 2^-126; and log2(x), within 2^-22 absolutely or,
// outside [0.5, 2], relatively.
#pragma once

#include "launch.cuh"

namespace dsalt::cuda {

__device__ inline float exp2_fast(float x) {
#ifdef DSALT_EMULATED
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ inline float log2_fast(float x) {
#ifdef DSALT_EMULATED
  return log2f(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace dsalt::cuda
