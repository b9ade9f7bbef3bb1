// peak.hpp for vdpbf16ps: each float32 lane adds two products of bfloat16 numbers. Compiled for AVX-512 BF16.
#include <immintrin.h>

#include "peak_kernels.hpp"

namespace dsalt::internal {
namespace {

constexpr int chains = 24, unroll = 8;

float run_bf16(std::int64_t rounds, float factor, float term) {
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(factor), _mm512_set1_ps(term));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(term), _mm512_set1_ps(-factor));
  __m512 sum[chains];
#pragma GCC unroll 32
  for (int n = 0; n < chains; ++n) sum[n] = _mm512_set1_ps(static_cast<float>(n));
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (int step = 0; step < unroll; ++step)
#pragma GCC unroll 32
      for (int n = 0; n < chains; ++n) sum[n] = _mm512_dpbf16_ps(sum[n], a, b);
  }
  __m512 total = sum[0];
#pragma GCC unroll 32
  for (int n = 1; n < chains; ++n) total += sum[n];
  float lanes[16], result = 0;
  _mm512_storeu_ps(lanes, total);
  for (const float lane : lanes) result += lane;
  return result;
}

}  // namespace

const PeakKernel peak_avx512bf16 = {run_bf16, 16 * 4.0 * chains* unroll};

}  // namespace dsalt::internal
