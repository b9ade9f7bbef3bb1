// Attention of few query rows, for kernels.cpp alone: the keys are in the lanes, so that one row fills a vector. Every
// number comes from the same operations in the same order as in the kernels whose lanes are rows:
//   scores    a key's products are added up channel by channel, blocks of 64 from zero
//   softmax   key n is added to chain n % 4
//   values    as `accumulate`; bfloat16 rows are paired in registers as `interleave` does
// Memory sets the pace. Its latency is far longer than what the processor looks ahead by itself in this code, so keys
// and values are asked for some time before their turn: a line for each line that is read, in the order of memory.
// (Bursts fill the few outstanding requests and stop everything else; other orders are not continued by the hardware
// prefetchers.) Between these requests there should be few instructions: code that spills is much slower from memory.
#pragma once

#include "kernels_bf16.hpp"
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

/// body<R>(first row) over `count` rows, `most` (4 or 8) at a time: as many as keep their sums in registers.
template <int most, class Body>
inline void in_row_blocks(int count, Body&& body) {
  int r = 0;
  for (; count - r >= most; r += most) body.template operator()<most>(r);
  if (count - r >= 4) body.template operator()<4>(r), r += 4;
  switch (count - r) {
    case 1: body.template operator()<1>(r); break;
    case 2: body.template operator()<2>(r); break;
    case 3: body.template operator()<3>(r); break;
    default: break;
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

#if defined(__AVX512BF16__) && DSALT_LANES == 16

/// 16 G keys and columns [c, c + 16 lines), transposed: to[column * G + group]. Asks for what lies `ahead` bytes
/// behind all groups but the last.
template <int G, int lines>
inline void transpose_keys(const std::uint16_t* const* keys, std::int64_t c, std::int64_t ahead, __m512i* to) {
#pragma GCC unroll 1
  for (int part = 0; part < G * lines; ++part) {
    const int group = part / lines, k = part % lines;
    __m512i x[16];
    transpose_line<lines>(keys + 16 * group, c, k, group < G - 1 ? ahead : 0, x);
#pragma GCC unroll 16
    for (int n = 0; n < 16; ++n) _mm512_store_si512(to + (k * 16 + n) * G + group, x[n]);
  }
}

constexpr int pair_block = channel_block / 2;

/// row_scores_pairs for 16 G keys and whole blocks of pairs. The sums of one group of keys are one chain of additions,
/// about as long as the group's way from memory. So keys are transposed into the cache, in the order of memory, and
/// then all groups have their sums computed side by side. Meanwhile it asks for what lies behind the last group: memory
/// would pause otherwise.
template <int G>
inline void score_groups(const void* const* q, int count, const std::uint16_t* const* keys, std::int64_t pairs,
                         float factor, std::int64_t ahead, float* out) {
  alignas(64) __m512i x[pair_block * G];
  for (std::int64_t c = 0; c < pairs; c += pair_block) {
    transpose_keys<G, pair_block / 16>(keys, c, ahead, x);
    in_row_blocks<4>(count, [&]<int R>(int first) {
      const std::uint16_t* row[R];
      for (int r = 0; r < R; ++r) row[r] = static_cast<const std::uint16_t*>(q[first + r]) + 2 * c;
      __m512 sum[R][G] = {};
#pragma GCC unroll 2
      for (int column = 0; column < pair_block; ++column) {
        if (ahead && first == 0) prefetch(columns_of(keys[16 * (G - 1) + column / 2], c + column % 2 * 16), ahead);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const __m512bh y = pair_of(pair_at(row[r] + 2 * column));
#pragma GCC unroll 8
          for (int g = 0; g < G; ++g) sum[r][g] = _mm512_dpbf16_ps(sum[r][g], y, (__m512bh)x[column * G + g]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          float* to = out + (first + r) * tile + g * lanes;
          const F total = c == 0 ? (F)sum[r][g] : load(to) + (F)sum[r][g];
          store(to, c + pair_block == pairs ? total * factor : total);
        }
    });
  }
}

void row_scores_pairs(const void* const* q, int count, const std::uint16_t* const* keys, int key_count,
                      std::int64_t pairs, float factor, std::int64_t ahead, float* out) {
  int n = 0;
  if (pairs == pair_block) {  // longer rows would be met half by half, not in the order of memory
    for (; key_count - n >= 4 * lanes; n += 4 * lanes)
      score_groups<4>(q, count, keys + n, pairs, factor, ahead, out + n);
    for (; key_count - n >= 2 * lanes; n += 2 * lanes)
      score_groups<2>(q, count, keys + n, pairs, factor, ahead, out + n);
  }
  for (; n < key_count; n += lanes)
    in_row_blocks<8>(count, [&]<int R>(int first) {
      const std::uint16_t* row[R];
      for (int r = 0; r < R; ++r) row[r] = static_cast<const std::uint16_t*>(q[first + r]);
      F total[R] = {};
      sum_columns<R, pair_block>(
          keys + n, key_count - n, pairs, first == 0 ? ahead : 0, total, [&row](F sum, F x, int r, std::int64_t c) {
            return (F)_mm512_dpbf16_ps((__m512)sum, pair_of(pair_at(row[r] + 2 * c)), (__m512bh)x);
          });
      for (int r = 0; r < R; ++r) store(out + (first + r) * tile + n, total[r] * factor);
    });
}

bool row_softmax_pairs(float* s, int count, float* m, float* sum, float* sum_lo, float* rounded, float* rounded_lo,
                       float* alpha, std::uint32_t* pairs) {
  const RowStep step = raise_row_maximum(s, count, m, alpha);
  const F reference = broadcast(step.reference);
  Chains chain = {}, rounded_chain = {};
  for (int n = 0; n < count; n += lanes) {
    const F p = exponential_below(load(s + n) - reference);
    store(s + n, p);
    add_lanes(chain, p);
    const auto narrow = (__m256i)_mm512_cvtneps_pbh((__m512)p);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + n / 2), narrow);
    add_lanes(rounded_chain, (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  add_row_chains(chain, step.factor, sum, sum_lo);
  add_row_chains(rounded_chain, step.factor, rounded, rounded_lo);
  return step.rescales;
}

/// 32 N columns of R rows, or as many as `used` says. (Masked loads of what is used whole would do, but the processor
/// does not foresee them.) With leave_out, exceptional elements count as 0; without, the result is not stored when
/// there are any.
template <int R, int N, bool whole, bool leave_out>
inline bool add_pairs_of_rows(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows,
                              int terms, std::int64_t column, const __mmask32* used, std::int64_t ahead,
                              float* const* out) {
  const PairOrder order;
  const auto present = [used](int n) { return whole || n % 2 == 0 || used[n / 2] > 0xffff; };  // of 2 N lane groups
  const auto read = [&](int t, int n) {
    const std::uint16_t* from = rows[t] + column + 32 * n;
    if constexpr (whole) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi16(used[n], from);
  };
  __m512 sum[R][2 * N] = {};
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < 2 * N; ++n)
      if (present(n)) sum[r][n] = (__m512)load(out[r] + column + n * lanes);
  __m512i farthest = _mm512_setzero_si512();
  for (int t = 0; t < terms; t += 2) {
    __m512bh y[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) y[r] = pair_of(w[r * r_stride + t / 2]);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      __m512i low = read(t, n), high = _mm512_setzero_si512();
      if (t + 1 < terms) high = read(t + 1, n);
      if (ahead) {
        prefetch(rows[t] + column + 32 * n, ahead);
        if (t + 1 < terms) prefetch(rows[t + 1] + column + 32 * n, ahead);
      }
      low = ordinary<leave_out>(low, farthest);
      high = ordinary<leave_out>(high, farthest);
      const auto first = (__m512bh)_mm512_permutex2var_epi16(low, order.first, high),
                 second = (__m512bh)_mm512_permutex2var_epi16(low, order.second, high);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        sum[r][2 * n] = _mm512_dpbf16_ps(sum[r][2 * n], y[r], first);
        sum[r][2 * n + 1] = _mm512_dpbf16_ps(sum[r][2 * n + 1], y[r], second);
      }
    }
  }
  if (!leave_out && any_exceptional(farthest)) return false;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < 2 * N; ++n)
      if (present(n)) store(out[r] + column + n * lanes, (F)sum[r][n]);
  return true;
}

bool row_accumulate_pairs(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows, int terms,
                          std::int64_t width, std::int64_t ahead, float* const* out, int count) {
  bool any = false;
  for (std::int64_t column = 0; column < width; column += 64) {
    __mmask32 used[2];
    for (int n = 0; n < 2; ++n) {
      const std::int64_t left = width - column - 32 * n;
      used[n] = left <= 0 ? 0 : left < 32 ? (__mmask32{1} << left) - 1 : 0xffffffffu;
    }
    in_row_blocks<4>(count, [&]<int R>(int first) {
      const auto add = [&]<int N, bool whole>() {
        const std::uint32_t* weights = w + first * r_stride;
        if (add_pairs_of_rows<R, N, whole, false>(weights, r_stride, rows, terms, column, used, first == 0 ? ahead : 0,
                                                  out + first))
          return;
        any = true;
        add_pairs_of_rows<R, N, whole, true>(weights, r_stride, rows, terms, column, used, 0, out + first);
      };
      if (used[1] == 0xffffffffu)
        add.template operator()<2, true>();
      else if (used[1])
        add.template operator()<2, false>();
      else
        add.template operator()<1, false>();
    });
  }
  return any;
}

#endif

}  // namespace
}  // namespace dsalt::internal
