// The running softmax of the sparse forward kernel: two rows of a thread side by side.
#pragma once

#include "fragments.cuh"

namespace dsalt::cuda::hopper {

/// The running maximum and (this thread's part of the) sum of two rows. A maximum that grows by less than 2^8 in
/// weights (they fit into float16) is left as it is, so that earlier sums mostly keep their scale.
struct PairedSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float offset[2] = {0, 0};  // maximum * scale_log2: what exponents are relative to

  /// s becomes the unnormalised weights exp2(scale_log2 (s - maximum)). Whether some row of the warp has another scale
  /// now: then sums so far must be multiplied by `factor`, else these are 1.
  template <int count>
  __device__ bool update(float (&s)[count], float scale_log2, float (&factor)[2]) {
    float top[2], other[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(maximum[r], fmaxf(s[2 * r], s[2 * r + 1]));
      other[r] = fmaxf(s[4 + 2 * r], s[4 + 2 * r + 1]);
    }
#pragma unroll
    for (int n = 2; n < count / 4; n += 2)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
        other[r] = fmaxf(other[r], fmaxf(s[4 * n + 4 + 2 * r], s[4 * n + 4 + 2 * r + 1]));
      }
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], other[r]);
#pragma unroll
    for (int distance = 1; distance <= 2; ++distance)
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], distance));
    bool usual = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = 1;
      // The first key is none of these: -inf - -inf is no small growth.
      usual &= (top[r] - maximum[r]) * scale_log2 <= 8 && fabsf(offset[r]) <= far;
    }
    float relative_to[2] = {offset[0], offset[1]};
    const bool unusual = __any_sync(0xffffffffu, !usual);
    if (unusual) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if ((top[r] - maximum[r]) * scale_log2 <= 8) top[r] = maximum[r];
        offset[r] = softmax_offset(top[r], scale_log2);
        factor[r] = softmax_factor(maximum[r], scale_log2, offset[r]);
        maximum[r] = top[r];
        // The fused product below is off by the offset's rounding. In rows where that could be seen in a rounded
        // weight, the maximum is taken off first; the other rows of the warp keep their bits.
        const bool is_far = fabsf(offset[r]) > far;
        const float shift = is_far ? top[r] : 0;
#pragma unroll
        for (int n = 0; n < count / 4; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) s[4 * n + 2 * r + half] -= shift;
        relative_to[r] = is_far ? 0 : offset[r];
        sum[r] *= factor[r];
      }
    }
    float total[2][2] = {};
#pragma unroll
    for (int n = 0; n < count / 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& value = s[4 * n + 2 * r + half];
          value = exp2_fast(fmaf(value, scale_log2, -relative_to[r]));
          total[r][half] += value;
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += total[r][0] + total[r][1];
    return unusual;
  }
  __device__ void finish() { add_lanes_of_row(sum); }

 private:
  static constexpr float far = 1024;
};

}  // namespace dsalt::cuda::hopper
