// The loops behind peak.hpp: independent chains of dependent multiply-adds, enough of them to cover the latency of the
// longest one. Included once by each peak_<isa>.cpp, which is compiled for that instruction set; internal linkage and
// no standard library code, so that no instruction of a wider set can reach another translation unit.
#pragma once

#include <cstdint>

namespace dsalt::internal {

struct PeakKernel {
  float (*run)(std::int64_t rounds, float factor, float term);  // the result only keeps the loop from being removed
  double flop_per_round;
};

extern const PeakKernel peak_generic, peak_avx2, peak_avx512, peak_avx512bf16, peak_amxbf16;

namespace {

template <class T, int bytes>
struct PeakVector {
  typedef T Type __attribute__((vector_size(bytes)));
};

template <int bytes, int chains>
struct MultiplyAdd {
  using Vector = typename PeakVector<float, bytes>::Type;
  static constexpr int lanes = bytes / 4, unroll = 8;
  static constexpr double flop_per_round = 2.0 * lanes * chains * unroll;

  static float run(std::int64_t rounds, float factor, float term) {
    const Vector a = factor - Vector{}, b = term - Vector{};
    Vector sum[chains];
#pragma GCC unroll 32
    for (int n = 0; n < chains; ++n) sum[n] = a + static_cast<float>(n);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
      for (int step = 0; step < unroll; ++step)
#pragma GCC unroll 32
        for (int n = 0; n < chains; ++n) sum[n] = sum[n] * a + b;
    }
    Vector total = sum[0];
#pragma GCC unroll 32
    for (int n = 1; n < chains; ++n) total += sum[n];
    float result = 0;
    for (int lane = 0; lane < lanes; ++lane) result += total[lane];
    return result;
  }
};

}  // namespace
}  // namespace dsalt::internal
