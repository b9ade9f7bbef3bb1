// The matrix kernels on bfloat16 pairs by AMX (TDPBF16PS), for kernels.cpp alone: the products of kernels_bf16.hpp,
// which says what subnormal, infinite and NaN operands do, 16 x 16 sums at a time.
//
// A tile register holds 16 rows of 64 bytes. One instruction adds to 16 x 16 sums the products of 16 rows of 16 pairs
// with 16 pairs of 16 columns. Each sum gets one number: a chain of multiply-adds from zero over the pairs' lower
// elements plus one over the higher elements. What is added at once are therefore the 16 pairs of a group, and groups
// count from the start of a tile, so that a row's bits do not depend on where a call begins. Pairs of a group that the
// call does not have get the weight 0 and add nothing.
#pragma once

#if defined(__AMX_BF16__) && DSALT_LANES == 16

#include "kernels_bf16.hpp"
#include "kernels_matrix.hpp"
#include "kernels_rows_bf16.hpp"

namespace dsalt::internal {
namespace {

/// Rows of a tile register; its columns of 32 bits, which are the pairs of a group.
constexpr int amx_rows = 16, group_pairs = 16;
constexpr std::int64_t amx_row_bytes = 4 * group_pairs;
constexpr int most_groups = tile_pairs / group_pairs;

/// All eight registers whole, as LDTILECFG reads it.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfiguration whole_tiles;

void enter(TileState* before) {
  asm volatile("sttilecfg %0" : "=m"(*before));
  asm volatile("ldtilecfg %0" : : "m"(whole_tiles));
}

void leave(const TileState* before) {
  if (before->bytes[0] == 0)  // nobody's
    asm volatile("tilerelease");
  else
    asm volatile("ldtilecfg %0" : : "m"(*before));
}

// The compiler's own functions for these do not tell it that loads read memory.
template <int T>
inline void load_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void store_tile(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}
template <int T>
inline void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
/// Register T += A B.
template <int T, int A, int B>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(T), "i"(A), "i"(B));
}

// Registers 0 to 3 hold sums, 4 the rows of pairs, 5 to 7 pairs of columns in turn.
constexpr int amx_left = 4;
template <int n>
constexpr int amx_right = 5 + n % 3;

/// body<n>() for n in [0, N).
template <int N, int n = 0, class Body>
inline void each_tile(Body&& body) {
  if constexpr (n < N) {
    body.template operator()<n>();
    each_tile<N, n + 1>(body);
  }
}

inline __mmask16 lowest(std::int64_t count) { return static_cast<__mmask16>(count < 16 ? (1u << count) - 1 : 0xffffu); }

/// The distance of 16 rows in bytes, where all follow each other at the same one and there are so many; else 0.
template <class Row>
inline std::int64_t even_stride(Row* const* rows, int count) {
  const auto address = [rows](int r) { return reinterpret_cast<std::intptr_t>(rows[r]); };
  if (count < amx_rows) return 0;
  const std::int64_t stride = address(1) - address(0);
  std::int64_t uneven = 0;
  for (int r = 2; r < amx_rows; ++r) uneven |= address(r) - address(r - 1) - stride;
  return uneven == 0 ? stride : 0;
}

/// 16 columns of up to 16 pairs, row stride `tile`, into register T; 0 past `pairs`.
template <int T>
inline void load_columns_of_pairs(const std::uint32_t* columns, std::int64_t pairs) {
  if (pairs >= 16) return load_tile<T>(columns, 4 * tile);
  alignas(64) std::uint32_t copy[16 * 16];
  for (int k = 0; k < 16; ++k)
    _mm512_store_si512(copy + k * 16, k < pairs ? _mm512_loadu_si512(columns + k * tile) : _mm512_setzero_si512());
  load_tile<T>(copy, amx_row_bytes);
}

/// The pairs [c, c + 16) of up to 16 rows into register `amx_left`; 0 past `count` rows and `pairs`.
inline void load_row_pairs(const std::uint16_t* const* rows, int count, std::int64_t stride, std::int64_t c,
                           std::int64_t pairs) {
  if (stride != 0 && pairs - c >= 16) return load_tile<amx_left>(columns_of(rows[0], c), stride);
  alignas(64) std::uint32_t copy[amx_rows * 16];
  for (int r = 0; r < amx_rows; ++r)
    _mm512_store_si512(copy + r * 16, r < count ? _mm512_maskz_loadu_epi32(lowest(pairs - c), columns_of(rows[r], c))
                                                : _mm512_setzero_si512());
  load_tile<amx_left>(copy, amx_row_bytes);
}

/// 16 rows' products with 16 N lanes, as they leave the registers.
template <int N>
struct ScoresTile {
  alignas(64) float sums[amx_rows * N * 16];
  int count;

  void multiply(const std::uint32_t* packed, const std::uint16_t* const* rows, int row_count, std::int64_t pairs) {
    count = row_count;
    each_tile<N>([]<int n>() { clear_tile<n>(); });
    const std::int64_t stride = even_stride(rows, count);
    for (std::int64_t c = 0; c < pairs; c += 16) {
      load_row_pairs(rows, count, stride, c, pairs);
      each_tile<N>([&]<int n>() {
        load_columns_of_pairs<amx_right<n>>(packed + c * tile + n * 16, pairs - c);
        multiply_tiles<n, amx_left, amx_right<n>>();
      });
    }
    each_tile<N>([&]<int n>() { store_tile<n>(sums + n * 16, N * amx_row_bytes); });
  }

  void finish(float factor, float* out, F (&top)[N]) const {
    for (int r = 0; r < count; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const F score = load(sums + (r * N + n) * 16) * factor;
        store(out + r * tile + n * lanes, score);
        top[n] = larger(top[n], score);
      }
  }
};

void scores_pairs(const std::uint32_t* packed, const std::uint16_t* const* rows, int count, std::int64_t pairs,
                  float factor, int lane_begin, int lane_end, float* out, float* highest) {
  in_strips(lane_begin, lane_end, [&]<int N>(std::int64_t lane) {
    F top[N];
    for (int n = 0; n < N; ++n) top[n] = highest ? load(highest + lane + n * lanes) : F{};
    // Sums need long until they are in memory: the next 16 rows begin meanwhile.
    ScoresTile<N> blocks[2];
    int r = 0;
    for (; r < count; r += amx_rows) {
      const int row_count = count - r < amx_rows ? count - r : amx_rows;
      blocks[r / amx_rows % 2].multiply(packed + lane, rows + r, row_count, pairs);
      if (r > 0) blocks[(r / amx_rows + 1) % 2].finish(factor, out + (r - amx_rows) * tile + lane, top);
    }
    if (count > 0) blocks[(r / amx_rows + 1) % 2].finish(factor, out + (r - amx_rows) * tile + lane, top);
    if (highest)
      for (int n = 0; n < N; ++n) store(highest + lane + n * lanes, top[n]);
  });
}

/// A group of pairs and those of them that a call has: pairs [from, to) of those that the call counts from 0.
struct PairGroup {
  int begin;  // the group's first pair, as the call counts
  int from, to;
  __mmask16 present;

  PairGroup(int group, int first, int terms)
      : begin(group * group_pairs - first),
        from(begin > 0 ? begin : 0),
        to(begin + group_pairs < terms ? begin + group_pairs : terms),
        present(static_cast<__mmask16>(lowest(to - begin) & ~lowest(from - begin))) {}
};

/// Calls body(group) for the groups of a tile that pairs [first, first + terms) of it meet.
template <class Body>
inline void for_each_group(int first, int terms, Body&& body) {
  for (int group = first / group_pairs; group * group_pairs < first + terms; ++group)
    body(PairGroup(group, first, terms));
}

/// The weights of up to 16 rows in a group, for register amx_left: in place or copied.
struct GroupWeights {
  alignas(64) std::uint32_t copy[amx_rows * 16];
  const void* at = copy;
  std::int64_t stride = amx_row_bytes;

  void fill(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride, const PairGroup& group, int count) {
    if (t_stride != 1) return fill_transposed(a, t_stride, group, count);
    const std::uint32_t* row = a + group.begin;
    if (group.present == 0xffff && count == amx_rows) {
      at = row;
      stride = 4 * r_stride;
      return;
    }
    for (int r = 0; r < amx_rows; ++r)
      _mm512_store_si512(copy + r * 16, r < count ? _mm512_maskz_loadu_epi32(group.present, row + r * r_stride)
                                                  : _mm512_setzero_si512());
  }

 private:
  /// Of rows that lie side by side.
  void fill_transposed(const std::uint32_t* a, std::int64_t t_stride, const PairGroup& group, int count) {
    __m512i x[16];
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k)
      x[k] = (group.present >> k & 1) != 0 ? _mm512_maskz_loadu_epi32(lowest(count), a + (group.begin + k) * t_stride)
                                           : _mm512_setzero_si512();
    transpose_16x16(x);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_store_si512(copy + r * 16, x[r]);
  }
};

/// 16 N columns of up to 16 rows.
template <int N, Into into>
inline void accumulate_tile(const GroupWeights* weights, const std::uint32_t* rows, std::int64_t width, int first,
                            int terms, float factor, float* const* out, std::int64_t column, std::int64_t lo_offset,
                            int count) {
  const std::int64_t stride = even_stride(out, count);
  const bool in_place =
      stride != 0 && (into == Into::running || (into == Into::first && lo_offset == 0 && factor == 1));
  alignas(64) float sums[amx_rows * N * 16];
  if constexpr (into != Into::running) {
    each_tile<N>([]<int n>() { clear_tile<n>(); });
  } else if (in_place) {
    each_tile<N>([&]<int n>() { load_tile<n>(out[0] + column + n * 16, stride); });
  } else {
    for (int r = 0; r < amx_rows; ++r)
      for (int n = 0; n < N; ++n) store(sums + (r * N + n) * 16, r < count ? load(out[r] + column + n * lanes) : F{});
    each_tile<N>([&]<int n>() { load_tile<n>(sums + n * 16, N * amx_row_bytes); });
  }
  for_each_group(first, terms, [&](const PairGroup& group) {
    load_tile<amx_left>(weights->at, weights->stride);
    const std::uint32_t* values = rows + group.begin * width + column;
    each_tile<N>([&]<int n>() {
      load_tile<amx_right<n>>(values + n * 16, 4 * width);
      multiply_tiles<n, amx_left, amx_right<n>>();
    });
    ++weights;
  });
  if (in_place) return each_tile<N>([&]<int n>() { store_tile<n>(out[0] + column + n * 16, stride); });
  each_tile<N>([&]<int n>() { store_tile<n>(sums + n * 16, N * amx_row_bytes); });
  for (int r = 0; r < count; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
      put<into>(load(sums + (r * N + n) * 16) * factor, out[r] + column + n * lanes, lo_offset);
}

template <Into into>
inline void accumulate_tile_rows(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                                 const std::uint32_t* rows, int first, int terms, std::int64_t width, float factor,
                                 float* const* out, std::int64_t lo_offset, int count) {
  // All weights before the first product: a register waits long for memory that was written just now.
  GroupWeights weights[tile / amx_rows][most_groups];
  const auto rows_of = [count](int block) {
    return count - block * amx_rows < amx_rows ? count - block * amx_rows : amx_rows;
  };
  for (int block = 0; block * amx_rows < count; ++block) {
    GroupWeights* of = weights[block];
    for_each_group(first, terms, [&](const PairGroup& group) {
      of++->fill(a + block * amx_rows * r_stride, t_stride, r_stride, group, rows_of(block));
    });
  }
  for (int block = 0; block * amx_rows < count; ++block)
    in_strips(0, width, [&]<int N>(std::int64_t column) {
      accumulate_tile<N, into>(weights[block], rows, width, first, terms, factor, out + block * amx_rows, column,
                               lo_offset, rows_of(block));
    });
}

void accumulate_pairs(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride, const std::uint32_t* rows,
                      int first, int terms, std::int64_t width, float* const* out, int count) {
  accumulate_tile_rows<Into::running>(a, t_stride, r_stride, rows, first, terms, width, 1, out, 0, count);
}

void accumulate_pairs_compensated(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                                  const std::uint32_t* rows, int first, int terms, std::int64_t width, float factor,
                                  float* const* out, std::int64_t lo_offset, int count, bool is_first) {
  (is_first ? accumulate_tile_rows<Into::first> : accumulate_tile_rows<Into::compensated>)(a, t_stride, r_stride, rows,
                                                                                           first, terms, width, factor,
                                                                                           out, lo_offset, count);
}

/// The queries are the columns here; a group of 16 keys is a register of rows. Up to 128 channels of a key are met at a
/// time, so that keys come in the order of memory.
void row_scores_pairs(const void* const* q, int count, const std::uint16_t* const* keys, int key_count,
                      std::int64_t pairs, float factor, std::int64_t ahead, float* out) {
  constexpr int most_key_groups = tile / amx_rows, most_lines = 4;
  const int groups = (key_count + amx_rows - 1) / amx_rows;
  each_tile<most_key_groups>([]<int g>() { clear_tile<g>(); });
  alignas(64) std::uint32_t queries[most_lines * 16 * 16];
  for (std::int64_t begin = 0; begin < pairs; begin += most_lines * 16) {
    const int lines = static_cast<int>(pairs - begin > (most_lines - 1) * 16 ? most_lines : (pairs - begin + 15) / 16);
    for (int line = 0; line < lines; ++line) {
      __m512i x[16];
      load_columns(q, count, begin + line * 16, pairs, x);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) _mm512_store_si512(queries + (line * 16 + k) * 16, x[k]);
    }
    each_tile<most_key_groups>([&]<int g>() {
      if (g >= groups) return;
      const std::uint16_t* const* of = keys + g * amx_rows;
      const int rows = key_count - g * amx_rows < amx_rows ? key_count - g * amx_rows : amx_rows;
      const std::int64_t stride = even_stride(of, rows);
      const int asks = (rows + lines - 1) / lines;  // rows, while a line of each is met
      for (int line = 0; line < lines; ++line) {
        if (ahead)
          for (int r = line * asks; r < (line + 1) * asks && r < rows; ++r)
            for (int ask = 0; ask < lines; ++ask) prefetch(columns_of(of[r], begin + ask * 16), ahead);
        load_row_pairs(of, rows, stride, begin + line * 16, pairs);
        load_tile<amx_right<0>>(queries + line * 16 * 16, amx_row_bytes);
        multiply_tiles<g, amx_left, amx_right<0>>();
      }
    });
  }
  alignas(64) float sums[tile * 16];
  each_tile<most_key_groups>([&]<int g>() {
    if (g < groups) store_tile<g>(sums + g * amx_rows * 16, amx_row_bytes);
  });
  const __m512i column =
      _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(16));
  for (int g = 0; g < groups; ++g)
    for (int r = 0; r < count; ++r)
      store(out + r * tile + g * lanes, (F)_mm512_i32gather_ps(column, sums + g * amx_rows * 16 + r, 4) * factor);
}

/// 16 N columns of row_accumulate_pairs, `width` of which are elements; whether some of these are exceptional.
template <int N>
inline bool row_accumulate_tile(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows,
                                int first, int terms, std::int64_t column, std::int64_t width, std::int64_t ahead,
                                float* const* out, int count) {
  // All operands are in memory before the first product, as above.
  alignas(64) std::uint32_t values[most_groups][16 * N * 16];
  GroupWeights weights[most_groups];
  alignas(64) float sums[amx_rows * N * 16];
  for (int r = 0; r < amx_rows; ++r)
    for (int n = 0; n < N; ++n) store(sums + (r * N + n) * 16, r < count ? load(out[r] + column + n * lanes) : F{});
  bool any = false;
  int groups = 0;
  for_each_group(first, (terms + 1) / 2, [&](const PairGroup& group) {
    const int begin = 2 * group.from, end = 2 * group.to < terms ? 2 * group.to : terms;  // terms
    const std::uint16_t* part[2 * group_pairs];
    for (int t = begin; t < end; ++t) part[t - begin] = rows[t] + column;
    if (group.present != 0xffff) __builtin_memset(values[groups], 0, sizeof values[groups]);
    std::uint32_t* pairs = values[groups] + (group.from - group.begin) * N * 16;
    if (interleave_rows<false>(part, end - begin, width, pairs, ahead)) {
      any = true;
      interleave_rows<true>(part, end - begin, width, pairs);
    }
    weights[groups++].fill(w, 1, r_stride, group, count);
  });
  each_tile<N>([&]<int n>() { load_tile<n>(sums + n * 16, N * amx_row_bytes); });
  for (int g = 0; g < groups; ++g) {
    load_tile<amx_left>(weights[g].at, weights[g].stride);
    each_tile<N>([&]<int n>() {
      load_tile<amx_right<n>>(values[g] + n * 16, N * amx_row_bytes);
      multiply_tiles<n, amx_left, amx_right<n>>();
    });
  }
  each_tile<N>([&]<int n>() { store_tile<n>(sums + n * 16, N * amx_row_bytes); });
  for (int r = 0; r < count; ++r)
    for (int n = 0; n < N; ++n) store(out[r] + column + n * lanes, load(sums + (r * N + n) * 16));
  return any;
}

/// For so few rows vectors are faster: values need not be stored in pairs first, and memory is asked without a pause.
constexpr int rows_for_vectors = 2;

bool row_accumulate_pairs(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows, int first,
                          int terms, std::int64_t width, std::int64_t ahead, float* const* out, int count) {
  bool any = false;
  if (count <= rows_for_vectors) {
    for_each_group(first, (terms + 1) / 2, [&](const PairGroup& group) {
      const int end = 2 * group.to < terms ? 2 * group.to : terms;
      any = add_rows_of_pairs<rows_for_vectors>(w + group.from, r_stride, rows + 2 * group.from, end - 2 * group.from,
                                                width, ahead, out, count) ||
            any;
    });
    return any;
  }
  in_strips(0, (width + 15) / 16 * 16, [&]<int N>(std::int64_t column) {
    const std::int64_t left = width - column < N * 16 ? width - column : N * 16;
    any = row_accumulate_tile<N>(w, r_stride, rows, first, terms, column, left, ahead, out, count) || any;
  });
  return any;
}

}  // namespace
}  // namespace dsalt::internal

#endif
