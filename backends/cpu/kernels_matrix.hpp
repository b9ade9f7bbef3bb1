// The two matrix kernels of attention, for kernels.cpp alone:
//   scores       out[r][lane]  = sum_c rows[r][c] packed[c][lane]                 (lanes vectorised, c sequential)
//   accumulate   out[r][column] += sum_t a[t, r] rows[t][column]                  (columns vectorised, t sequential)
// Both keep a block of accumulators in registers and broadcast the scalar operand from memory, so neither key rows nor
// value rows need a transposed copy.
#pragma once

#include "kernels.hpp"
#include "vector.hpp"

namespace dsalt::internal {
namespace {

// 6 x 4 (32 vector registers) or 6 x 2 (16) accumulators: enough to hide the latency of the multiply-add.
constexpr int block_rows = 6;
constexpr int block_vectors = DSALT_LANES == 16 ? 4 : 2;
constexpr std::int64_t channel_block = 64;

template <int R, int N>
inline void scores_block(const float* packed, const float* const* rows, std::int64_t channels, float* out) {
  std::int64_t c = 0;
  do {
    const std::int64_t end = c + channel_block < channels ? c + channel_block : channels;
    F sum[R][N] = {};
    const float* row[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) row[r] = rows[r];
    const bool first = c == 0;
    for (; c < end; ++c) {
      F x[N];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) x[n] = load(packed + c * tile + n * lanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F y = broadcast(row[r][c]);
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(y, x[n], sum[r][n]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        float* target = out + r * tile + n * lanes;
        store(target, first ? sum[r][n] : load(target) + sum[r][n]);
      }
  } while (c < channels);
}

template <int N>
inline void scores_rows(const float* packed, const float* const* rows, int count, std::int64_t channels, float* out) {
  for (; count >= block_rows; count -= block_rows, rows += block_rows, out += block_rows * tile)
    scores_block<block_rows, N>(packed, rows, channels, out);
  switch (count) {
    case 1: scores_block<1, N>(packed, rows, channels, out); break;
    case 2: scores_block<2, N>(packed, rows, channels, out); break;
    case 3: scores_block<3, N>(packed, rows, channels, out); break;
    case 4: scores_block<4, N>(packed, rows, channels, out); break;
    case 5: scores_block<5, N>(packed, rows, channels, out); break;
    default: break;
  }
}

void scores(const float* packed, const float* const* rows, int count, std::int64_t channels, int lane_begin,
            int lane_end, float* out) {
  int lane = lane_begin;
  for (; lane + block_vectors * lanes <= lane_end; lane += block_vectors * lanes)
    scores_rows<block_vectors>(packed + lane, rows, count, channels, out + lane);
  switch ((lane_end - lane) / lanes) {
    case 1: scores_rows<1>(packed + lane, rows, count, channels, out + lane); break;
    case 2: scores_rows<2>(packed + lane, rows, count, channels, out + lane); break;
    case 3: scores_rows<3>(packed + lane, rows, count, channels, out + lane); break;
    default: break;
  }
}

/// s + err = a + b exactly (Knuth); err = 0 when b = 0.
inline F two_sum(F a, F b, F& err) {
  const F s = a + b, part = s - a;
  err = (a - (s - part)) + (b - part);
  return s;
}

template <int R, int N>
inline void accumulate_block(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows,
                             int terms, std::int64_t column, const float* alpha, float* const* out,
                             std::int64_t lo_offset) {
  F sum[R][N] = {};
  const float* weight = a;
  for (int t = 0; t < terms; ++t, weight += t_stride) {
    const float* row = rows[t] + column;
    F x[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) x[n] = load(row + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F y = broadcast(weight[r * r_stride]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(y, x[n], sum[r][n]);
    }
  }
  F probe = {};
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) probe += sum[r][n] - sum[r][n];
  if (any_not_finite(probe)) {  // 0 * inf: once more, leaving out the terms of weight 0
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        F again = {};
        for (int t = 0; t < terms; ++t) {
          const float y = a[t * t_stride + r * r_stride];
          if (y != 0) again = multiply_add(broadcast(y), load(rows[t] + column + n * lanes), again);
        }
        sum[r][n] = again;
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      float* hi = out[r] + column + n * lanes;
      float* lo = hi + lo_offset;
      F high = load(hi), low = load(lo), err;
      if (alpha) {
        const F factor = broadcast(alpha[r]);
        high = high * factor;
        low = low * factor;
      }
      store(hi, two_sum(high, sum[r][n], err));
      store(lo, low + err);
    }
}

template <int N>
inline void accumulate_rows(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows,
                            int terms, std::int64_t column, const float* alpha, float* const* out,
                            std::int64_t lo_offset, int count) {
  const int block = block_rows;
  for (; count >= block; count -= block, a += block * r_stride, out += block) {
    accumulate_block<block_rows, N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset);
    if (alpha) alpha += block;
  }
  switch (count) {
    case 1: accumulate_block<1, N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset); break;
    case 2: accumulate_block<2, N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset); break;
    case 3: accumulate_block<3, N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset); break;
    case 4: accumulate_block<4, N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset); break;
    case 5: accumulate_block<5, N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset); break;
    default: break;
  }
}

void accumulate(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows, int terms,
                std::int64_t width, const float* alpha, float* const* out, std::int64_t lo_offset, int count) {
  std::int64_t column = 0;
  const auto run = [&]<int N>() {
    accumulate_rows<N>(a, t_stride, r_stride, rows, terms, column, alpha, out, lo_offset, count);
  };
  for (; column + block_vectors * lanes <= width; column += block_vectors * lanes)
    run.template operator()<block_vectors>();
  switch ((width - column) / lanes) {
    case 1: run.template operator()<1>(); break;
    case 2: run.template operator()<2>(); break;
    case 3: run.template operator()<3>(); break;
    default: break;
  }
}

void transpose(const float* const* rows, int count, std::int64_t channels, float* packed) {
  for (std::int64_t c = 0; c < channels; ++c) {
    float* target = packed + c * tile;
    for (int r = 0; r < count; ++r) target[r] = rows[r][c];
    for (int r = count; r < tile; ++r) target[r] = 0;
  }
}

}  // namespace
}  // namespace dsalt::internal
