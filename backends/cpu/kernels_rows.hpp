// Attention of few query rows, for kernels.cpp alone: the keys are in the lanes, so that one row fills a vector. Every
// number comes from the same operations in the same order as in the kernels whose lanes are rows:
//   scores    a key's products are added up channel by channel, blocks of 64 from zero (AMX: kernels_amx.hpp)
//   softmax   key n is added to chain n % 4
//   values    as `accumulate`; bfloat16 rows are paired in registers as `interleave` does
// Memory sets the pace. Its latency is far longer than what the processor looks ahead by itself in this code, so keys
// and values are asked for some time before their turn: a line for each line that is read, in the order of memory.
// (Bursts fill the few outstanding requests and stop everything else; other orders are not continued by the hardware
// prefetchers.) Between these requests there should be few instructions: code that spills is much slower from memory.
#pragma once

#include "kernels_matrix.hpp"
#include "kernels_softmax.hpp"

namespace dsalt::internal {
namespace {

/// A row as columns of 32 bits.
inline const char* columns_of(const void* row, std::int64_t column) {
  return static_cast<const char*>(row) + 4 * column;
}

#if defined(__AVX512F__) && DSALT_LANES == 16
/// Columns [c + 16 k, c + 16 k + 16) of 16 keys as vectors over the keys. The keys' blocks of 16 `lines` columns from c
/// on take as many calls as lines; each asks for its share of the lines `ahead` bytes behind them, row after row (0:
/// for nothing).
template <int lines, class Key>
[[gnu::always_inline]] inline void transpose_line(const Key* const* row, std::int64_t c, int k, std::int64_t ahead,
                                                  __m512i (&x)[16]) {
  const Key* const* asked = row + 16 / lines * k;
  __m512i y[16];
#pragma GCC unroll 16
  for (int n = 0; n < 16; n += 2) {
    if (ahead)
#pragma GCC unroll 2
      for (int m = n; m < n + 2; ++m) prefetch(columns_of(asked[m / lines], c + m % lines * 16), ahead);
    zip_rows(_mm512_loadu_si512(columns_of(row[n], c + k * 16)), _mm512_loadu_si512(columns_of(row[n + 1], c + k * 16)),
             y, n);
  }
  transpose_zipped(y, x);
}
#endif

/// total[r] = sums over columns [0, columns) for the first `lanes` of `count` keys of 32-bit elements, in blocks of
/// `block` columns. term(sum, column's vector over the keys, row, column) adds one term of row r. Asks for what lies
/// `ahead` bytes behind the keys (0: for nothing).
template <int R, int block, class Key, class Term>
inline void sum_columns(const Key* const* keys, int count, std::int64_t columns, [[maybe_unused]] std::int64_t ahead,
                        F* total, Term&& term) {
  for (std::int64_t c = 0; c < columns; c += block) {
    const std::int64_t end = c + block < columns ? c + block : columns;
    F sum[R] = {};
#if defined(__AVX512F__) && DSALT_LANES == 16
    if (count >= 16 && end == c + block) {
      constexpr int lines = block / 16;  // of a row
#pragma GCC unroll 1
      for (int k = 0; k < lines; ++k) {
        const Key* const* row = keys;
        asm("" : "+r"(row));  // else the compiler keeps 16 pointers over the loop, in vector registers and memory
        __m512i x[16];
        transpose_line<lines>(row, c, k, ahead, x);
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n)
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[r] = term(sum[r], (F)x[n], r, c + k * 16 + n);
      }
    } else {
      for (std::int64_t k = c; k < end; k += 16) {
        __m512i x[16];
        load_columns(keys, count, k, columns, x);
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n)
          if (k + n < end)
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sum[r] = term(sum[r], (F)x[n], r, k + n);
      }
    }
#else
    for (std::int64_t k = c; k < end; ++k) {
      F x = {};
      for (int n = 0; n < lanes && n < count; ++n) x[n] = keys[n][k];
      for (int r = 0; r < R; ++r) sum[r] = term(sum[r], x, r, k);
    }
#endif
    for (int r = 0; r < R; ++r) total[r] = c == 0 ? sum[r] : total[r] + sum[r];
  }
}

/// body<R>(first row) over `count` rows, `most` (2, 4 or 8) at a time: as many as keep their sums in registers.
template <int most, class Body>
inline void in_row_blocks(int count, Body&& body) {
  int r = 0;
  for (; count - r >= most; r += most) body.template operator()<most>(r);
  if constexpr (most == 2) {
    if (count - r == 1) body.template operator()<1>(r);
  } else {
    if (count - r >= 4) body.template operator()<4>(r), r += 4;
    switch (count - r) {
      case 1: body.template operator()<1>(r); break;
      case 2: body.template operator()<2>(r); break;
      case 3: body.template operator()<3>(r); break;
      default: break;
    }
  }
}

void row_scores(const void* const* q, int count, const float* const* keys, int key_count, std::int64_t channels,
                std::int64_t ahead, float* out) {
  for (int n = 0; n < key_count; n += lanes)
    in_row_blocks<8>(count, [&]<int R>(int first) {
      const float* row[R];
      for (int r = 0; r < R; ++r) row[r] = static_cast<const float*>(q[first + r]);
      F total[R] = {};
      sum_columns<R, channel_block>(
          keys + n, key_count - n, channels, first == 0 ? ahead : 0, total,
          [&row](F sum, F x, int r, std::int64_t c) { return multiply_add(broadcast(row[r][c]), x, sum); });
      for (int r = 0; r < R; ++r) store(out + (first + r) * tile + n, total[r]);
    });
}

void row_accumulate(const float* a, std::int64_t r_stride, const float* const* rows, int terms, std::int64_t width,
                    std::int64_t ahead, float* const* out, int count) {
  accumulate_rows<Into::running, true>(a, 1, r_stride, rows, terms, width, out, 0, count, ahead);
}

using Chains = float __attribute__((vector_size(16)));

/// body(lanes [4 n, 4 n + 4) of x) for n = 0, 1, ...
template <class Body>
inline void for_each_four(F x, Body&& body) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  body((Chains)_mm512_maskz_extractf32x4_ps(0xf, (__m512)x, 0));
  body((Chains)_mm512_maskz_extractf32x4_ps(0xf, (__m512)x, 1));
  body((Chains)_mm512_maskz_extractf32x4_ps(0xf, (__m512)x, 2));
  body((Chains)_mm512_maskz_extractf32x4_ps(0xf, (__m512)x, 3));
#else
  Chains part[lanes / 4];
  __builtin_memcpy(part, &x, sizeof part);
  for (int n = 0; n < lanes / 4; ++n) body(part[n]);
#endif
}

/// Adds the lanes of x to the chains.
inline void add_lanes(Chains& chains, F x) {
  for_each_four(x, [&chains](Chains four) { chains += four; });
}

struct RowStep {
  float reference, factor;
  bool rescales;
};

/// raise_maximum for one row.
inline RowStep raise_row_maximum(const float* s, int count, float* m, float* alpha) {
  F highest = broadcast(-infinity);
  for (int n = 0; n < count; n += lanes) highest = larger(highest, load(s + n));
  Chains four{-infinity, -infinity, -infinity, -infinity};
  for_each_four(highest, [&four](Chains part) { four = four < part ? part : four; });
  float peak = four[0];
  for (int n = 1; n < 4; ++n) peak = four[n] > peak ? four[n] : peak;

  const float old = *m;
  const bool grows = peak > old + max_slack;
  const float now = grows ? peak : old;
  *m = now;
  RowStep step{now == -infinity ? 0.0f : now, 1, grows && old != -infinity};
  if (step.rescales) step.factor = exponential_below(broadcast(old - step.reference))[0];
  *alpha = step.factor;
  return step;
}

/// add_chains for one row.
inline void add_row_chains(Chains chain, float factor, float* hi, float* lo) {
  float err;
  *hi = two_sum(*hi * factor, (chain[0] + chain[1]) + (chain[2] + chain[3]), err);
  *lo = *lo * factor + err;
}

bool row_softmax(float* s, int count, float* m, float* sum, float* sum_lo, float* alpha) {
  const RowStep step = raise_row_maximum(s, count, m, alpha);
  const F reference = broadcast(step.reference);
  Chains chain = {};
  for (int n = 0; n < count; n += lanes) {
    const F p = exponential_below(load(s + n) - reference);
    store(s + n, p);
    add_lanes(chain, p);
  }
  add_row_chains(chain, step.factor, sum, sum_lo);
  return step.rescales;
}

}  // namespace
}  // namespace dsalt::internal
