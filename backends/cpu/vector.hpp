// One float32 vector of DSALT_LANES lanes and the elementary functions on it, for kernels.cpp alone.
//
// Everything is in an unnamed namespace and nothing from the standard library is instantiated: the file is compiled
// once per instruction set, and no symbol may be shared between those objects.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dsalt::internal {
namespace {

constexpr int lanes = DSALT_LANES;
using F = float __attribute__((vector_size(4 * DSALT_LANES)));
using I = std::int32_t __attribute__((vector_size(4 * DSALT_LANES)));
using U = std::uint32_t __attribute__((vector_size(4 * DSALT_LANES)));
using H = std::uint16_t __attribute__((vector_size(2 * DSALT_LANES)));
using D = double __attribute__((vector_size(8 * DSALT_LANES)));
// The same with the alignment of an element, for memory of the caller. (Typedefs: clang ignores `aligned` in an alias.)
typedef float FMemory __attribute__((vector_size(4 * DSALT_LANES), aligned(4), may_alias));
typedef std::int32_t IMemory __attribute__((vector_size(4 * DSALT_LANES), aligned(4), may_alias));
typedef std::uint16_t HMemory __attribute__((vector_size(2 * DSALT_LANES), aligned(2), may_alias));

inline F load(const float* p) { return (F) * reinterpret_cast<const FMemory*>(p); }
inline I load(const std::int32_t* p) { return (I) * reinterpret_cast<const IMemory*>(p); }
inline void store(float* p, F x) { *reinterpret_cast<FMemory*>(p) = (FMemory)x; }
inline F broadcast(float x) { return x - F{}; }  // x - 0 keeps every x, -0 included
inline I broadcast(std::int32_t x) { return x - I{}; }

/// a * b + c: one rounding where the instruction set has it, two on the baseline.
inline F multiply_add(F a, F b, F c) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__) && DSALT_LANES == 8
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

/// Whether a comparison holds in some lane.
inline bool any_set(I mask) {
  bool any = false;
#if defined(__AVX512F__) && DSALT_LANES == 16
  any = _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__) && DSALT_LANES == 8
  any = _mm256_movemask_ps((__m256)mask) != 0;
#else
  for (int n = 0; n < lanes; ++n) any = any || mask[n] != 0;
#endif
  return any;
}

inline bool any_not_finite(F x) { return any_set(x - x != F{}); }

/// The larger operand; x when either is NaN.
inline F larger(F x, F than) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  return (F)_mm512_maskz_max_ps(0xffff, (__m512)than, (__m512)x);  // the second operand where one is NaN
#elif defined(__AVX2__) && DSALT_LANES == 8
  return (F)_mm256_max_ps((__m256)than, (__m256)x);
#else
  return than > x ? than : x;
#endif
}

constexpr float infinity = __builtin_inff();

/// p 2^n for a whole n and p < 2, rounded once. Where n < -150 that is 0, and p may be anything. No such product is
/// computed: processors need long, Intel's hundreds of cycles, for a vector of which one result is that small.
inline F times_power(F p, F n) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  const __mmask16 counts = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(-150.0f), _CMP_NLT_UQ);  // or NaN
  return (F)_mm512_maskz_scalef_ps(counts, (__m512)p, (__m512)n);
#else
  // Two exact factors, so that a subnormal result is rounded once. A NaN n converts to something: p is NaN then.
  const I counts = ~(n < broadcast(-150.0f));
  const I whole = __builtin_convertvector(n, I) & counts, half = whole >> 1;
  const F low = (F)((half + 127) << 23), high = (F)((whole - half + 127) << 23);
  return (F)(counts & (I)(p * low * high));
#endif
}

/// x becomes exp(x), for x <= 100: exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2; exp(r) by a polynomial
/// whose relative error is 3.1e-9 (minimax, constrained to 1 + r + ...). exp(0) = 1, exp(-inf) = 0, NaN kept. Several
/// vectors step by step: one alone is a chain of 15 operations, and the processor does not look far enough ahead for
/// the next.
template <int N>
inline void exponentials_below(F (&x)[N]) {
  F n[N], p[N];
  const auto each = [](auto&& step) {
#pragma GCC unroll 16
    for (int k = 0; k < N; ++k) step(k);
  };
  // Adding `magic` rounds to a whole number, ties to even. The first part of ln 2 has 15 bits: n times it is exact, as
  // long as the result is not 0 anyway (r and p become any numbers then, for x = -inf NaN).
  const F magic = broadcast(0x1.8p23f);
  each([&](int k) { n[k] = multiply_add(x[k], broadcast(0x1.715476p+0f), magic); });
  each([&](int k) { n[k] = n[k] - magic; });
  each([&](int k) { x[k] = multiply_add(n[k], broadcast(-0x1.62e4p-1f), x[k]); });
  each([&](int k) { x[k] = multiply_add(n[k], broadcast(-0x1.7f7d1cp-20f), x[k]); });
  each([&](int k) { p[k] = multiply_add(broadcast(0x1.6a2466p-10f), x[k], broadcast(0x1.1239e2p-7f)); });
  each([&](int k) { p[k] = multiply_add(p[k], x[k], broadcast(0x1.5558f2p-5f)); });
  each([&](int k) { p[k] = multiply_add(p[k], x[k], broadcast(0x1.555492p-3f)); });
  each([&](int k) { p[k] = multiply_add(p[k], x[k], broadcast(0x1.fffffcp-2f)); });
  each([&](int k) { p[k] = multiply_add(p[k], x[k], broadcast(1.0f)); });
  each([&](int k) { p[k] = multiply_add(p[k], x[k], broadcast(1.0f)); });
  each([&](int k) { x[k] = times_power(p[k], n[k]); });
}

inline F exponential_below(F x) {
  F one[1] = {x};
  exponentials_below(one);
  return one[0];
}

/// exp(x) for all x.
inline F exponential(F x) {
  return exponential_below(x > 100.0f ? broadcast(100.0f) : x);  // 100 is above the largest float; NaN stays
}

/// log(1 + x) for x in [0,1]: 2 atanh(s), s = x / (2 + x) <= 1/3; the series is cut below 2^-31 of the result.
inline F log_one_plus(F x) {
  const F s = x / (2.0f + x), s2 = s * s;
  F p = broadcast(1.0f / 17);
  p = multiply_add(p, s2, broadcast(1.0f / 15));
  p = multiply_add(p, s2, broadcast(1.0f / 13));
  p = multiply_add(p, s2, broadcast(1.0f / 11));
  p = multiply_add(p, s2, broadcast(1.0f / 9));
  p = multiply_add(p, s2, broadcast(1.0f / 7));
  p = multiply_add(p, s2, broadcast(1.0f / 5));
  p = multiply_add(p, s2, broadcast(1.0f / 3));
  return 2.0f * multiply_add(s * s2, p, s);
}

}  // namespace
}  // namespace dsalt::internal
