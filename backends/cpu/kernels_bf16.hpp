// The matrix kernels on bfloat16 pairs (VDPBF16PS; by AMX in kernels_amx.hpp), for kernels.cpp alone, and what brings
// operands into pairs.
//
// A pair is 32 bits, the element of lower index in the lower half. Products of two bfloat16 are exact in float32; a
// pair adds two of them to a float32 sum. The instruction takes subnormal operands as 0 and flushes subnormal sums to
// 0, and 0 times infinity is NaN: `interleave` therefore leaves out the elements that this would harm ("exceptional":
// nonzero below 2^-80, infinite, NaN), and the caller adds their terms in float32. Weights towards a key may all be so
// small that every sum is flushed; pair_lanes lifts those by a power of two.
#pragma once

#if defined(__AVX512BF16__) && DSALT_LANES == 16

#include "kernels_matrix.hpp"
#include "kernels_softmax.hpp"

namespace dsalt::internal {
namespace {

constexpr int tile_pairs = tile / 2;

inline __m512bh pair_of(std::uint32_t x) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(x)); }
inline __m512bh pairs_at(const std::uint32_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

inline std::uint32_t pair_at(const std::uint16_t* p) {
  std::uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

#if !defined(__AMX_BF16__)  // kernels_amx.hpp has these products

template <int R, int N>
inline void scores_pairs_block(const std::uint32_t* packed, const std::uint16_t* const* rows, std::int64_t pairs,
                               float factor, float* out, float* highest) {
  std::int64_t c = 0;
  do {
    const std::int64_t end = c + channel_block / 2 < pairs ? c + channel_block / 2 : pairs;
    __m512 sum[R][N] = {};
    const std::uint16_t* row[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) row[r] = rows[r];
    const bool first = c == 0;
    for (; c < end; ++c) {
      __m512bh x[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) x[n] = pairs_at(packed + c * tile + n * lanes);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512bh y = pair_of(pair_at(row[r] + 2 * c));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], y, x[n]);
      }
    }
    const bool last = c == pairs;
    F total[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        float* target = out + r * tile + n * lanes;
        total[r][n] = (F)sum[r][n];
        if (!first) total[r][n] = load(target) + total[r][n];
        if (last) total[r][n] = total[r][n] * factor;
        store(target, total[r][n]);
      }
    if (highest && last) raise_highest(total, highest);
  } while (c < pairs);
}

void scores_pairs(const std::uint32_t* packed, const std::uint16_t* const* rows, int count, std::int64_t pairs,
                  float factor, int lane_begin, int lane_end, float* out, float* highest) {
  in_strips(lane_begin, lane_end, [&]<int N>(std::int64_t lane) {
    in_blocks<block_rows<N>>(count, [&]<int R>(int r) {
      scores_pairs_block<R, N>(packed + lane, rows + r, pairs, factor, out + r * tile + lane,
                               highest ? highest + lane : nullptr);
    });
  });
}

template <int R, int N, Into into>
inline void accumulate_pairs_block(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                                   const std::uint32_t* rows, std::int64_t row_stride, int terms, float factor,
                                   float* const* out, std::int64_t column, std::int64_t lo_offset) {
  __m512 sum[R][N] = {};
  if constexpr (into == Into::running) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sum[r][n] = (__m512)load(out[r] + column + n * lanes);
  }
  const std::uint32_t* row = rows + column;
  for (int t = 0; t < terms; ++t, a += t_stride, row += row_stride) {
    __m512bh x[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) x[n] = pairs_at(row + n * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512bh y = pair_of(a[r * r_stride]);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], y, x[n]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) put<into>((F)sum[r][n] * factor, out[r] + column + n * lanes, lo_offset);
}

template <Into into>
inline void accumulate_pair_rows(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                                 const std::uint32_t* rows, int terms, std::int64_t width, float factor,
                                 float* const* out, std::int64_t lo_offset, int count) {
  in_strips(0, width, [&]<int N>(std::int64_t column) {
    in_blocks<into == Into::compensated ? block_rows<N> : sum_block_rows<N>>(count, [&]<int R>(int r) {
      accumulate_pairs_block<R, N, into>(a + r * r_stride, t_stride, r_stride, rows, width, terms, factor, out + r,
                                         column, lo_offset);
    });
  });
}

void accumulate_pairs(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride, const std::uint32_t* rows,
                      int, int terms, std::int64_t width, float* const* out, int count) {
  accumulate_pair_rows<Into::running>(a, t_stride, r_stride, rows, terms, width, 1, out, 0, count);
}

void accumulate_pairs_compensated(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                                  const std::uint32_t* rows, int, int terms, std::int64_t width, float factor,
                                  float* const* out, std::int64_t lo_offset, int count, bool is_first) {
  (is_first ? accumulate_pair_rows<Into::first> : accumulate_pair_rows<Into::compensated>)(a, t_stride, r_stride, rows,
                                                                                           terms, width, factor, out,
                                                                                           lo_offset, count);
}

#endif

/// Words 0..15 and 16..31 of x, alternating.
inline __m512i zip(__m512i x) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, x);
}

void pair_rows(const float* s, int count, int lane_begin, int lane_end, std::uint32_t* pairs) {
  for (int r = 0; r < count; r += 2, s += 2 * tile, pairs += tile)
    for (int lane = lane_begin; lane < lane_end; lane += lanes) {
      const F low = load(s + lane), high = r + 1 < count ? load(s + tile + lane) : F{};
      _mm512_storeu_si512(pairs + lane, zip((__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low)));
    }
}

/// Rows r and r + 1 of a column as pairs, rounded; low and high become what was stored.
inline void store_pairs(std::uint32_t* pairs, F& low, F& high) {
  const __m512i x = zip((__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
  _mm512_storeu_si512(pairs, x);
  low = (F)_mm512_slli_epi32(x, 16);
  high = (F)_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

bool softmax_pairs(float* s, int count, float* m, float* sum, float* sum_lo, float* rounded, float* rounded_lo,
                   float* alpha, const float* bound, int lane_begin, int lane_end, bool keeps, std::uint32_t* pairs) {
  Step step[tile / lanes];
  bool any = false;
  for (int lane = lane_begin, n = 0; lane < lane_end; lane += lanes, ++n) {
    step[n] = raise_maximum(s + lane, count, m + lane, alpha + lane, bound ? bound + lane : nullptr);
    any = any || step[n].rescales;
  }
  for (int lane = lane_begin, n = 0; lane < lane_end; lane += lanes, ++n) {
    F chain[4] = {}, rounded_chain[4] = {};
    for_weights(s + lane, count, step[n].reference, keeps, [&](int r, F p[4]) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) chain[k] += p[k];
      store_pairs(pairs + r / 2 * tile + lane, p[0], p[1]);
      if (r + 2 < count) store_pairs(pairs + (r / 2 + 1) * tile + lane, p[2], p[3]);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) rounded_chain[k] += p[k];
    });
    add_chains(chain, step[n].factor, sum + lane, sum_lo + lane);
    add_chains(rounded_chain, step[n].factor, rounded + lane, rounded_lo + lane);
  }
  return any;
}

// Terms of an ordinary value (at least 2^-80) and a faint weight may fall below 2^-126, where a product of pairs loses
// them. The lift keeps all that are numbers of float32 (at least 2^-149), and 64 of them are too small to overflow.
constexpr float faint_below = 0x1p-30f, faint_lift = 1 / faint_unit;

std::uint64_t pair_lanes(const float* s, int count, int lane_begin, int lane_end, std::uint32_t* pairs) {
  constexpr int larger_magnitude = 0xb;  // of _mm512_range_ps: without its sign, and a number rather than a NaN
  std::uint64_t faint = 0;
  for (int r = 0; r < count; ++r, s += tile, pairs += tile_pairs) {
    __m512 largest = _mm512_setzero_ps();
    for (int lane = lane_begin; lane < lane_end; lane += lanes) {
      const F x = load(s + lane);
      largest = _mm512_range_ps(largest, (__m512)x, larger_magnitude);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + lane / 2), (__m256i)_mm512_cvtneps_pbh((__m512)x));
    }
    if (any_set((F)largest >= faint_below) || !any_set((F)largest > F{})) continue;
    faint |= std::uint64_t{1} << r;
    for (int lane = lane_begin; lane < lane_end; lane += lanes)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + lane / 2),
                          (__m256i)_mm512_cvtneps_pbh((__m512)(load(s + lane) * faint_lift)));
  }
  return faint;
}

/// The exceptional elements of x.
inline __mmask16 exceptional(__m256i x) {
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi16(0x7fff));
  const __m256i below = _mm256_sub_epi16(magnitude, _mm256_set1_epi16(1));  // 0 wraps around to the largest
  return static_cast<__mmask16>(_mm256_cmplt_epu16_mask(below, _mm256_set1_epi16(((127 - 80) << 7) - 1)) |
                                _mm256_cmpge_epu16_mask(magnitude, _mm256_set1_epi16(0x7f80)));
}

constexpr short smallest_ordinary = (127 - 80) << 7, ordinary_magnitudes = 0x7f80 - smallest_ordinary;

/// With leave_out, the exceptional elements of a row become 0; otherwise they are only looked for: `farthest` collects
/// the largest distance of a nonzero magnitude above the smallest ordinary one, and what is below it wraps around.
template <bool leave_out>
inline __m512i ordinary(__m512i row, __m512i& farthest) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), smallest = _mm512_set1_epi16(smallest_ordinary);
  const __m512i distance =
      _mm512_maskz_sub_epi16(_mm512_test_epi16_mask(row, magnitude), _mm512_and_si512(row, magnitude), smallest);
  if constexpr (leave_out)
    return _mm512_maskz_mov_epi16(_mm512_cmplt_epu16_mask(distance, _mm512_set1_epi16(ordinary_magnitudes)), row);
  farthest = _mm512_max_epu16(farthest, distance);
  return row;
}

inline bool any_exceptional(__m512i farthest) {
  return _mm512_cmpge_epu16_mask(farthest, _mm512_set1_epi16(ordinary_magnitudes)) != 0;
}

/// Where the pairs of the first and of the last 16 columns are in two rows of 32.
struct PairOrder {
  const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
};

/// Asks for what lies `ahead` bytes behind the rows (0: for nothing).
template <bool leave_out>
inline bool interleave_rows(const std::uint16_t* const* rows, int count, std::int64_t width, std::uint32_t* pairs,
                            std::int64_t ahead = 0) {
  const PairOrder order;
  const std::int64_t padded_width = (width + 15) / 16 * 16;
  __m512i farthest = _mm512_setzero_si512();
  for (int t = 0; t < count; t += 2, pairs += padded_width)
    for (std::int64_t c = 0; c < width; c += 32) {
      const auto used = static_cast<__mmask32>(width - c < 32 ? (std::uint64_t{1} << (width - c)) - 1 : 0xffffffffu);
      __m512i x[2] = {_mm512_maskz_loadu_epi16(used, rows[t] + c), _mm512_setzero_si512()};
      if (t + 1 < count) x[1] = _mm512_maskz_loadu_epi16(used, rows[t + 1] + c);
      if (ahead)
        for (int n = t; n < t + 2 && n < count; ++n) prefetch(rows[n] + c, ahead);
      for (__m512i& row : x) row = ordinary<leave_out>(row, farthest);
      _mm512_storeu_si512(pairs + c, _mm512_permutex2var_epi16(x[0], order.first, x[1]));
      if (c + 16 < padded_width)
        _mm512_storeu_si512(pairs + c + 16, _mm512_permutex2var_epi16(x[0], order.second, x[1]));
    }
  return any_exceptional(farthest);
}

bool interleave(const std::uint16_t* const* rows, int count, std::int64_t width, std::uint32_t* pairs) {
  const bool any = interleave_rows<false>(rows, count, width, pairs);
  if (any) interleave_rows<true>(rows, count, width, pairs);
  return any;
}

void exceptional_row(const std::uint16_t* x, std::int64_t width, float* y) {
  for (std::int64_t c = 0; c < width; c += 16) {
    const auto used = static_cast<__mmask16>(width - c < 16 ? (1u << (width - c)) - 1 : 0xffffu);
    const __m256i row = _mm256_maskz_loadu_epi16(used, x + c);
    const __m256i kept = _mm256_maskz_mov_epi16(exceptional(row), row);
    _mm512_storeu_si512(y + c, _mm512_slli_epi32(_mm512_cvtepu16_epi32(kept), 16));
  }
}

}  // namespace
}  // namespace dsalt::internal

#endif
