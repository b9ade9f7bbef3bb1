// What a block knows of a landmark list before it looks at the candidates, and its part of the block's shared memory.
#pragma once

#include <cmath>
#include <cstdint>

#include "landmark_list.cuh"
#include "select_landmarks.cuh"

namespace dsalt::cuda {

constexpr int most_survivors = 1024, score_bins = 512;

/// A score without its constant part, which is the same for all candidates of a list: per_v (v - centre of v) + per_x
/// (x - centre of x). The centres are the means of the list or of some of its candidates (of the block's shortest list,
/// of a piece); from there the mean of M candidates lies at most sqrt(M) deviations away. So both terms are at most 3
/// sqrt(M) together, and rounding moves a rough score by less than half the margin.
template <class T>
struct RoughRule {
  T per_v, per_x, margin;
  static constexpr double deviation_limit = sizeof(T) == 8 ? 0x1p960 : 0x1p100;  // products stay within the type
  static constexpr double relative_margin = sizeof(T) == 8 ? 0x1p-47 : 0x1p-18;

  __device__ T operator()(T x, T v) const { return fma(per_v, v, per_x * x); }
};

template <class T>
struct ListState {
  List<T> list;
  RoughRule<T> rough;
  T centre_x, centre_v;
  T threshold;
  bool has_candidates;
  int survivors;  // more than most_survivors: some are missing
  bool by_radix;
};

/// A list's part of the block's dynamic shared memory.
template <class T, int threads>
struct ListMemory {
  ListState<T> state;
  union {
    T highest[threads];            // step 1
    unsigned in_bin[score_bins];   // the same in hopper/prefix_lists.cuh
    double score[most_survivors];  // steps 3 and 4
  };
  std::int32_t index[most_survivors];
};

/// What a lane passes to describe(): odd ones the share of v in a score, even ones that of x.
__device__ inline double share_of_score(double alpha_raw) {
  return sigmoid(threadIdx.x % 2 == 1 ? alpha_raw : -alpha_raw);
}

/// Fills in `state`, with the list's rule. By a warp. `by_radix`: whatever the energies are.
template <class T>
__device__ void describe(ListState<T>& state, const List<T>& list, const CandidateStatistics& of_list, double share,
                         bool by_radix) {
  const bool odd = threadIdx.x % 2 == 1;
  const Moments moments = {0, odd ? of_list.v.m2 : of_list.x.m2};
  const double inverse = moments.inverse_deviation(of_list.count), per = share * inverse,
               limit = RoughRule<T>::deviation_limit;
  const bool usual = inverse == 0 ? moments.m2 <= limit : inverse * limit >= 1;  // not where m2 is no number
  const std::uint32_t usual_lanes = __ballot_sync(0xffffffffu, usual);
  const double per_x = __shfl_sync(0xffffffffu, per, 0), per_v = __shfl_sync(0xffffffffu, per, 1);
  if (threadIdx.x % 32 != 0) return;
  state.list = list;
  state.list.rule = {per_v, of_list.v.mean, per_x, of_list.x.mean};
  state.rough = {static_cast<T>(per_v), static_cast<T>(per_x),
                 static_cast<T>(RoughRule<T>::relative_margin * sqrt(static_cast<T>(of_list.count)))};
  state.centre_x = static_cast<T>(of_list.x.mean);
  state.centre_v = static_cast<T>(of_list.v.mean);
  state.has_candidates = of_list.count > 0;
  state.survivors = 0;
  state.by_radix = by_radix || usual_lanes != 0xffffffffu;
}

}  // namespace dsalt::cuda
