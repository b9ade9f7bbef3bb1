// Mean and squared deviations of the candidates of landmark lists. Of a piece of 512 tokens, each 128 have their own;
// those of a piece, and of a list from its pieces, follow by
//   mean = sum count_p mean_p / sum count_p,   M2 = sum M2_p + count_p (mean_p - mean)^2,
// in an order that depends on the candidates alone. Several kernels take these sums, to the last bit alike: every
// rounding is spelled out.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "reduce.cuh"

namespace dsalt::cuda {

constexpr int piece_tokens = 512, part_tokens = 128, parts_of_piece = piece_tokens / part_tokens;
constexpr int part_lane_tokens = part_tokens / 32;  // of each lane of a warp

struct Moments {
  double mean, m2;
  /// z = (n - mean) inverse; 0 stands for z = 0 without a gradient: a single candidate, or a deviation <= 1e-6.
  __device__ double inverse_deviation(double count) const {
    const double deviation = count > 1 ? sqrt(m2 / (count - 1)) : 0;
    return deviation <= 1e-6 ? 0 : 1 / deviation;
  }
};

struct CandidateStatistics {
  double count;
  Moments x, v;
};

/// Every lane gets both sums over the warp, those of warp_sum(), in little more than half as many exchanges.
__device__ inline void sum_both(double& a, double& b) {
  const bool upper = threadIdx.x % 32 >= 16;
  double sum = upper ? b : a;
  sum += __shfl_xor_sync(0xffffffffu, upper ? a : b, 16);
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const double other = __shfl_xor_sync(0xffffffffu, sum, 16);
  a = upper ? other : sum;
  b = upper ? sum : other;
}

/// Of at most 128 tokens, for every lane of a warp: a lane has four, NaN past the end. Two passes over differences from
/// one candidate, so that equal energies deviate by exactly 0.
template <class T>
__device__ CandidateStatistics part_statistics(const T* x, const T* v) {
  constexpr int n = part_lane_tokens;
  bool candidate[n], some = false, every = true;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    candidate[i] = x[i] == x[i] && v[i] == v[i];
    some |= candidate[i];
    every &= candidate[i];
  }
  const auto statistics = [&](T x_first, T v_first, int amount, auto whole) {
    const double x_one = x_first, v_one = v_first, count = amount, share = 1 / count;
    double x_sum = 0, v_sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      x_sum += whole || candidate[i] ? x[i] - x_one : 0;
      v_sum += whole || candidate[i] ? v[i] - v_one : 0;
    }
    sum_both(x_sum, v_sum);
    const double x_mean = __fma_rn(x_sum, share, x_one), v_mean = __fma_rn(v_sum, share, v_one);
    x_sum = v_sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const double from_x = whole || candidate[i] ? x[i] - x_mean : 0,
                   from_v = whole || candidate[i] ? v[i] - v_mean : 0;
      x_sum = __fma_rn(from_x, from_x, x_sum);
      v_sum = __fma_rn(from_v, from_v, v_sum);
    }
    sum_both(x_sum, v_sum);
    return CandidateStatistics{count, {x_mean, x_sum}, {v_mean, v_sum}};
  };
  if (__all_sync(0xffffffffu, every))
    return statistics(__shfl_sync(0xffffffffu, x[0], 0), __shfl_sync(0xffffffffu, v[0], 0), part_tokens,
                      std::true_type{});
  const std::uint32_t finders = __ballot_sync(0xffffffffu, some);
  if (finders == 0) return {};
  T x_first = 0, v_first = 0;
  int amount = 0;
#pragma unroll
  for (int i = n - 1; i >= 0; --i) {
    amount += __popc(__ballot_sync(0xffffffffu, candidate[i]));
    x_first = candidate[i] ? x[i] : x_first;
    v_first = candidate[i] ? v[i] : v_first;
  }
  const int finder = __ffs(finders) - 1;
  return statistics(__shfl_sync(0xffffffffu, x_first, finder), __shfl_sync(0xffffffffu, v_first, finder), amount,
                    std::false_type{});
}

struct MergedMoments {
  double count;
  Moments moments;
};

/// One energy's of a piece, from those of its parts. By any thread; absent parts may be left out.
__device__ inline MergedMoments merged(const CandidateStatistics* parts, int amount,
                                       Moments CandidateStatistics::*energy) {
  double counts[parts_of_piece], count = 0, one = 0, sum = 0;
  Moments of[parts_of_piece];
#pragma unroll
  for (int part = 0; part < parts_of_piece; ++part) {
    counts[part] = part < amount ? parts[part].count : 0;
    of[part] = part < amount ? parts[part].*energy : Moments{0, 0};
  }
#pragma unroll
  for (int part = parts_of_piece - 1; part >= 0; --part) one = counts[part] != 0 ? of[part].mean : one;
#pragma unroll
  for (int part = 0; part < parts_of_piece; ++part) {
    count += counts[part];
    sum = counts[part] != 0 ? __fma_rn(counts[part], of[part].mean - one, sum) : sum;
  }
  if (count == 0) return {};
  MergedMoments all = {count, {__fma_rn(sum, 1 / count, one), 0}};
#pragma unroll
  for (int part = 0; part < parts_of_piece; ++part) {
    const double from = of[part].mean - all.moments.mean,
                 squares = __fma_rn(counts[part], __dmul_rn(from, from), of[part].m2);
    all.moments.m2 += counts[part] != 0 ? squares : 0;
  }
  return all;
}
__device__ inline CandidateStatistics merged(const CandidateStatistics* parts, int amount) {
  const MergedMoments x = merged(parts, amount, &CandidateStatistics::x),
                      v = merged(parts, amount, &CandidateStatistics::v);
  return {x.count, x.moments, v.moments};
}

/// The statistics of a list's consecutive pieces, for every lane of a warp that calls it. The mean is corrected once,
/// so that equal energies deviate by exactly 0.
template <int unrolled = 4>
__device__ CandidateStatistics list_statistics(const CandidateStatistics* pieces, std::int64_t count) {
  struct Sums {
    double x, v, count;
  };
  const auto sum = [&](auto&& with) {
    Sums sums = {0, 0, 0};
#pragma unroll unrolled
    for (std::int64_t n = threadIdx.x % 32; n < count; n += 32) {
      const CandidateStatistics piece = pieces[n];
      if (piece.count != 0) sums = with(sums, piece);
    }
    return Sums{warp_sum(sums.x), warp_sum(sums.v), sums.count};  // `count` of this lane
  };
  using Piece = const CandidateStatistics&;
  const Sums total = sum([](Sums sums, Piece piece) {
    return Sums{__fma_rn(piece.count, piece.x.mean, sums.x), __fma_rn(piece.count, piece.v.mean, sums.v),
                sums.count + piece.count};
  });
  const double candidates = warp_sum(total.count);
  if (candidates == 0) return {};
  const double share = 1 / candidates;
  const Sums about = {__dmul_rn(total.x, share), __dmul_rn(total.v, share), 0};
  const Sums rest = sum([about](Sums sums, Piece piece) {
    return Sums{__fma_rn(piece.count, piece.x.mean - about.x, sums.x),
                __fma_rn(piece.count, piece.v.mean - about.v, sums.v), 0};
  });
  const Sums mean = {__fma_rn(rest.x, share, about.x), __fma_rn(rest.v, share, about.v), 0};
  const Sums squares = sum([mean](Sums sums, Piece piece) {
    const double x = piece.x.mean - mean.x, v = piece.v.mean - mean.v;
    return Sums{sums.x + __fma_rn(piece.count, __dmul_rn(x, x), piece.x.m2),
                sums.v + __fma_rn(piece.count, __dmul_rn(v, v), piece.v.m2), 0};
  });
  return {candidates, {mean.x, squares.x}, {mean.v, squares.v}};
}

}  // namespace dsalt::cuda
