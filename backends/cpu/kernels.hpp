// The kernels of CPU attention in float32 and on pairs of bfloat16, one table per instruction set.
//
// A tile is `tile` keys (rows) by `tile` queries (columns) of float32, row stride `tile`. The column index is called
// the lane. Lanes come in groups of `lane_group`, so that a range of lanes means the same on every instruction set.
//
// Every output element is computed by one fixed sequence of operations that depends on nothing but its own operands:
// not on how many other rows or lanes the call covers, nor on zeros skipped. That is what makes a row's bytes
// independent of its batch, of padding and of the number of threads. Bits differ between instruction sets, within
// rounding.
//
// No function here may throw or allocate. This header defines no inline functions: it is compiled with different
// instruction sets, and a shared definition could be taken from the wrong one.
#pragma once

#include <cstdint>

namespace dsalt::internal {

inline constexpr int tile = 64;
inline constexpr int lane_group = 16;  // rows handed to `accumulate` are readable (zero-padded) to a multiple of this

/// A weight may exceed 1 by exp(max_slack) before the reference point m of its row moves: rescaling is rare, so its
/// rounding does not add up over long rows.
inline constexpr float max_slack = 8;

/// What a sum of pairs over weights that pair_lanes found faint is to be multiplied by.
inline constexpr float faint_unit = 0x1p-24f;

/// What decides the dropout of a tile's rows: row `lane` is query[lane] of head[lane] = b Hq + h (low 32 bits). A
/// weight is kept, times `kept`, when its Philox word is at least `threshold`. Lanes without a row hold any number.
struct DropoutRows {
  alignas(64) std::int32_t query[tile], head[tile];
  std::uint32_t offset;
  std::uint64_t seed;
  std::uint32_t threshold;
  float kept;
};

/// What a thread's tile registers were configured for before Kernels::enter.
struct alignas(64) TileState {
  unsigned char bytes[64];
};

struct Kernels {
  const char* name;  // "scalar" (the compiler's baseline), "AVX2", "AVX-512", "AVX-512-BF16", "AMX-BF16"

  /// out[r][lane] = sum_c rows[r][c] packed[c][lane] for r in [0,count), lanes [lane_begin, lane_end).
  /// Sums run over blocks of 64 channels, each from zero. highest[lane], unless null, is raised to the largest of them
  /// that is not NaN.
  void (*scores)(const float* packed, const float* const* rows, int count, std::int64_t channels, int lane_begin,
                 int lane_end, float* out, float* highest);

  /// The same with keys in the lanes, for few rows: out[r * tile + n] = sum_c q[r][c] keys[n][c] for r in [0,count), n
  /// in [0,key_count), bit for bit; rows of float32. Past key_count up to whole lane groups, out becomes any numbers.
  /// Row kernels ask for what lies `ahead` bytes behind the keys or values (0: for nothing), as they read those.
  void (*row_scores)(const void* const* q, int count, const float* const* keys, int key_count, std::int64_t channels,
                     std::int64_t ahead, float* out);

  /// out[r] += sum_t a[t * t_stride + r * r_stride] rows[t], term by term, for r in [0,count), `width` columns (a
  /// multiple of lane_group). A term whose weight `a` is 0 contributes nothing even if its row is not finite.
  void (*accumulate)(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows, int terms,
                     std::int64_t width, float* const* out, int count);
  /// The same with t_stride 1, for few rows.
  void (*row_accumulate)(const float* a, std::int64_t r_stride, const float* const* rows, int terms, std::int64_t width,
                         std::int64_t ahead, float* const* out, int count);
  /// The same sum from zero, then added to the compensated sum hi + lo: hi = out[r], lo = hi + lo_offset, or nothing
  /// where lo_offset is 0. `first`: hi and lo are taken to be 0.
  void (*accumulate_compensated)(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows,
                                 int terms, std::int64_t width, float* const* out, std::int64_t lo_offset, int count,
                                 bool first);
  /// hi + lo += running, compensated. n is a multiple of lane_group. `first`: hi and lo are taken to be 0.
  void (*fold)(const float* running, float* hi, float* lo, std::int64_t n, bool first);

  /// packed[c][lane] = rows[lane][c] for lanes [0,count), 0 in the rest of the last lane group; elements of 32 bits.
  void (*transpose)(const void* const* rows, int count, std::int64_t channels, void* packed);

  // Matrix products of bfloat16 operands; null where the instruction set has none. A pair is two neighbouring elements
  // in 32 bits. See kernels_bf16.hpp about subnormal, infinite and NaN operands. Where group_pairs is not 1, that many
  // pairs are added as one number: of channels, and of terms, counted from the start of a tile. Sums over terms begin
  // at pair `first` of their tile.

  /// 1, or 16 with AMX.
  int group_pairs;
  /// A thread may call products of pairs between these two only (KernelScope); null where that makes no difference.
  void (*enter)(TileState* before);
  void (*leave)(const TileState* before);
  /// As scores, times `factor`: packed[pair of channels][lane], rows of bfloat16 with an even number of channels.
  void (*scores_pairs)(const std::uint32_t* packed, const std::uint16_t* const* rows, int count, std::int64_t pairs,
                       float factor, int lane_begin, int lane_end, float* out, float* highest);
  /// As row_scores, times `factor`, for at most 16 rows, and with the bits of scores_pairs.
  void (*row_scores_pairs)(const void* const* q, int count, const std::uint16_t* const* keys, int key_count,
                           std::int64_t pairs, float factor, std::int64_t ahead, float* out);
  /// As accumulate, one stride of `a` being 1: a and rows[pair of terms][column] hold `terms` pairs of terms, row
  /// stride `width`. Pairs of rows before and after these are read where they belong to the same groups, and must be
  /// finite.
  void (*accumulate_pairs)(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                           const std::uint32_t* rows, int first, int terms, std::int64_t width, float* const* out,
                           int count);
  /// As accumulate_compensated: the sums are multiplied by `factor` before they are added.
  void (*accumulate_pairs_compensated)(const std::uint32_t* a, std::int64_t t_stride, std::int64_t r_stride,
                                       const std::uint32_t* rows, int first, int terms, std::int64_t width,
                                       float factor, float* const* out, std::int64_t lo_offset, int count,
                                       bool is_first);
  /// As softmax (below), and pairs[r / 2][lane] = (s[r][lane], s[r + 1][lane]) rounded to bfloat16, row stride tile;
  /// rounded + rounded_lo sums those as sum + sum_lo does the unrounded ones. s becomes the weights only if `keeps`;
  /// else it stays as it is.
  bool (*softmax_pairs)(float* s, int count, float* m, float* sum, float* sum_lo, float* rounded, float* rounded_lo,
                        float* alpha, const float* bound, int lane_begin, int lane_end, bool keeps,
                        std::uint32_t* pairs);
  /// As row_softmax (below), and pairs[n / 2] = (s[n], s[n + 1]) with what softmax_pairs does to them.
  bool (*row_softmax_pairs)(float* s, int count, float* m, float* sum, float* sum_lo, float* rounded, float* rounded_lo,
                            float* alpha, std::uint32_t* pairs);
  /// out[r] += sum_t w[r][t] rows[t] for at most 16 rows r in [0,count) and t in [0,terms), as interleave and
  /// accumulate_pairs do it: w[r * r_stride + t / 2] is the pair of weights t and t + 1, the one past an odd number of
  /// terms 0. Only a tile's last call may end inside a group. Returns whether some elements are exceptional; they are
  /// left out.
  bool (*row_accumulate_pairs)(const std::uint32_t* w, std::int64_t r_stride, const std::uint16_t* const* rows,
                               int first, int terms, std::int64_t width, std::int64_t ahead, float* const* out,
                               int count);
  /// pairs as softmax_pairs makes them.
  void (*pair_rows)(const float* s, int count, int lane_begin, int lane_end, std::uint32_t* pairs);
  /// pairs[r][lane / 2] = (s[r][lane], s[r][lane + 1]); row stride tile / 2. Faint rows, whose largest magnitude is
  /// below 2^-30 but not 0, are multiplied by 1 / faint_unit: bit r of the result is set.
  std::uint64_t (*pair_lanes)(const float* s, int count, int lane_begin, int lane_end, std::uint32_t* pairs);
  /// pairs[t / 2][c] = (rows[t][c], rows[t + 1][c]), row stride `width` rounded up to lane_group, with exceptional
  /// elements as 0. Returns whether there are any.
  bool (*interleave)(const std::uint16_t* const* rows, int count, std::int64_t width, std::uint32_t* pairs);
  /// y = the exceptional elements of x, 0 elsewhere.
  void (*exceptional_row)(const std::uint16_t* x, std::int64_t width, float* y);

  /// s[r][lane] = -inf unless first[lane] <= key + r <= last[lane], r in [0,count).
  void (*mask_lanes)(float* s, int count, std::int32_t key, const std::int32_t* first, const std::int32_t* last,
                     int lane_begin, int lane_end);
  /// s[r][lane] += bias[r]; then -inf where first[lane] <= key[r] <= last[lane] (already in the window) or
  /// key[r] > newest[lane].
  void (*mask_landmarks)(float* s, int count, const std::int32_t* key, const float* bias, const std::int32_t* first,
                         const std::int32_t* last, const std::int32_t* newest, int lane_begin, int lane_end);

  /// Online softmax: m grows when a score exceeds it by max_slack (or it was -inf), s becomes exp(s - m), alpha =
  /// exp(m_old - m), or 1 when m_old = -inf, sum + sum_lo = alpha (sum + sum_lo) + sum_r s[r]. A lane whose scores are
  /// all -inf keeps m and sum bit for bit and gets alpha = 1. Returns whether some alpha is not 1. bound, unless null,
  /// is known to be at least every score (that is not NaN): where it cannot raise m, nobody looks for the largest.
  bool (*softmax)(float* s, int count, float* m, float* sum, float* sum_lo, float* alpha, const float* bound,
                  int lane_begin, int lane_end);

  /// The same for one row, keys in the lanes, bit for bit: s[0], ..., s[count - 1], where -inf is a key that is not
  /// admitted. count is a multiple of lane_group, s[0] a key whose index is a multiple of 4.
  bool (*row_softmax)(float* s, int count, float* m, float* sum, float* sum_lo, float* alpha);

  /// Backward: s becomes P = exp(s - lse[lane]) norm[lane]; lse = -inf gives 0.
  void (*probabilities)(float* s, int count, const float* lse, const float* norm, int lane_begin, int lane_end);
  /// ds[r][lane] = p (keep dp - delta[lane]) where p != 0, else 0; then p becomes p keep. dp holds dP on entry and ds
  /// on return. keep null: ones.
  void (*score_gradients)(float* p, float* dp, const float* keep, const float* delta, int count, int lane_begin,
                          int lane_end);
  /// sum_p[lane] += sum_r p, sum_pd[lane] += sum_r p keep dp where p != 0. keep null: ones.
  void (*row_sums)(const float* p, const float* dp, const float* keep, int count, double* sum_p, double* sum_pd,
                   int lane_begin, int lane_end);

  /// sum x[n] y[n] in double, one chain per lane.
  double (*dot)(const float* x, const float* y, std::int64_t n);
  /// y = exp(x): below 1 ulp (1.25 without fused multiply-add), exp(0) = 1, exp(-inf) = 0, exp(+inf) = inf, NaN kept,
  /// subnormals kept.
  void (*exp)(const float* x, float* y, std::int64_t n);
  /// For z >= 0: bias = log sigma(z), slope = 1 - sigma(z).
  void (*soft_edge)(const float* z, float* bias, float* slope, std::int64_t n);
  /// keep[j * tile + lane] = the factor of key `key` + j (key a multiple of 4) for j in [0, count).
  void (*dropout_keys)(const DropoutRows& rows, std::int64_t key, int count, int lane_begin, int lane_end, float* keep);
  /// The same for keys index[j] >= 0.
  void (*dropout_landmarks)(const DropoutRows& rows, const std::int32_t* index, int count, int lane_begin, int lane_end,
                            float* keep);
  /// s[r][lane] *= keep[r][lane].
  void (*multiply)(float* s, const float* keep, int count, int lane_begin, int lane_end);
  /// row *= factor; n is a multiple of lane_group.
  void (*scale_row)(float* row, float factor, std::int64_t n);

  // Conversions of contiguous rows; y may not overlap x, but `scaled` may work in place. Narrowing rounds to nearest
  // even and equals dtype.hpp bit for bit. `scaled` multiplies in double and rounds once.
  void (*widen_bf16)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*widen_f16)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*narrow_bf16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*narrow_f16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*scaled)(const float* x, double scale, float* y, std::int64_t n);
  /// y = sum / divisor, -0 as 0, after a last fold; n is a multiple of lane_group. running null: there is nothing to
  /// fold; hi null: it is the first.
  void (*finish)(const float* running, const float* hi, const float* lo, float divisor, float* y, std::int64_t n);
};

/// Filled in kernels.cpp; the x86 tables exist on x86-64 only.
extern const Kernels kernels_scalar, kernels_avx2, kernels_avx512, kernels_avx512bf16, kernels_amxbf16;

/// The tables that this machine can run, best first; never empty.
struct KernelChoice {
  const char* key;  // the value of DSALT_CPU_ISA
  const Kernels* table;
};
inline constexpr int most_kernels = 5;
int available_kernels(KernelChoice (&choices)[most_kernels]);

/// The best table, or the one named by `isa` ("scalar", "avx2", "avx512", "avx512bf16", "amxbf16"); null or "" means
/// the best. InvalidArgument names what this machine can run.
const Kernels& select_kernels(const char* isa);

}  // namespace dsalt::internal
