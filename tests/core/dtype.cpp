// Conversions between floating types against a slow one written from the formats alone: decode every 16-bit pattern to
// its exact value, and round by comparing with exact midpoints.
#include "dsalt/dtype.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using dsalt::bfloat16;
using dsalt::float16;

struct Format {
  int exponent_bits, mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint16_t infinity() const { return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits); }

  /// Exact value of a finite positive pattern; the pattern of infinity stands for the power of two it would be.
  double decode(std::uint16_t bits) const {
    const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias() - mantissa_bits);
  }

  /// Nearest pattern, ties to the even one; values from the last midpoint on are infinity.
  std::uint16_t encode(double value) const {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    std::uint16_t low = 0, high = infinity();  // decode(low) <= magnitude < decode(high), unless beyond the end
    if (magnitude >= decode(high)) return sign | high;
    while (high - low > 1) {
      const auto middle = static_cast<std::uint16_t>((low + high) / 2);
      (decode(middle) <= magnitude ? low : high) = middle;
    }
    const double midpoint = (decode(low) + decode(high)) / 2;  // exact: a few bits more than the format has
    const bool up = magnitude > midpoint || (magnitude == midpoint && low % 2 == 1);
    return sign | (up ? high : low);
  }
};

constexpr Format brain{8, 7}, half{5, 10};

std::uint16_t bits_of(bfloat16 value) { return value.bits; }
std::uint16_t bits_of(float16 value) { return value.bits; }

struct Brain {
  static constexpr Format format = brain;
  template <class T>
  static std::uint16_t round(T value) {
    return bits_of(dsalt::to_bfloat16(value));
  }
  static float widen(std::uint16_t bits) { return dsalt::to_float(bfloat16{bits}); }
};
struct Half {
  static constexpr Format format = half;
  template <class T>
  static std::uint16_t round(T value) {
    return bits_of(dsalt::to_float16(value));
  }
  static float widen(std::uint16_t bits) { return dsalt::to_float(float16{bits}); }
};

template <class Type, class T>
void check_one(T value) {
  const std::uint16_t got = Type::round(value), expected = Type::format.encode(static_cast<double>(value));
  if (got != expected)
    BOOST_ERROR(std::hexfloat << static_cast<double>(value) << " of " << sizeof(T) << " bytes became pattern " << got
                              << ", the nearest is " << expected);
}

template <class Type>
void check_both_widths_and_signs(double value) {
  for (const double x : {value, -value}) {
    check_one<Type>(x);
    check_one<Type>(static_cast<float>(x));
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dtype)

using Types = std::tuple<Brain, Half>;

BOOST_AUTO_TEST_CASE_TEMPLATE(every_pattern_widens_exactly_and_comes_back, Type, Types) {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto magnitude = static_cast<std::uint16_t>(bits & 0x7fff);
    const float wide = Type::widen(bits);
    BOOST_REQUIRE_EQUAL(std::signbit(wide), (bits & 0x8000) != 0);
    if (magnitude > Type::format.infinity()) {
      BOOST_REQUIRE(std::isnan(wide));
      for (const std::uint16_t back : {Type::round(wide), Type::round(static_cast<double>(wide))}) {
        BOOST_REQUIRE((back & 0x7fff) > Type::format.infinity());       // still NaN,
        BOOST_REQUIRE(back & (1 << (Type::format.mantissa_bits - 1)));  // quiet,
        BOOST_REQUIRE_EQUAL(back & 0x8000, bits & 0x8000);              // of the same sign
      }
      continue;
    }
    if (magnitude == Type::format.infinity())
      BOOST_REQUIRE(std::isinf(wide));
    else
      BOOST_REQUIRE_EQUAL(std::fabs(static_cast<double>(wide)), Type::format.decode(magnitude));
    BOOST_REQUIRE_EQUAL(Type::round(wide), bits);
    BOOST_REQUIRE_EQUAL(Type::round(static_cast<double>(wide)), bits);
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(both_sides_of_every_midpoint, Type, Types) {
  // rounding is monotone, so the values beside each midpoint decide for all
  for (std::uint16_t low = 0; low < Type::format.infinity(); ++low) {
    const double a = Type::format.decode(low), b = Type::format.decode(static_cast<std::uint16_t>(low + 1));
    const double middle = (a + b) / 2;
    const auto narrow = static_cast<float>(middle);
    for (const double x :
         {a + (b - a) / 4, middle, a + (b - a) * 3 / 4, std::nextafter(middle, 0), std::nextafter(middle, HUGE_VAL),
          static_cast<double>(std::nextafterf(narrow, 0)), static_cast<double>(std::nextafterf(narrow, HUGE_VALF)),
          std::nextafter(a, 0), std::nextafter(a, HUGE_VAL), std::nextafter(b, 0), std::nextafter(b, HUGE_VAL)})
      check_both_widths_and_signs<Type>(x);
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(random_bit_patterns, Type, Types) {
  std::mt19937_64 generator(1);
  for (int n = 0; n < 300000; ++n) {
    const std::uint64_t bits = generator();
    const auto wide = std::bit_cast<double>(bits);
    const auto narrow = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const double nearby = std::ldexp(1 + static_cast<double>(bits >> 12) * 0x1p-52, static_cast<int>(bits % 44) - 27);
    if (!std::isnan(wide)) check_one<Type>(wide);
    if (!std::isnan(narrow)) check_one<Type>(narrow);
    check_both_widths_and_signs<Type>(nearby);  // in the range of float16
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(ends_of_the_range, Type, Types) {
  for (const double x : {0.0,
                         5e-324,
                         1e-310,
                         1e-300,
                         1e-46,
                         1e-45,
                         1e-40,
                         0x1p-126,
                         0x1p-24,
                         0x1p-25,
                         0x1.000001p-25,
                         65504.0,
                         65519.0,
                         65519.999,
                         65520.0,
                         65536.0,
                         3.3895e38,
                         3.396e38,
                         3.4028234663852886e38,
                         3.5e38,
                         1e300,
                         std::numeric_limits<double>::max(),
                         std::numeric_limits<double>::infinity()})
    check_both_widths_and_signs<Type>(x);
}

BOOST_AUTO_TEST_CASE(named_values) {
  BOOST_TEST(dsalt::to_float16(65504.0f).bits == 0x7bff);
  BOOST_TEST(dsalt::to_float16(0x1p-14f).bits == 0x0400);
  BOOST_TEST(dsalt::to_float16(0x1p-24f).bits == 0x0001);
  BOOST_TEST(dsalt::to_bfloat16(1.0f).bits == 0x3f80);
  BOOST_TEST(dsalt::to_bfloat16(1.00390625f).bits == 0x3f80);  // a tie goes to the even pattern
  BOOST_TEST(dsalt::to_bfloat16(1.01171875f).bits == 0x3f82);
  BOOST_TEST(dsalt::to_bfloat16(0x1.010000000001p0).bits == 0x3f81);  // a double just above that tie: one rounding
  BOOST_TEST(dsalt::to_float16(0x1.0020000000001p0).bits == 0x3c01);
}

BOOST_AUTO_TEST_CASE(names_sizes_and_statistics) {
  using dsalt::DType;
  BOOST_TEST(dsalt::name_of(DType::f64) == "float64");
  BOOST_TEST(dsalt::name_of(DType::f32) == "float32");
  BOOST_TEST(dsalt::name_of(DType::bf16) == "bfloat16");
  BOOST_TEST(dsalt::name_of(DType::f16) == "float16");
  BOOST_TEST(dsalt::name_of(DType::i32) == "int32");
  BOOST_TEST(dsalt::size_of(DType::f64) == 8u);
  BOOST_TEST(dsalt::size_of(DType::f32) == 4u);
  BOOST_TEST(dsalt::size_of(DType::bf16) == 2u);
  BOOST_TEST(dsalt::size_of(DType::f16) == 2u);
  BOOST_TEST(dsalt::size_of(DType::i32) == 4u);
  BOOST_TEST((dsalt::statistics_dtype(DType::f64) == DType::f64));
  for (const DType main : {DType::f32, DType::bf16, DType::f16})
    BOOST_TEST((dsalt::statistics_dtype(main) == DType::f32));
}

BOOST_AUTO_TEST_SUITE_END()
