// Every float32 rounds to the nearest bfloat16 and float16: all 2^31 magnitudes in ascending order beside a pointer
// that moves over the exact midpoints.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "dsalt/dtype.hpp"

namespace {

double decode(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class Round>
void walk(int exponent_bits, int mantissa_bits, Round&& round) {
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  std::uint16_t expected = 0;
  double midpoint = decode(1, exponent_bits, mantissa_bits) / 2;  // between `expected` and the next pattern
  std::uint64_t wrong = 0;
  std::uint32_t first_wrong = 0;
  for (std::uint32_t bits = 0; bits <= 0x7f800000u; ++bits) {
    const auto value = static_cast<double>(std::bit_cast<float>(bits));
    while (expected < infinity && (value > midpoint || (value == midpoint && expected % 2 == 1))) {
      ++expected;
      midpoint = (decode(expected, exponent_bits, mantissa_bits) +
                  decode(static_cast<std::uint16_t>(expected + 1), exponent_bits, mantissa_bits)) /
                 2;
    }
    const std::uint16_t positive = round(std::bit_cast<float>(bits)),
                        negative = round(std::bit_cast<float>(bits | 0x80000000u));
    if (positive != expected || negative != (expected | 0x8000)) {
      if (wrong++ == 0) first_wrong = bits;
    }
  }
  BOOST_TEST(wrong == 0u, wrong << " of 2^31 magnitudes are wrong, the first has bits " << first_wrong);
  BOOST_TEST(expected == infinity);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dtype_exhaustive)

BOOST_AUTO_TEST_CASE(float32_to_bfloat16) {
  walk(8, 7, [](float value) { return dsalt::to_bfloat16(value).bits; });
}

BOOST_AUTO_TEST_CASE(float32_to_float16) {
  walk(5, 10, [](float value) { return dsalt::to_float16(value).bits; });
}

BOOST_AUTO_TEST_SUITE_END()
