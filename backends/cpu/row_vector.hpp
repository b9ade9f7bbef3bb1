// Vectors of doubles made from float32 rows, for row_kernels.cpp alone: half a float32 vector widens to one of these.
// Everything is in an unnamed namespace, as in vector.hpp.
#pragma once

#include "vector.hpp"

namespace dsalt::internal {
namespace {

constexpr int half_lanes = DSALT_LANES / 2;
using Fh = float __attribute__((vector_size(2 * DSALT_LANES)));
using Dh = double __attribute__((vector_size(4 * DSALT_LANES)));
using Ih = std::int32_t __attribute__((vector_size(2 * DSALT_LANES)));
using Lh = std::int64_t __attribute__((vector_size(4 * DSALT_LANES)));
typedef float FhMemory __attribute__((vector_size(2 * DSALT_LANES), aligned(4), may_alias));
typedef double DhMemory __attribute__((vector_size(4 * DSALT_LANES), aligned(8), may_alias));

// (By hand where g++ 12 makes two conversions of one.)
inline Dh widen_half(Fh x) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (Dh)_mm512_maskz_cvtps_pd(0xff, (__m256)x);
#elif defined(__AVX2__) && DSALT_LANES == 8
  return (Dh)_mm256_cvtps_pd((__m128)x);
#else
  return __builtin_convertvector(x, Dh);
#endif
}
inline Fh narrow_half(Dh x) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (Fh)_mm512_maskz_cvtpd_ps(0xff, (__m512d)x);
#elif defined(__AVX2__) && DSALT_LANES == 8
  return (Fh)_mm256_cvtpd_ps((__m256d)x);
#else
  return __builtin_convertvector(x, Fh);
#endif
}
inline Dh load_half(const float* p) { return widen_half((Fh) * reinterpret_cast<const FhMemory*>(p)); }
inline Dh load_half(const double* p) { return (Dh) * reinterpret_cast<const DhMemory*>(p); }
inline void store_half(float* p, Dh x) { *reinterpret_cast<FhMemory*>(p) = (FhMemory)narrow_half(x); }
inline void store_half(double* p, Dh x) { *reinterpret_cast<DhMemory*>(p) = (DhMemory)x; }
inline Dh broadcast(double x) { return x - Dh{}; }

#if DSALT_LANES == 16
#define DSALT_LOW_HALF 0, 1, 2, 3, 4, 5, 6, 7
#define DSALT_HIGH_HALF 8, 9, 10, 11, 12, 13, 14, 15
#elif DSALT_LANES == 8
#define DSALT_LOW_HALF 0, 1, 2, 3
#define DSALT_HIGH_HALF 4, 5, 6, 7
#else
#define DSALT_LOW_HALF 0, 1
#define DSALT_HIGH_HALF 2, 3
#endif
inline Fh low_half(F x) { return __builtin_shufflevector(x, x, DSALT_LOW_HALF); }
inline Fh high_half(F x) { return __builtin_shufflevector(x, x, DSALT_HIGH_HALF); }
inline F join(Fh low, Fh high) { return __builtin_shufflevector(low, high, DSALT_LOW_HALF, DSALT_HIGH_HALF); }
#undef DSALT_LOW_HALF
#undef DSALT_HIGH_HALF

/// a * b + c: one rounding where the instruction set has it, two on the baseline.
inline Dh multiply_add(Dh a, Dh b, Dh c) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (Dh)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__) && DSALT_LANES == 8
  return (Dh)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

inline Dh square_root(Dh x) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (Dh)_mm512_maskz_sqrt_pd(0xff, (__m512d)x);
#elif defined(__AVX2__) && DSALT_LANES == 8
  return (Dh)_mm256_sqrt_pd((__m256d)x);
#else
  Dh root;
  for (int n = 0; n < half_lanes; ++n) root[n] = __builtin_sqrt(x[n]);
  return root;
#endif
}

/// x 2^n for whole n in [-1022, 1023] and x of normal size; n may be NaN where x is.
inline Dh times_power(Dh x, Fh n) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (Dh)_mm512_maskz_scalef_pd(0xff, (__m512d)x, (__m512d)widen_half(n));
#else
  const Lh whole = __builtin_convertvector(__builtin_convertvector(n, Ih), Lh);
  return x * (Dh)((whole + 1023) << 52);
#endif
}

/// Whether a comparison holds in every lane.
inline bool all_of(Lh holds) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return _mm512_movepi64_mask((__m512i)holds) == 0xff;
#elif defined(__AVX2__) && DSALT_LANES == 8
  return _mm256_movemask_pd((__m256d)holds) == 0xf;
#else
  return (holds[0] & holds[1]) != 0;
#endif
}

/// Lanes in a fixed tree: the upper half onto the lower one, again and again.
inline double lane_sum(Dh x) {
#if DSALT_LANES == 16
  x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
  x += __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#elif DSALT_LANES == 8
  x += __builtin_shufflevector(x, x, 2, 3, 0, 1);
  x += __builtin_shufflevector(x, x, 1, 0, 3, 2);
#else
  x += __builtin_shufflevector(x, x, 1, 0);
#endif
  return x[0];
}

}  // namespace
}  // namespace dsalt::internal
