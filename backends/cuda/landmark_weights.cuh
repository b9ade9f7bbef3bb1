// Log-weights of landmarks near float32's range, and the weights P that come of them: alike in all kernels for 16 bits.
// What is beyond +-1e38 min(|scale|, 1) counts as that: added to a finite score it stays finite.
#pragma once

#include <cmath>

#include "exp2.cuh"

namespace dsalt::cuda {

/// In units of unscaled scores.
__device__ inline float landmark_bias(float log_weight, float inverse_scale) {
  const float most = fminf(1e38f, 1e38f * fabsf(inverse_scale));
  return fminf(fmaxf(log_weight * inverse_scale, -most), most);
}
inline constexpr float log2_of_e = 1.44269504088896341f;
/// The largest that landmark_exponent() gives.
__host__ __device__ inline float most_landmark_exponent(float scale_log2) {
  return fminf(1e38f * log2_of_e, 1e38f * fabsf(scale_log2));
}
/// In exponents of 2; scale_log2: scale * log2(e).
__device__ inline float landmark_exponent(float log_weight, float scale_log2) {
  const float most = most_landmark_exponent(scale_log2);
  return fminf(fmaxf(log_weight * log2_of_e, -most), most);
}

/// P of a landmark from its exponent and its row's lse, in exponents of 2. Beside a large log-weight both are rounded
/// to more than a weight can tell: no weight is above 1, and one within that rounding of 1 is 1. NaN stays.
__device__ inline float landmark_weight(float exponent, float lse_log2) {
  const float below = exponent - lse_log2;
  return exp2_fast(fmaf(fabsf(lse_log2), 0x1p-22f, below) > 0 ? 0 : below);
}

}  // namespace dsalt::cuda
