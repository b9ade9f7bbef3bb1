// Sums over a row, dot products, and the search for a score above a threshold, for row_kernels.cpp alone. Element i of
// a row is added in lane i mod (4 half_lanes); the lanes are joined in a fixed tree.
#pragma once

#include "row_kernels.hpp"
#include "row_vector.hpp"

namespace dsalt::internal {
namespace {

double squares(const float* x, std::int64_t n) {
  Dh sum[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * half_lanes <= n; i += 4 * half_lanes) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const Dh v = load_half(x + i + c * half_lanes);
      sum[c] = multiply_add(v, v, sum[c]);  // the product is exact
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const double v = static_cast<double>(x[i]);
    sum[lane / half_lanes][lane % half_lanes] += v * v;
  }
  return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// The additions of squares() and, in the same lanes, those of the products.
void rmsnorm_sums(const float* x, const float* dy, const float* gamma, std::int64_t n, double* squares,
                  double* products) {
  Dh sum[4] = {}, product[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * half_lanes <= n; i += 4 * half_lanes) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const std::int64_t at = i + c * half_lanes;
      const Dh v = load_half(x + at);
      sum[c] = multiply_add(v, v, sum[c]);
      product[c] = multiply_add(load_half(dy + at) * load_half(gamma + at), v, product[c]);
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const double v = static_cast<double>(x[i]);
    sum[lane / half_lanes][lane % half_lanes] += v * v;
    product[lane / half_lanes][lane % half_lanes] += static_cast<double>(dy[i]) * static_cast<double>(gamma[i]) * v;
  }
  *squares = lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  *products = lane_sum((product[0] + product[1]) + (product[2] + product[3]));
}

template <int R, int C>
inline void dot_tile(std::int64_t n, std::int64_t k, const float* const* a, const double* b, double* c) {
  Dh sum[R][C] = {};
  const auto add = [&](const float* const* row, const double* const* column) {
    Dh x[R], y[C];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) x[i] = load_half(row[i]);
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) y[j] = load_half(column[j]);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) sum[i][j] = multiply_add(x[i], y[j], sum[i][j]);
  };
  const float* row[R];
  const double* column[C];
  std::int64_t t = 0;
  for (; t + half_lanes <= k; t += half_lanes) {
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) row[i] = a[i] + t;
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) column[j] = b + j * k + t;
    add(row, column);
  }
  if (t < k) {
    float row_tail[R][half_lanes] = {};
    double column_tail[C][half_lanes] = {};
    for (int i = 0; i < R; ++i) {
      for (std::int64_t l = t; l < k; ++l) row_tail[i][l - t] = a[i][l];
      row[i] = row_tail[i];
    }
    for (int j = 0; j < C; ++j) {
      for (std::int64_t l = t; l < k; ++l) column_tail[j][l - t] = b[j * k + l];
      column[j] = column_tail[j];
    }
    add(row, column);
  }
#pragma GCC unroll 4
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) c[i * n + j] += lane_sum(sum[i][j]);
}

// 4 x 4 (32 vector registers) or 2 x 4 (16) accumulators.
constexpr int dot_rows = DSALT_LANES == 16 ? 4 : 2;

template <int C>
inline void dot_columns(std::int64_t m, std::int64_t n, std::int64_t k, const float* const* a, const double* b,
                        double* c) {
  std::int64_t i = 0;
  for (; i + dot_rows <= m; i += dot_rows) dot_tile<dot_rows, C>(n, k, a + i, b, c + i * n);
  for (; i < m; ++i) dot_tile<1, C>(n, k, a + i, b, c + i * n);
}

void dots(std::int64_t m, std::int64_t n, std::int64_t k, const float* const* a, const double* b, double* c) {
  std::int64_t j = 0;
  for (; j + 4 <= n; j += 4) dot_columns<4>(m, n, k, a, b + j * k, c + j);
  for (; j < n; ++j) dot_columns<1>(m, n, k, a, b + j * k, c + j);
}

/// Non-decreasing in v and in x, as the scales are not negative and every rounding is monotone; the same operations on
/// vectors and on numbers.
template <class T>
inline T score(const ScoreRule& rule, T v, T x) {
  return (v - rule.mean_v) * rule.per_v + (x - rule.mean_x) * rule.per_x;
}

void scores(const ScoreRule& rule, const float* v, const float* x, double* scores, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + half_lanes <= n; i += half_lanes) store_half(scores + i, score(rule, load_half(v + i), load_half(x + i)));
  for (; i < n; ++i) scores[i] = score(rule, static_cast<double>(v[i]), static_cast<double>(x[i]));
}

/// The largest lane of a vector without NaN.
inline float largest_lane(F x) {
#if DSALT_LANES == 16
  x = larger(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  x = larger(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif DSALT_LANES == 8
  x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
  x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5));
  x = larger(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6));
#else
  x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1));
  x = larger(x, __builtin_shufflevector(x, x, 1, 0, 3, 2));
#endif
  return x[0];
}

void block_bounds(const float* x, std::int64_t n, float* bounds) {
  static_assert(energy_block % lanes == 0);
  std::int64_t i = 0;
  for (; i + energy_block <= n; i += energy_block, ++bounds) {
    F highest = broadcast(-infinity);
    for (std::int64_t k = 0; k < energy_block; k += lanes) {
      const F v = load(x + i + k);
      highest = larger(v == v ? v : broadcast(-infinity), highest);
    }
    *bounds = largest_lane(highest);
  }
  if (i == n) return;
  float last = -infinity;
  for (; i < n; ++i) last = x[i] > last ? x[i] : last;  // NaN compares false
  *bounds = last;
}

/// The first index in [begin,end) whose score is not <= threshold, or end.
inline std::int64_t scan(const ScoreRule& rule, const float* v, const float* x, double threshold, std::int64_t begin,
                         std::int64_t end) {
  std::int64_t i = begin;
  for (; i + 2 * half_lanes <= end; i += 2 * half_lanes) {
    const Lh low = score(rule, load_half(v + i), load_half(x + i)) <= threshold;
    const Lh high = score(rule, load_half(v + i + half_lanes), load_half(x + i + half_lanes)) <= threshold;
    if (!all_of(low & high)) break;
  }
  while (i < end && score(rule, static_cast<double>(v[i]), static_cast<double>(x[i])) <= threshold) ++i;
  return i;
}

std::int64_t first_above(const ScoreRule& rule, const float* v, const float* x, const float* v_bounds,
                         const float* x_bounds, double threshold, std::int64_t begin, std::int64_t end) {
  std::int64_t block = begin / energy_block;
  if (begin % energy_block != 0) {  // the rest of a block
    const std::int64_t stop = ++block * energy_block < end ? block * energy_block : end;
    const std::int64_t found = scan(rule, v, x, threshold, begin, stop);
    if (found < stop) return found;
  }
  const std::int64_t blocks = (end + energy_block - 1) / energy_block;
  for (; block < blocks; ++block) {
    block = scan(rule, v_bounds, x_bounds, threshold, block, blocks);
    if (block == blocks) break;
    const std::int64_t first = block * energy_block, stop = first + energy_block < end ? first + energy_block : end;
    const std::int64_t found = scan(rule, v, x, threshold, first, stop);
    if (found < stop) return found;
  }
  return end;
}

}  // namespace
}  // namespace dsalt::internal
