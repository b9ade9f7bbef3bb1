// Products of blocks and the softmax of logits, the inner loops of cross_entropy, one table per instruction set.
//
// A panel is a block of `panel_width` columns with row stride panel_width. Element (i, lane) of a product is one chain
// of multiply-adds over t in order, whatever the other rows and lanes are: its bits do not depend on its place or on
// how many rows or lanes a call covers. The rules of kernels.hpp hold here too: no exceptions, no allocation, no inline
// functions in this header.
#pragma once

#include <cstdint>

namespace dsalt::internal {

inline constexpr std::int64_t panel_width = 64;
inline constexpr std::int64_t panel_lanes = 16;  // widths are multiples of this

struct PanelKernels {
  const char* name;  // how the product kernel is reported, e.g. "own AVX-512 kernel"

  /// C[i][lane] = (add ? C[i][lane] : 0) + sum over t < k of a[i a_row + t a_column] panel[t][lane], for i in
  /// [0,count), lane in [0,width); C has row stride c_stride.
  void (*product)(std::int64_t count, std::int64_t k, std::int64_t width, const float* a, std::int64_t a_row,
                  std::int64_t a_column, const float* panel, float* c, std::int64_t c_stride, bool add);

  /// panel[t][lane] = rows[lane row_stride + t], 0 for lanes in [count, panel_width); t in [0,k).
  void (*transpose)(const float* rows, std::int64_t row_stride, std::int64_t count, std::int64_t k, float* panel);

  /// Each lane is a row of logits, s[i][lane] its values: brings maximum, exponentials = sum exp(s - maximum) and,
  /// unless null, logits = sum s up to date. s is overwritten.
  void (*add_logits)(float* s, std::int64_t count, std::int64_t width, float* maximum, double* exponentials,
                     double* logits);
  /// s = exp(s - maximum) scale - shift with one maximum and scale per lane.
  void (*gradients_lanes)(float* s, std::int64_t count, std::int64_t width, const float* maximum, const float* scale,
                          float shift);
  /// The same with one maximum and scale per row.
  void (*gradients_rows)(float* s, std::int64_t count, std::int64_t width, const float* maximum, const float* scale,
                         float shift);

  /// total += part, part = 0.
  void (*flush)(float* part, double* total, std::int64_t n);
};

/// Filled in panel_kernels.cpp; the x86 tables exist on x86-64 only.
extern const PanelKernels panel_kernels_scalar, panel_kernels_avx2, panel_kernels_avx512, panel_kernels_avx512bf16;

struct Kernels;
/// The table of the same instruction set.
const PanelKernels& panel_kernels_for(const Kernels& kernels);

}  // namespace dsalt::internal
