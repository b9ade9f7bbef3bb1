// Dropout factors of a tile by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), lanes over
// query rows, for kernels.cpp alone. The same numbers as core/internal/dropout.hpp, which defines them.
#pragma once

#include "kernels.hpp"
#include "vector.hpp"

namespace dsalt::internal {
namespace {

/// The halves of the 64-bit products a * m.
inline void multiply_halves(U a, std::uint32_t m, U& high, U& low) {
#if defined(__AVX512F__) && DSALT_LANES == 16
  const __m512i x = (__m512i)a, factor = _mm512_set1_epi64(m);
  const __m512i even = _mm512_mul_epu32(x, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), factor);
  low = (U)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  high = (U)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#elif defined(__AVX2__) && DSALT_LANES == 8
  const __m256i x = (__m256i)a, factor = _mm256_set1_epi64x(m);
  const __m256i even = _mm256_mul_epu32(x, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
  low = (U)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high = (U)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
  for (int n = 0; n < lanes; ++n) {
    const std::uint64_t product = std::uint64_t{a[n]} * m;
    low[n] = static_cast<std::uint32_t>(product);
    high[n] = static_cast<std::uint32_t>(product >> 32);
  }
#endif
}

inline void philox(U counter[4], std::uint64_t seed) {
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U high0, low0, high1, low1;
    multiply_halves(counter[0], 0xD2511F53u, high0, low0);
    multiply_halves(counter[2], 0xCD9E8D57u, high1, low1);
    counter[0] = high1 ^ counter[1] ^ key0;
    counter[1] = low1;
    counter[2] = high0 ^ counter[3] ^ key1;
    counter[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

inline void words_of(const DropoutRows& rows, std::uint32_t block, int lane, U words[4]) {
  words[0] = U{} + block;
  words[1] = (U)load(rows.query + lane);
  words[2] = (U)load(rows.head + lane);
  words[3] = U{} + rows.offset;
  philox(words, rows.seed);
}

inline F factors(U words, const DropoutRows& rows) { return words >= rows.threshold ? broadcast(rows.kept) : F{}; }

void dropout_keys(const DropoutRows& rows, std::int64_t key, int count, int lane_begin, int lane_end, float* keep) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes)
    for (int j = 0; j < count; j += 4) {
      U words[4];
      words_of(rows, static_cast<std::uint32_t>((key + j) >> 2), lane, words);
      for (int n = 0; n < 4 && j + n < count; ++n) store(keep + (j + n) * tile + lane, factors(words[n], rows));
    }
}

void dropout_landmarks(const DropoutRows& rows, const std::int32_t* index, int count, int lane_begin, int lane_end,
                       float* keep) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes)
    for (int j = 0; j < count; ++j) {
      U words[4];
      words_of(rows, static_cast<std::uint32_t>(index[j] >> 2), lane, words);
      store(keep + j * tile + lane, factors(words[index[j] & 3], rows));
    }
}

}  // namespace
}  // namespace dsalt::internal
