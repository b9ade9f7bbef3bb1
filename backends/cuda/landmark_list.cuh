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
  double tau;
  std::int64_t k = 0;
  std::int32_t* landmarks = nullptr;
  T *score = nullptr, *weight = nullptr;
  std::int64_t landmark_stride = 0, score_stride = 0, weight_stride = 0;

  /// Where the list goes, and so its length: list t of head h of sequence b.
  __device__ void set_outputs(const View<std::int32_t, 4>& to_landmarks, const View<T, 4>& to_score,
                              const View<T, 4>& to_weight, std::int64_t b, std::int64_t h, std::int64_t t) {
    k = to_landmarks.shape[3];
    landmarks = to_landmarks.at(b, h, t);
    score = to_score.at(b, h, t);
    weight = to_weight.at(b, h, t);
    landmark_stride = to_landmarks.strides[3];
    score_stride = to_score.strides[3];
    weight_stride = to_weight.strides[3];
  }
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
