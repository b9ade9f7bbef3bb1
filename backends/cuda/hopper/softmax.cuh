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
  float offset[2] = {0, 0};                 // maximum * scale_log2: what exponents are relative to
  float limit[2] = {-INFINITY, -INFINITY};  // scores up to it leave the maximum as it is

  /// The first scores of the rows: s becomes the unnormalised weights exp2(scale_log2 (s - maximum)). What update()
  /// does with them, without asking whether it has to.
  template <int count>
  __device__ void start(float (&s)[count], float scale_log2) {
    float top[2], relative_to[2], added[2];
    find_tops(s, top);
    share_tops(top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = fmaxf(top[r], -INFINITY);  // not NaN
      relative_to[r] = rebase(s, r, scale_log2);
    }
    weigh(s, s, scale_log2, relative_to, added);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = added[r];
  }

  /// s becomes weights likewise. Whether some row of the warp has another scale now: then sums so far must be
  /// multiplied by `factor`, else these are 1.
  template <int count>
  __device__ bool update(float (&s)[count], float scale_log2, float (&factor)[2]) {
    float top[2], added[2];
    find_tops(s, top);
    bool usual = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = 1;
      usual &= top[r] <= limit[r];
    }
    float relative_to[2] = {offset[0], offset[1]};
    const bool unusual = __any_sync(0xffffffffu, !usual);
    if (unusual) {
      share_tops(top);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float old = maximum[r];
        if (!(top[r] <= limit[r])) maximum[r] = fmaxf(top[r], old);
        relative_to[r] = rebase(s, r, scale_log2);
        factor[r] = softmax_factor(old, scale_log2, offset[r]);
        sum[r] *= factor[r];
      }
    }
    weigh(s, s, scale_log2, relative_to, added);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += added[r];
    return unusual;
  }

  /// The same to `weights` and without a look for maxima; weights that are large ask for one. Whether the warp has none
  /// of these: else nothing has changed.
  template <int count>
  __device__ bool update_if_usual(float (&weights)[count], const float (&s)[count], float scale_log2) {
    // Far enough below 2^8: what update() would scale anew never seems usual here, whatever the rounding. So a row
    // does not depend on others of its warp.
    constexpr float most = 128;
    float added[2];
    weigh(weights, s, scale_log2, offset, added);
    bool usual = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) usual &= added[r] <= most && limit[r] != -INFINITY;
    if (!__all_sync(0xffffffffu, usual)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += added[r];
    return true;
  }
  __device__ void finish() { add_lanes_of_row(sum); }

 private:
  static constexpr float far = 1024;

  /// The largest of this thread's scores in each row.
  template <int count>
  __device__ static void find_tops(const float (&s)[count], float (&top)[2]) {
    float other[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(s[2 * r], s[2 * r + 1]);
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
  }
  /// Of the four lanes that share a row.
  __device__ static void share_tops(float (&top)[2]) {
#pragma unroll
    for (int distance = 1; distance <= 2; ++distance)
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], distance));
  }

  /// Row r has this maximum now. What the exponents of its scores are relative to: the fused product of weigh() is off
  /// by the offset's rounding. In rows where that could be seen in a rounded weight, the maximum is taken off first, so
  /// every score of theirs is unusual; the other rows of the warp keep their bits.
  template <int count>
  __device__ float rebase(float (&s)[count], int r, float scale_log2) {
    offset[r] = softmax_offset(maximum[r], scale_log2);
    const bool is_far = fabsf(offset[r]) > far;
    limit[r] = is_far ? -INFINITY : maximum[r] + 8 * reciprocal_fast(scale_log2);
    if (__any_sync(0xffffffffu, is_far)) {
      const float shift = is_far ? maximum[r] : 0;
#pragma unroll
      for (int n = 0; n < count / 4; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) s[4 * n + 2 * r + half] -= shift;
    }
    return is_far ? 0 : offset[r];
  }

  /// Weights of scores, and what they add to the sums.
  template <int count>
  __device__ static void weigh(float (&weights)[count], const float (&s)[count], float scale_log2,
                               const float (&relative_to)[2], float (&added)[2]) {
    float total[2][2] = {};
#pragma unroll
    for (int n = 0; n < count / 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * n + 2 * r + half;
          weights[at] = exp2_fast(fmaf(s[at], scale_log2, -relative_to[r]));
          total[r][half] += weights[at];
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) added[r] = total[r][0] + total[r][1];
  }
};

/// lse of a row from its maximum score (unscaled) and its sum of weights. A row without keys has sum 0; a NaN stays
/// one.
__device__ inline float log_sum(float maximum, float sum, float scale_log2) {
  return sum == 0 ? -INFINITY : (__fmul_rn(maximum, scale_log2) + log2f(sum)) * 0.693147180559945f;
}

}  // namespace dsalt::cuda::hopper
