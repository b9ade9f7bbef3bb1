// The matrix kernels of attention in float32, for kernels.cpp alone:
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
constexpr int block_vectors = DSALT_LANES == 16 ? 4 : 2;
template <int N>
constexpr int block_rows = DSALT_LANES < 16 || N == 4 ? 6
                           : N == 1                   ? 12
                                                      : 8;
// Blocks that end with loads, additions and stores of what they are added to: with fewer rows the processor is done
// with these sooner and begins the next block meanwhile.
template <int N>
constexpr int sum_block_rows = DSALT_LANES == 16 && N == 4 ? 4 : block_rows<N>;
constexpr std::int64_t channel_block = 64;

/// body<R>(first row) over `count` rows in blocks of `most`, then 8, 4, 2, 1.
template <int most, class Body>
inline void in_blocks(int count, Body&& body) {
  int r = 0;
  for (; count - r >= most; r += most) body.template operator()<most>(r);
  if constexpr (most > 8)
    if (count - r >= 8) body.template operator()<8>(r), r += 8;
  if constexpr (most > 4)
    if (count - r >= 4) body.template operator()<4>(r), r += 4;
  if (count - r >= 2) body.template operator()<2>(r), r += 2;
  if (count - r >= 1) body.template operator()<1>(r);
}

/// body<N>(first) over [begin, end), a multiple of `lanes`, in strips of block_vectors vectors.
template <class Body>
inline void in_strips(std::int64_t begin, std::int64_t end, Body&& body) {
  for (; begin + block_vectors * lanes <= end; begin += block_vectors * lanes)
    body.template operator()<block_vectors>(begin);
  switch ((end - begin) / lanes) {
    case 1: body.template operator()<1>(begin); break;
    case 2: body.template operator()<2>(begin); break;
    case 3: body.template operator()<3>(begin); break;
    default: break;
  }
}

/// highest[lane] is at least x[r][lane] then, for every r, unless that is NaN.
template <int R, int N>
inline void raise_highest(const F (&x)[R][N], float* highest) {
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    F top = load(highest + n * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) top = larger(top, x[r][n]);
    store(highest + n * lanes, top);
  }
}

template <int R, int N>
inline void scores_block(const float* packed, const float* const* rows, std::int64_t channels, float* out,
                         float* highest) {
  std::int64_t c = 0;
  do {
    const std::int64_t end = c + channel_block < channels ? c + channel_block : channels;
    F sum[R][N] = {};
    const float* row[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) row[r] = rows[r];
    const bool first = c == 0;
    for (; c < end; ++c) {
      F x[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) x[n] = load(packed + c * tile + n * lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const F y = broadcast(row[r][c]);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(y, x[n], sum[r][n]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        float* target = out + r * tile + n * lanes;
        if (!first) sum[r][n] = load(target) + sum[r][n];
        store(target, sum[r][n]);
      }
    if (highest && c == channels) raise_highest(sum, highest);
  } while (c < channels);
}

void scores(const float* packed, const float* const* rows, int count, std::int64_t channels, int lane_begin,
            int lane_end, float* out, float* highest) {
  in_strips(lane_begin, lane_end, [&]<int N>(std::int64_t lane) {
    in_blocks<block_rows<N>>(count, [&]<int R>(int r) {
      scores_block<R, N>(packed + lane, rows + r, channels, out + r * tile + lane, highest ? highest + lane : nullptr);
    });
  });
}

/// s + err = a + b exactly (Knuth); err = 0 when b = 0.
template <class T>
inline T two_sum(T a, T b, T& err) {
  const T s = a + b, part = s - a;
  err = (a - (s - part)) + (b - part);
  return s;
}

/// hi + lo += x. With `first`, hi and lo were 0: infinities and NaN end up in lo as NaN either way.
template <bool first>
inline void add_to(F x, const float* hi, const float* lo, F& high, F& low) {
  if constexpr (first) {
    high = x;
    low = x - x;
  } else {
    F err;
    high = two_sum(load(hi), x, err);
    low = load(lo) + err;
  }
}

/// Where the sum of a block ends up: appended to a running sum, added to a compensated one, or the first of one.
enum class Into { running, compensated, first };

/// sum is the running sum, or the block's own.
template <Into into>
inline void put(F sum, float* out, std::int64_t lo_offset) {
  if constexpr (into == Into::running) {
    store(out, sum);
  } else {
    F high, low;
    add_to<into == Into::first>(sum, out, out + lo_offset, high, low);
    store(out, high);
    if (lo_offset != 0) store(out + lo_offset, low);
  }
}

/// Asks for what lies `ahead` bytes behind p, which need not be memory of the caller.
inline void prefetch(const void* p, std::int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::intptr_t>(p) + ahead));
}

/// With looks_ahead, asks for what lies `ahead` bytes behind the rows (0: for nothing).
template <int R, int N, Into into, bool looks_ahead>
inline void accumulate_block(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows,
                             int terms, std::int64_t column, float* const* out, std::int64_t lo_offset,
                             [[maybe_unused]] std::int64_t ahead) {
  F sum[R][N] = {};
  if constexpr (into == Into::running) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sum[r][n] = load(out[r] + column + n * lanes);
  }
  const float* weight = a;
  for (int t = 0; t < terms; ++t, weight += t_stride) {
    const float* row = rows[t] + column;
    if constexpr (looks_ahead)
      if (ahead)
#pragma GCC unroll 16
        for (int n = 0; n < N; n += 16 / lanes) prefetch(row + n * lanes, ahead);
    F x[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) x[n] = load(row + n * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F y = broadcast(weight[r * r_stride]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(y, x[n], sum[r][n]);
    }
  }
  F probe = {};
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) probe += sum[r][n] - sum[r][n];
  if (any_not_finite(probe)) {  // 0 * inf: once more, leaving out the terms of weight 0
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) {
        F again = {};
        if constexpr (into == Into::running) again = load(out[r] + column + n * lanes);
        for (int t = 0; t < terms; ++t) {
          const float y = a[t * t_stride + r * r_stride];
          if (y != 0) again = multiply_add(broadcast(y), load(rows[t] + column + n * lanes), again);
        }
        put<into>(again, out[r] + column + n * lanes, lo_offset);
      }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) put<into>(sum[r][n], out[r] + column + n * lanes, lo_offset);
}

template <Into into, bool looks_ahead = false>
inline void accumulate_rows(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows,
                            int terms, std::int64_t width, float* const* out, std::int64_t lo_offset, int count,
                            std::int64_t ahead = 0) {
  in_strips(0, width, [&]<int N>(std::int64_t column) {
    in_blocks<sum_block_rows<N>>(count, [&]<int R>(int r) {
      accumulate_block<R, N, into, looks_ahead>(a + r * r_stride, t_stride, r_stride, rows, terms, column, out + r,
                                                lo_offset, r == 0 ? ahead : 0);
    });
  });
}

void accumulate(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows, int terms,
                std::int64_t width, float* const* out, int count) {
  accumulate_rows<Into::running>(a, t_stride, r_stride, rows, terms, width, out, 0, count);
}

void accumulate_compensated(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows,
                            int terms, std::int64_t width, float* const* out, std::int64_t lo_offset, int count,
                            bool first) {
  (first ? accumulate_rows<Into::first> : accumulate_rows<Into::compensated>)(a, t_stride, r_stride, rows, terms, width,
                                                                              out, lo_offset, count, 0);
}

template <bool first>
inline void fold_running(const float* running, float* hi, float* lo, std::int64_t n) {
  for (std::int64_t k = 0; k < n; k += lanes) {
    F high, low;
    add_to<first>(load(running + k), hi + k, lo + k, high, low);
    store(hi + k, high);
    store(lo + k, low);
  }
}

void fold(const float* running, float* hi, float* lo, std::int64_t n, bool first) {
  (first ? fold_running<true> : fold_running<false>)(running, hi, lo, n);
}

/// y[k] = (sum(k) + 0) / divisor.
template <class Sum>
inline void divide(float divisor, float* y, std::int64_t n, Sum&& sum) {
  const F by = broadcast(divisor);
  if (divisor == 1)  // the same bits without the division
    for (std::int64_t k = 0; k < n; k += lanes) store(y + k, sum(k) + 0.0f);
  else
    for (std::int64_t k = 0; k < n; k += lanes) store(y + k, (sum(k) + 0.0f) / by);
}

void finish(const float* running, const float* hi, const float* lo, float divisor, float* y, std::int64_t n) {
  F high, low;
  if (!running)
    divide(divisor, y, n, [&](std::int64_t k) { return load(hi + k) + load(lo + k); });
  else if (!hi)
    divide(divisor, y, n, [&](std::int64_t k) {
      add_to<true>(load(running + k), nullptr, nullptr, high, low);
      return high + low;
    });
  else
    divide(divisor, y, n, [&](std::int64_t k) {
      add_to<false>(load(running + k), hi + k, lo + k, high, low);
      return high + low;
    });
}

#if defined(__AVX512F__) && DSALT_LANES == 16

/// The first step of transpose_16x16 for rows n and n + 1, n even.
inline void zip_rows(__m512i first, __m512i second, __m512i y[16], int n) {
  y[n] = _mm512_unpacklo_epi32(first, second);
  y[n + 1] = _mm512_unpackhi_epi32(first, second);
}

/// The rest: x[c] becomes column c of the rows that were zipped into y.
inline void transpose_zipped(__m512i y[16], __m512i x[16]) {
#pragma GCC unroll 4
  for (int n = 0; n < 16; n += 4) {
    x[n] = _mm512_unpacklo_epi64(y[n], y[n + 2]);
    x[n + 1] = _mm512_unpackhi_epi64(y[n], y[n + 2]);
    x[n + 2] = _mm512_unpacklo_epi64(y[n + 1], y[n + 3]);
    x[n + 3] = _mm512_unpackhi_epi64(y[n + 1], y[n + 3]);
  }
  // x[4 b + k], 128-bit lane l: rows 4 b .. 4 b + 3 of column 4 l + k
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512i even01 = _mm512_shuffle_i32x4(x[k], x[4 + k], 0x88),
                  odd01 = _mm512_shuffle_i32x4(x[k], x[4 + k], 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(x[8 + k], x[12 + k], 0x88),
                  odd23 = _mm512_shuffle_i32x4(x[8 + k], x[12 + k], 0xdd);
    y[k] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    y[8 + k] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    y[4 + k] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    y[12 + k] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
#pragma GCC unroll 16
  for (int n = 0; n < 16; ++n) x[n] = y[n];
}

/// x[r][c] becomes x[c][r].
inline void transpose_16x16(__m512i x[16]) {
  __m512i y[16];
#pragma GCC unroll 16
  for (int n = 0; n < 16; n += 2) zip_rows(x[n], x[n + 1], y, n);
  transpose_zipped(y, x);
}

/// Columns [c, c + 16) of 16 rows of 32-bit elements, transposed: y[k] is column c + k. 0 past `count` rows and
/// `columns`.
template <class Row>
inline void load_columns(const Row* const* rows, int count, std::int64_t c, std::int64_t columns, __m512i y[16]) {
  const auto mask = static_cast<__mmask16>(columns - c < 16 ? (1u << (columns - c)) - 1 : 0xffffu);
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r)
    y[r] = r < count
               ? _mm512_maskz_loadu_epi32(mask, static_cast<const char*>(static_cast<const void*>(rows[r])) + 4 * c)
               : _mm512_setzero_si512();
  transpose_16x16(y);
}

/// Elements of 32 bits, whatever they mean.
void transpose(const void* const* rows, int count, std::int64_t channels, void* packed) {
  auto* target = static_cast<std::int32_t*>(packed);
  for (int lane = 0; lane < count; lane += 16)
    for (std::int64_t c = 0; c < channels; c += 16) {
      __m512i x[16];
      load_columns(rows + lane, count - lane, c, channels, x);
      std::int32_t* to = target + c * tile + lane;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r)
        if (c + r < channels) _mm512_storeu_si512(to + r * tile, x[r]);
    }
}

#else

/// Elements of 32 bits, whatever they mean.
void transpose(const void* const* rows, int count, std::int64_t channels, void* packed) {
  for (std::int64_t c = 0; c < channels; ++c) {
    char* target = static_cast<char*>(packed) + c * tile * 4;
    for (int r = 0; r < count; ++r) __builtin_memcpy(target + r * 4, static_cast<const char*>(rows[r]) + c * 4, 4);
    const int end = (count + lane_group - 1) / lane_group * lane_group;
    __builtin_memset(target + count * 4, 0, static_cast<unsigned long>(end - count) * 4);
  }
}

#endif

}  // namespace
}  // namespace dsalt::internal
