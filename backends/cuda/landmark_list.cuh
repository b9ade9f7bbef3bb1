// One landmark list as a block makes it: the energies of its candidates, what they score, and where the slots go.
#pragma once

#include <cmath>
#include <cstdint>

#include "elements.cuh"
#include "sigmoid.cuh"

namespace dsalt::cuda {

/// The score of a list's candidates. Both roundings are spelled out: a candidate must score the same wherever it is
/// looked at. NaN for what is no candidate.
struct ScoreRule {
  double per_v, mean_v, per_x, mean_x;
  __device__ double operator()(double x, double v) const {
    return __fma_rn(per_v, v - mean_v, __dmul_rn(per_x, x - mean_x));
  }
};

template <class T>
struct List {
  const T *x, *v;                       // energies of token 0
  std::int64_t x_step = 1, v_step = 1;  // from token to token
  ScoreRule rule;
  std::int64_t end;  // its candidates are before that token
  std::int64_t k;
  double tau;
  std::int32_t *landmarks;
  T *score, *weight;
  std::int64_t landmark_stride, score_stride, weight_stride;

  __device__ double score_of(std::int64_t j) const { return rule(x[j * x_step], v[j * v_step]); }
  __device__ void store(std::int64_t slot, std::int64_t j, double value) const {
    landmarks[slot * landmark_stride] = static_cast<std::int32_t>(j);
    score[slot * score_stride] = narrow<T>(value);
    weight[slot * weight_stride] = narrow<T>(log_sigmoid(value / tau));
  }
  /// The slots from `used` on, by threads number `thread` of `threads`.
  __device__ void store_unused(std::int64_t used, int thread, int threads) const {
    for (std::int64_t slot = used + thread; slot < k; slot += threads) {
      landmarks[slot * landmark_stride] = -1;
      score[slot * score_stride] = weight[slot * weight_stride] = 0;
    }
  }
};

}  // namespace dsalt::cuda
