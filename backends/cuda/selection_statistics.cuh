// Mean and squared deviations of the candidates of landmark lists. Of a piece of 512 tokens, each 128 have their own;
// those of a piece, and of a list from its pieces, follow by
//   mean = sum count_p mean_p / sum count_p,   M2 = sum M2_p + count_p (mean_p - mean)^2,
// in an order that depends on the candidates alone. Several kernels take these sums, to the last bit alike: every
// rounding is spelled out.
#pragma once

#include <cmath>
#include <cstdint>

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

/// Of at most 128 tokens, for every lane of a warp: a lane has four, NaN past the end. Two passes over differences from
/// one candidate, so that equal energies deviate by exactly 0.
template <class T>
__device__ CandidateStatistics part_statistics(const T* x, const T* v) {
  constexpr int n = part_lane_tokens;
  bool candidate[n], found = false;
  double x_one = 0, v_one = 0;
  int count = 0;
#pragma unroll
  for (int i = n - 1; i >= 0; --i) {
    candidate[i] = x[i] == x[i] && v[i] == v[i];
    count += __popc(__ballot_sync(0xffffffffu, candidate[i]));
    found |= candidate[i];
    x_one = candidate[i] ? x[i] : x_one;
    v_one = candidate[i] ? v[i] : v_one;
  }
  if (count == 0) return {};
  const int finder = __ffs(__ballot_sync(0xffffffffu, found)) - 1;
  x_one = __shfl_sync(0xffffffffu, x_one, finder);
  v_one = __shfl_sync(0xffffffffu, v_one, finder);
  const double share = 1 / static_cast<double>(count);
  double x_sum = 0, v_sum = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    x_sum += candidate[i] ? x[i] - x_one : 0;
    v_sum += candidate[i] ? v[i] - v_one : 0;
  }
  const double x_mean = __fma_rn(warp_sum(x_sum), share, x_one), v_mean = __fma_rn(warp_sum(v_sum), share, v_one);
  x_sum = v_sum = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const double from_x = candidate[i] ? x[i] - x_mean : 0, from_v = candidate[i] ? v[i] - v_mean : 0;
    x_sum = __fma_rn(from_x, from_x, x_sum);
    v_sum = __fma_rn(from_v, from_v, v_sum);
  }
  return {static_cast<double>(count), {x_mean, warp_sum(x_sum)}, {v_mean, warp_sum(v_sum)}};
}

/// Of a piece, from those of its parts. By any thread; absent parts may be left out.
__device__ inline CandidateStatistics merged(const CandidateStatistics* parts, int amount) {
  double count = 0, x_one = 0, v_one = 0, x_sum = 0, v_sum = 0;
#pragma unroll
  for (int part = 0; part < parts_of_piece; ++part) {
    if (part >= amount || parts[part].count == 0) continue;
    const CandidateStatistics& of = parts[part];
    if (count == 0) x_one = of.x.mean, v_one = of.v.mean;
    count += of.count;
    x_sum = __fma_rn(of.count, of.x.mean - x_one, x_sum);
    v_sum = __fma_rn(of.count, of.v.mean - v_one, v_sum);
  }
  if (count == 0) return {};
  const double share = 1 / count;
  CandidateStatistics all = {count, {__fma_rn(x_sum, share, x_one), 0}, {__fma_rn(v_sum, share, v_one), 0}};
#pragma unroll
  for (int part = 0; part < parts_of_piece; ++part) {
    if (part >= amount || parts[part].count == 0) continue;
    const CandidateStatistics& of = parts[part];
    const double x = of.x.mean - all.x.mean, v = of.v.mean - all.v.mean;
    all.x.m2 += __fma_rn(of.count, __dmul_rn(x, x), of.x.m2);
    all.v.m2 += __fma_rn(of.count, __dmul_rn(v, v), of.v.m2);
  }
  return all;
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
