// Element types and the exact conversions between them.
//
// All conversions round to nearest, ties to even, exactly once: a double goes to bfloat16 or float16 directly, never
// through a rounded float32. NaN stays NaN (quiet), overflow gives infinity, subnormals are kept.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dsalt {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i32 };

/// Bytes per element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return 8;
    case DType::f32: return 4;
    case DType::bf16: return 2;
    case DType::f16: return 2;
    case DType::i32: return 4;
  }
  return 0;
}

/// "float64", "float32", "bfloat16", "float16", "int32".
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::i32: return "int32";
  }
  return "unknown";
}

constexpr bool is_floating(DType dtype) { return dtype != DType::i32; }

/// The dtype of lse, windows, energies, scores, log-weights, losses and their gradients that belongs to main inputs of
/// type `main`: float64 for float64, float32 for everything else (docs/semantics.md, "Types").
constexpr DType statistics_dtype(DType main) { return main == DType::f64 ? DType::f64 : DType::f32; }

/// Storage-only 16-bit types: sign, exponent and mantissa bits as in memory.
struct bfloat16 {
  std::uint16_t bits = 0;
};
struct float16 {
  std::uint16_t bits = 0;
};

/// float32 whose last bit is sticky (round to odd): a second rounding to at most 22 mantissa bits is then exact.
inline float round_to_odd(double value) {
  float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) bits -= 1;  // towards zero
  return std::bit_cast<float>(bits | 1u);
}

inline float to_float(bfloat16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

inline bfloat16 to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline bfloat16 to_bfloat16(double value) { return to_bfloat16(round_to_odd(value)); }

inline float to_float(float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

inline float16 to_float16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 65520 and above
  if (magnitude < 0x38800000u) {                                                      // below 2^-14: subnormal
    const int shift = 126 - static_cast<int>(magnitude >> 23);                        // mantissa steps of 2^-24
    if (shift > 24) return {static_cast<std::uint16_t>(sign)};
    const std::uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t kept = full >> shift;
    const std::uint32_t rest = full & ((1u << shift) - 1u);
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    return {static_cast<std::uint16_t>(sign | (kept + up))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}
inline float16 to_float16(double value) { return to_float16(round_to_odd(value)); }

}  // namespace dsalt
