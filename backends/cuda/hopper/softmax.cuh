// The running softmax of the forward kernels on the sums of a product (wgmma.cuh has their layout): two rows of a
// thread side by side.
#pragma once

#include "../exp2.cuh"

namespace dsalt::cuda::hopper {

/// maximum * scale_log2, rounded: what the exponents of a row are relative to. Always this one product, never part of a
/// fused one: an old offset minus an equal new one must be exactly 0.
__device__ inline float softmax_offset(float maximum, float scale_log2) {
  return maximum == -INFINITY ? 0 : __fmul_rn(maximum, scale_log2);  // no key so far: all weights 0
}
/// What sums relative to `old_maximum` must be scaled by to be relative to `offset`.
__device__ inline float softmax_factor(float old_maximum, float scale_log2, float offset) {
  return exp2_fast(__fmul_rn(old_maximum, scale_log2) - offset);
}

/// Of two rows, the sums over the four lanes that share them.
__device__ inline void add_lanes_of_row(float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
  }
}

/// The running maximum and (this thread's part of the) sum of two rows. A maximum that grows by less than 2^8 in
/// weights (they fit into float16) is left as it is, so that earlier sums mostly keep their scale.
struct PairedSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float offset[2] = {0, 0};  // maximum * scale_log2: what exponents are relative to

  /// The first scores of the rows: s becomes the unnormalised weights exp2(scale_log2 (s - maximum)). What update()
  /// does with them, without asking whether it has to.
  template <int count>
  __device__ void start(float (&s)[count], float scale_log2) {
    float relative_to[2];
    find_tops(s, maximum);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = softmax_offset(maximum[r], scale_log2);
      relative_to[r] = origin(s, r);
    }
    weigh(s, scale_log2, relative_to);
  }

  /// s becomes weights likewise. Whether some row of the warp has another scale now: then sums so far must be
  /// multiplied by `factor`, else these are 1.
  template <int count>
  __device__ bool update(float (&s)[count], float scale_log2, float (&factor)[2]) {
    float top[2] = {maximum[0], maximum[1]};
    find_tops(s, top);
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
        relative_to[r] = origin(s, r);
        sum[r] *= factor[r];
      }
    }
    weigh(s, scale_log2, relative_to);
    return unusual;
  }
  __device__ void finish() { add_lanes_of_row(sum); }

 private:
  static constexpr float far = 1024;

  /// Raises `top` to the largest score of each row, in all four lanes that share it.
  template <int count>
  __device__ static void find_tops(const float (&s)[count], float (&top)[2]) {
    float other[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], fmaxf(s[2 * r], s[2 * r + 1]));
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
  }

  /// What the exponents of row r are relative to. The fused product of weigh() is off by the offset's rounding: in rows
  /// where that could be seen in a rounded weight, the maximum is taken off first; the other rows of the warp keep
  /// their bits.
  template <int count>
  __device__ float origin(float (&s)[count], int r) const {
    const bool is_far = fabsf(offset[r]) > far;
    if (__any_sync(0xffffffffu, is_far)) {
      const float shift = is_far ? maximum[r] : 0;
#pragma unroll
      for (int n = 0; n < count / 4; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) s[4 * n + 2 * r + half] -= shift;
    }
    return is_far ? 0 : offset[r];
  }

  template <int count>
  __device__ void weigh(float (&s)[count], float scale_log2, const float (&relative_to)[2]) {
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
  }
};

/// lse of a row from its maximum score (unscaled) and its sum of weights. A row without keys has sum 0; a NaN stays
/// one.
__device__ inline float log_sum(float maximum, float sum, float scale_log2) {
  return sum == 0 ? -INFINITY : (__fmul_rn(maximum, scale_log2) + log2f(sum)) * 0.693147180559945f;
}

}  // namespace dsalt::cuda::hopper
