// Attention of few query rows on bfloat16 pairs, for kernels.cpp alone: what kernels_rows.hpp says, by VDPBF16PS.
#pragma once

#include "kernels_bf16.hpp"
#include "kernels_rows.hpp"

#if defined(__AVX512BF16__) && DSALT_LANES == 16

namespace dsalt::internal {
namespace {

#if !defined(__AMX_BF16__)  // kernels_amx.hpp has these products

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

#endif

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

/// Whether a tile's pairs are added in groups, as kernels_amx.hpp says.
#if defined(__AMX_BF16__)
constexpr bool adds_groups = true;
#else
constexpr bool adds_groups = false;
#endif

/// sum + (even + odd) as AMX adds: numbers below 2^-126 are 0.
inline __m512 add_group(__m512 sum, __m512 even, __m512 odd) {
  const auto flushed = [](F x) { return (F)_mm512_dpbf16_ps((__m512)x, pair_of(0), pair_of(0)); };
  return (__m512)flushed(flushed((F)sum) + flushed((F)even + (F)odd));
}

/// 32 N columns of R rows, or as many as `used` says, over terms of one group. (Masked loads of what is used whole
/// would do, but the processor does not foresee them.) With leave_out, exceptional elements count as 0; without, the
/// result is not stored when there are any.
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
  __m512 sum[R][2 * N] = {}, odd[R][2 * N] = {};
  if constexpr (!adds_groups)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < 2 * N; ++n)
        if (present(n)) sum[r][n] = (__m512)load(out[r] + column + n * lanes);
  __m512i farthest = _mm512_setzero_si512();
  for (int t = 0; t < terms; t += 2) {
    __m512bh y[R], high_half[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const std::uint32_t pair = w[r * r_stride + t / 2];
      y[r] = pair_of(adds_groups ? pair & 0xffff : pair);
      high_half[r] = pair_of(pair & 0xffff0000);
    }
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
        if constexpr (adds_groups) {
          odd[r][2 * n] = _mm512_dpbf16_ps(odd[r][2 * n], high_half[r], first);
          odd[r][2 * n + 1] = _mm512_dpbf16_ps(odd[r][2 * n + 1], high_half[r], second);
        }
      }
    }
  }
  if (!leave_out && any_exceptional(farthest)) return false;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < 2 * N; ++n) {
      if (!present(n)) continue;
      float* to = out[r] + column + n * lanes;
      if constexpr (adds_groups) sum[r][n] = add_group((__m512)load(to), sum[r][n], odd[r][n]);
      store(to, (F)sum[r][n]);
    }
  return true;
}

/// row_accumulate_pairs over terms of one group, `most` rows at a time.
template <int most>
inline bool add_rows_of_pairs(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows,
                              int terms, std::int64_t width, std::int64_t ahead, float* const* out, int count) {
  bool any = false;
  for (std::int64_t column = 0; column < width; column += 64) {
    __mmask32 used[2];
    for (int n = 0; n < 2; ++n) {
      const std::int64_t left = width - column - 32 * n;
      used[n] = left <= 0 ? 0 : left < 32 ? (__mmask32{1} << left) - 1 : 0xffffffffu;
    }
    in_row_blocks<most>(count, [&]<int R>(int first) {
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

#if !defined(__AMX_BF16__)

bool row_accumulate_pairs(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows, int,
                          int terms, std::int64_t width, std::int64_t ahead, float* const* out, int count) {
  return add_rows_of_pairs<4>(w, r_stride, rows, terms, width, ahead, out, count);
}

#endif

}  // namespace
}  // namespace dsalt::internal

#endif
