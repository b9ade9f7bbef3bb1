// exp(x) and sigma(x) in float32, branch-free so that loops over them vectorise on any instruction set.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dsalt::internal {

/// exp(x) = value * 2^exponent with `value` near 1, within about one unit in the last place: x = n log 2 + r,
/// |r| <= log(2) / 2, and the series of exp(r) to r^7 (truncated below 2^-27). x is clamped to [lowest, 89]; NaN stays
/// NaN.
struct SplitExp {
  float value;
  std::int32_t exponent;
};
inline SplitExp split_exp(float x, float lowest) {
  constexpr float to_integer = 0x1.8p23f;  // adding it rounds to an integer, which then lies in the low mantissa bits
  x = x < lowest ? lowest : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 0x1.715476p+0f + to_integer;
  const float n = shifted - to_integer;
  float r = x - n * 0x1.63p-1f;  // log 2 in two parts; the first product is exact
  r = r + n * 0x1.bd0106p-13f;
  float series = 0x1.a01a02p-13f;  // 1/7!
  series = series * r + 0x1.6c16c2p-10f;
  series = series * r + 0x1.111112p-7f;
  series = series * r + 0x1.555556p-5f;
  series = series * r + 0x1.555556p-3f;
  series = series * r + 0.5f;
  const std::uint32_t whole = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(to_integer);
  return {(series * r * r + r) + 1.0f, static_cast<std::int32_t>(whole)};
}

/// exp(x); inf above 89, 0 below the subnormals.
inline float exp_float(float x) {
  const SplitExp e = split_exp(x, -174.0f);  // far past the last subnormal at -104; both halves of 2^n stay normal
  const std::int32_t half = e.exponent >> 1, rest = e.exponent - half;
  const auto power = [](std::int32_t n) { return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23); };
  return e.value * power(half) * power(rest);
}

/// sigma(x) = 1 / (1 + exp(-x)) and its complement sigma(-x), neither of which cancels, at either end. They carry
/// float32's precision in double's range: a tiny sigma may still meet a huge factor. Below exp(-700) they stay there,
/// which no product with float32 numbers can bring back above 0.
struct Sigmoid {
  double value, complement;
};
inline Sigmoid sigmoid_pair(float x) {
  const SplitExp e = split_exp(-std::fabs(x), -700.0f);
  const double power =
      std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(e.exponent) + 1023) << 52);
  const double exponential = static_cast<double>(e.value) * power;
  const double larger = 1.0 / (1.0 + exponential), smaller = exponential * larger;
  const bool positive = x >= 0;
  return {positive ? larger : smaller, positive ? smaller : larger};
}

}  // namespace dsalt::internal
