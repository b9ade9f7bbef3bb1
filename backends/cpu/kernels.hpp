// The float32 kernels of CPU attention, one table per instruction set.
//
// A tile is `tile` rows by `tile` columns of float32, row stride `tile`. The column index is called the lane: it runs
// over queries in the forward pass and in dq, over keys in dk and dv. Lanes come in groups of `lane_group`, so that a
// range of lanes means the same on every instruction set.
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

struct Kernels {
  const char* name;  // "scalar" (the compiler's baseline), "AVX2", "AVX-512"

  /// out[r][lane] = sum_c rows[r][c] packed[c][lane] for r in [0,count), lanes [lane_begin, lane_end).
  /// Sums run over blocks of 64 channels, each from zero.
  void (*scores)(const float* packed, const float* const* rows, int count, std::int64_t channels, int lane_begin,
                 int lane_end, float* out);

  /// (hi + lo)[r] = alpha[r] (hi + lo)[r] + sum_t a[t * t_stride + r * r_stride] rows[t], for r in [0,count), `width`
  /// columns (a multiple of lane_group). hi + lo is a compensated sum: lo = hi + lo_offset. alpha null: all ones.
  /// A term whose weight `a` is 0 contributes nothing even if its row is not finite.
  void (*accumulate)(const float* a, std::int64_t t_stride, std::int64_t r_stride, const float* const* rows, int terms,
                     std::int64_t width, const float* alpha, float* const* out, std::int64_t lo_offset, int count);

  /// packed[c][lane] = rows[lane][c] for lanes [0,count), 0 for the other lanes.
  void (*transpose)(const float* const* rows, int count, std::int64_t channels, float* packed);

  /// s[r][lane] = -inf unless first[lane] <= key + r <= last[lane], r in [0,count).
  void (*mask_lanes)(float* s, int count, std::int32_t key, const std::int32_t* first, const std::int32_t* last,
                     int lane_begin, int lane_end);
  /// s[r][lane] = -inf unless first[r] <= lane <= last[r]: rows are queries, lanes are keys.
  void (*mask_rows)(float* s, int count, const std::int32_t* first, const std::int32_t* last, int lane_begin,
                    int lane_end);
  /// s[r][lane] += bias[r]; then -inf where first[lane] <= key[r] <= last[lane] (already in the window) or
  /// key[r] > newest[lane].
  void (*mask_landmarks)(float* s, int count, const std::int32_t* key, const float* bias, const std::int32_t* first,
                         const std::int32_t* last, const std::int32_t* newest, int lane_begin, int lane_end);

  /// Online softmax, lanes are queries: m grows when a score exceeds it by max_slack (or it was -inf), s becomes
  /// exp(s - m), alpha = exp(m_old - m), sum + sum_lo = alpha (sum + sum_lo) + sum_r s[r]. A lane whose scores are all
  /// -inf keeps m and sum bit for bit and gets alpha = 1.
  void (*softmax)(float* s, int count, float* m, float* sum, float* sum_lo, float* alpha, int lane_begin, int lane_end);

  /// Backward, lanes are queries: s becomes P = exp(s - lse[lane]) norm[lane]; lse = -inf gives 0.
  void (*probabilities_lanes)(float* s, int count, const float* lse, const float* norm, int lane_begin, int lane_end);
  /// The same, rows are queries: lse[r], norm[r].
  void (*probabilities_rows)(float* s, int count, const float* lse, const float* norm, int lane_begin, int lane_end);
  /// ds[r][lane] = p (keep dp - delta) where p != 0, else 0; then p becomes p keep. dp holds dP on entry and ds on
  /// return. keep null: ones. delta[lane].
  void (*score_gradients_lanes)(float* p, float* dp, const float* keep, const float* delta, int count, int lane_begin,
                                int lane_end);
  /// The same with delta[r].
  void (*score_gradients_rows)(float* p, float* dp, const float* keep, const float* delta, int count, int lane_begin,
                               int lane_end);
  /// sum_p[lane] += sum_r p, sum_pd[lane] += sum_r p keep dp where p != 0. keep null: ones.
  void (*row_sums)(const float* p, const float* dp, const float* keep, int count, double* sum_p, double* sum_pd,
                   int lane_begin, int lane_end);

  /// y = exp(x): below 1 ulp (1.25 without fused multiply-add), exp(0) = 1, exp(-inf) = 0, exp(+inf) = inf, NaN kept,
  /// subnormals kept.
  void (*exp)(const float* x, float* y, std::int64_t n);
  /// For z >= 0: bias = log sigma(z), slope = 1 - sigma(z).
  void (*soft_edge)(const float* z, float* bias, float* slope, std::int64_t n);
  /// s[n] *= keep[n].
  void (*multiply)(float* s, const float* keep, std::int64_t n);

  // Conversions of contiguous rows; y may not overlap x. Narrowing rounds to nearest even and equals dtype.hpp bit for
  // bit. `scaled` multiplies in double and rounds once.
  void (*widen_bf16)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*widen_f16)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*narrow_bf16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*narrow_f16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*scaled)(const float* x, double scale, float* y, std::int64_t n);
  /// y = (hi + lo) / divisor.
  void (*finish)(const float* hi, const float* lo, float divisor, float* y, std::int64_t n);
};

/// Filled in kernels.cpp; the x86 tables exist on x86-64 only.
extern const Kernels kernels_scalar, kernels_avx2, kernels_avx512;

/// The tables that this machine can run, best first; never empty.
struct KernelChoice {
  const char* key;  // the value of DSALT_CPU_ISA
  const Kernels* table;
};
int available_kernels(KernelChoice (&choices)[3]);

/// The best table, or the one named by `isa` ("scalar", "avx2", "avx512"); null or "" means the best.
/// InvalidArgument names what this machine can run.
const Kernels& select_kernels(const char* isa);

}  // namespace dsalt::internal
