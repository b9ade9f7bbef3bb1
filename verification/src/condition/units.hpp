// Unit roundoffs, and how sums of n terms grow them.
#pragma once

#include <cmath>
#include <cstdint>

#include "dsalt/dtype.hpp"

namespace dsalt::verification {

/// Half the spacing of the dtype's numbers around 1: the largest relative error of one rounding.
constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    case DType::i32: return 0;
  }
  return 0;
}

/// Spacing of the dtype's smallest numbers, where a rounding error is absolute and no longer relative.
constexpr double smallest_subnormal(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-1074;
    case DType::f32: return 0x1p-149;
    case DType::bf16: return 0x1p-133;
    case DType::f16: return 0x1p-24;
    case DType::i32: return 0;
  }
  return 0;
}

/// What a computation on main inputs of one dtype may legitimately round with.
struct Units {
  double in;         // intermediates that may be stored in the main dtype between two matrix products
  double acc;        // everything else: accumulators, exponentials, statistics
  double in_floor;   // the same two where they round to subnormals: absolute errors of a number of size <= 1
  double acc_floor;  // exponentials may be cut off at the smallest normal number of the accumulator

  static constexpr Units of(DType main) {
    const DType acc = statistics_dtype(main);
    return {unit_roundoff(main), unit_roundoff(acc), smallest_subnormal(main),
            acc == DType::f64 ? 0x1p-1022 : 0x1p-126};
  }
};

/// Growth of a sequential sum of n terms of one sign, in units of u_acc. Each addition rounds the partial sum S_k = k/n
/// S by a relative error of standard deviation 0.42 u (uniform in the last place, values spread evenly over a binade);
/// these add as squares: 0.42 u S sqrt(sum (k/n)^2) = 0.42 u S sqrt(n/3) = 0.245 sqrt(n) u S. Tiled and pairwise sums
/// stay below.
inline double growth(std::int64_t n) { return 0.25 * std::sqrt(static_cast<double>(n)); }

}  // namespace dsalt::verification
