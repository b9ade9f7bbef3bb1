// The kernels of the operations beside attention on contiguous float32 rows, one table per instruction set.
//
// Every element is computed by one fixed sequence of operations on its own operands, whatever its place in a vector and
// whatever `n` is; a sum over a row depends on the row alone. Products and sums are in double, each result is rounded
// once. Outputs may be inputs of the same call (element by element), but may not overlap them otherwise.
//
// No function here may throw or allocate. This header defines no inline functions: it is compiled with different
// instruction sets (see kernels.hpp).
#pragma once

#include <cstdint>

namespace dsalt::internal {

/// The scalars of one AdamW step, see adamw.cpp.
struct AdamWStep {
  double beta1, beta2, inverse_correction2, eps, decay, rate;
};

inline constexpr std::int64_t energy_block = 16;

/// s = per_v (v - mean_v) + per_x (x - mean_x): the score of a landmark candidate.
struct ScoreRule {
  double per_v, mean_v, per_x, mean_x;
};

struct RowKernels {
  const char* name;  // that of the Kernels of the same instruction set

  /// Exact; NaN patterns are kept.
  void (*widen_bf16)(const std::uint16_t* x, float* y, std::int64_t n);

  /// sum of x^2; that and the sum of dy gamma x.
  double (*squares)(const float* x, std::int64_t n);
  void (*rmsnorm_sums)(const float* x, const float* dy, const float* gamma, std::int64_t n, double* squares,
                       double* products);
  /// c[i][j] += sum over t < k of a[i][t] b[j][t] for i in [0,m), j in [0,n); b has row stride k and c row stride n.
  /// The additions that form an element depend on k alone.
  void (*dots)(std::int64_t m, std::int64_t n, std::int64_t k, const float* const* a, const double* b, double* c);
  /// y = x scale.
  void (*scaled)(const float* x, double scale, float* y, std::int64_t n);
  /// y = (wa a + wb b) scale.
  void (*mix)(const float* a, const float* b, double wa, double wb, double scale, float* y, std::int64_t n);

  /// y = x r gamma.
  void (*rmsnorm)(const float* x, const float* gamma, double r, float* y, std::int64_t n);
  /// dx = dy gamma r - x along, unless null;  sum += dy x r, unless null.
  void (*rmsnorm_gradients)(const float* x, const float* dy, const float* gamma, double r, double along, float* dx,
                            double* sum, std::int64_t n);

  /// y = silu(gate) up;  dgate = dy up silu'(gate), dup = dy silu(gate). sigma(gate) to float32's precision in double's
  /// range.
  void (*swiglu)(const float* gate, const float* up, float* y, std::int64_t n);
  void (*swiglu_gradients)(const float* gate, const float* up, const float* dy, float* dgate, float* dup,
                           std::int64_t n);

  /// cos and direction sin of position frequency[t] / scale, t in [0,n).
  void (*angles)(double position, const double* frequency, double scale, double direction, float* cos, float* sin,
                 std::int64_t n);
  /// y_t = x_t cos_t - x_{t+half} sin_t, y_{t+half} = x_{t+half} cos_t + x_t sin_t, in float32, for `rows` rows of
  /// 2 half elements; strides are those of rows.
  void (*rotate)(std::int64_t rows, std::int64_t half, const float* x, std::int64_t x_stride, const float* cos,
                 const float* sin, std::int64_t table_stride, float* y, std::int64_t y_stride);

  void (*adamw)(const AdamWStep& step, const float* param, const float* grad, const float* m, const float* v,
                float* new_param, float* new_m, float* new_v, std::int64_t n);

  /// s of each token.
  void (*scores)(const ScoreRule& rule, const float* v, const float* x, double* scores, std::int64_t n);
  /// bounds[b] = the largest number among x[16 b] to x[16 b + 15] (energy_block), -infinity where there is none.
  void (*block_bounds)(const float* x, std::int64_t n, float* bounds);
  /// The first token in [begin,end) whose score is above the threshold, or end. v_bounds and x_bounds hold the largest
  /// number of each energy_block tokens. A NaN may be returned too, where such a score may stand.
  std::int64_t (*first_above)(const ScoreRule& rule, const float* v, const float* x, const float* v_bounds,
                              const float* x_bounds, double threshold, std::int64_t begin, std::int64_t end);
};

/// Filled in row_kernels.cpp; the x86 tables exist on x86-64 only.
extern const RowKernels row_kernels_scalar, row_kernels_avx2, row_kernels_avx512, row_kernels_avx512bf16;

struct Kernels;
/// The table of the same instruction set.
const RowKernels& row_kernels_for(const Kernels& kernels);

}  // namespace dsalt::internal
