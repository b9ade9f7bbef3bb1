// Functions of the special function units, one instruction each.
#pragma once

#include "launch.cuh"

namespace dsalt::cuda {

/// 2^x within 2 units, and 0 below 2^-126.
__device__ inline float exp2_fast(float x) {
#ifdef DSALT_EMULATED
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// log2(x), within 2^-22 absolutely or, outside [0.5, 2], relatively.
__device__ inline float log2_fast(float x) {
#ifdef DSALT_EMULATED
  return log2f(x);
#else
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// 1 / x within 1 unit, for normal x below 2^126.
__device__ inline float reciprocal_fast(float x) {
#ifdef DSALT_EMULATED
  return 1 / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace dsalt::cuda
