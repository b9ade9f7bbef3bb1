// exp, the soft edge, conversions and the choice of a table, for every instruction set of this machine.
#include <boost/test/unit_test.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "dsalt/dtype.hpp"
#include "dsalt/errors.hpp"
#include "internal/admitted.hpp"
#include "kernels_support.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// |value - right| in units in the last place of right (of the smallest subnormal near 0).
double ulps(float value, double right) {
  const int exponent = std::max(std::ilogb(right), -126);
  return std::fabs(static_cast<double>(value) - right) / std::ldexp(1.0, exponent - 23);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_kernels_elementwise)

BOOST_AUTO_TEST_CASE(exp_over_its_range) {
  // Every 331st float of [-104, 88.7], both signs, subnormal and tiny arguments included.
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(104.0f); bits += 331) {
    const float value = std::bit_cast<float>(bits);
    x.push_back(-value);
    if (value < 88.7f) x.push_back(value);
  }
  std::vector<float> y(x.size());
  std::vector<double> right(x.size());
  for (std::size_t n = 0; n < x.size(); ++n) right[n] = std::exp(static_cast<double>(x[n]));
  for (const internal::Kernels* kernels : tables()) {
    kernels->exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    double worst = 0;
    float at = 0;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const double error = ulps(y[n], right[n]);
      if (!(error <= worst)) worst = error, at = x[n];
    }
    BOOST_TEST(worst < (kernels == &internal::kernels_scalar ? 1.25 : 1),
               kernels->name << ": exp(" << at << ") is off by " << worst << " ulp");
    BOOST_TEST_MESSAGE(kernels->name << ": exp within " << worst << " ulp");
  }
}

BOOST_AUTO_TEST_CASE(dot) {
  std::vector<float> x(133), y(133);
  for (std::size_t n = 0; n < x.size(); ++n) {
    x[n] = std::sin(static_cast<float>(n));
    y[n] = std::cos(static_cast<float>(3 * n));
  }
  for (const internal::Kernels* kernels : tables())
    for (const std::size_t count : {0u, 1u, 15u, 16u, 64u, 133u}) {
      double sum = 0;
      for (std::size_t n = 0; n < count; ++n) sum += static_cast<double>(x[n]) * static_cast<double>(y[n]);
      BOOST_TEST(std::fabs(kernels->dot(x.data(), y.data(), static_cast<std::int64_t>(count)) - sum) < 1e-13);
    }
}

BOOST_AUTO_TEST_CASE(exp_of_special_values) {
  for (const internal::Kernels* kernels : tables()) {
    const float x[] = {0.0f, -0.0f, -inf, inf, quiet_nan, -200.0f, 89.0f, 1e30f, -1e30f, -0x1p-140f};
    float y[10];
    kernels->exp(x, y, 10);
    BOOST_TEST(y[0] == 1);
    BOOST_TEST(y[1] == 1);
    BOOST_TEST(y[2] == 0);
    BOOST_TEST(y[3] == inf);
    BOOST_TEST(std::isnan(y[4]));
    BOOST_TEST(y[5] == 0);
    BOOST_TEST(y[6] == inf);
    BOOST_TEST(y[7] == inf);
    BOOST_TEST(y[8] == 0);
    BOOST_TEST(y[9] == 1);
    for (std::int64_t n = 1; n <= 10; ++n) {  // an element's bits do not depend on its place
      float again[10] = {};
      kernels->exp(x, again, n);
      for (std::int64_t k = 0; k < n; ++k)
        BOOST_TEST(std::bit_cast<std::uint32_t>(again[k]) == std::bit_cast<std::uint32_t>(y[k]));
    }
  }
}

BOOST_AUTO_TEST_CASE(soft_edge) {
  std::vector<float> z;
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(80.0f); bits += 4099)
    z.push_back(std::bit_cast<float>(bits));
  z.push_back(inf);
  std::vector<float> bias(z.size()), slope(z.size());
  for (const internal::Kernels* kernels : tables()) {
    kernels->soft_edge(z.data(), bias.data(), slope.data(), static_cast<std::int64_t>(z.size()));
    double worst = 0;
    for (std::size_t n = 0; n + 1 < z.size(); ++n) {
      const auto exact = static_cast<double>(z[n]);
      worst = std::max({worst, ulps(bias[n], internal::log_sigmoid(exact)), ulps(slope[n], internal::sigmoid(-exact))});
    }
    BOOST_TEST(worst < 4, kernels->name << ": off by " << worst << " ulp");
    BOOST_TEST(bias.back() == 0);
    BOOST_TEST(slope.back() == 0);
  }
}

BOOST_AUTO_TEST_CASE(widening_every_16_bit_value) {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t n = 0; n < bits.size(); ++n) bits[n] = static_cast<std::uint16_t>(n);
  std::vector<float> f16(bits.size()), bf16(bits.size());
  for (const internal::Kernels* kernels : tables()) {
    kernels->widen_f16(bits.data(), f16.data(), 65536);
    kernels->widen_bf16(bits.data(), bf16.data(), 65536);
    int wrong = 0;
    for (std::size_t n = 0; n < bits.size(); ++n) {
      wrong += std::bit_cast<std::uint32_t>(f16[n]) != std::bit_cast<std::uint32_t>(to_float(float16{bits[n]}));
      wrong += std::bit_cast<std::uint32_t>(bf16[n]) != std::bit_cast<std::uint32_t>(to_float(bfloat16{bits[n]}));
    }
    BOOST_TEST(wrong == 0, kernels->name);
  }
}

BOOST_AUTO_TEST_CASE(narrowing_rounds_as_dtype_does) {
  // Every 16-bit value, the halfway points above it and their neighbours, and a sweep over all float bits.
  std::vector<float> x;
  for (std::uint32_t n = 0; n < 65536; ++n) {
    for (const std::uint32_t offset : {0u, 0x7fffu, 0x8000u, 0x8001u})
      x.push_back(std::bit_cast<float>((n << 16) + offset));
    const std::uint32_t half = std::bit_cast<std::uint32_t>(to_float(float16{static_cast<std::uint16_t>(n)}));
    for (const std::uint32_t offset : {0u, 0xfffu, 0x1000u, 0x1001u}) x.push_back(std::bit_cast<float>(half + offset));
  }
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 4093)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  std::vector<std::uint16_t> f16(x.size()), bf16(x.size());
  for (const internal::Kernels* kernels : tables()) {
    kernels->narrow_f16(x.data(), f16.data(), static_cast<std::int64_t>(x.size()));
    kernels->narrow_bf16(x.data(), bf16.data(), static_cast<std::int64_t>(x.size()));
    int wrong = 0;
    for (std::size_t n = 0; n < x.size(); ++n)
      wrong += (f16[n] != to_float16(x[n]).bits) + (bf16[n] != to_bfloat16(x[n]).bits);
    BOOST_TEST(wrong == 0, kernels->name);
  }
}

BOOST_AUTO_TEST_CASE(scaling_rounds_once) {
  std::vector<float> x(37), y(37);
  for (std::size_t n = 0; n < x.size(); ++n)
    x[n] = std::ldexp(1.0f + static_cast<float>(n) / 37, static_cast<int>(n) * 7 - 140);
  for (const internal::Kernels* kernels : tables())
    for (const double scale : {1.0, -0.125, 1 / std::sqrt(40.0), 1e-30, 3e20}) {
      kernels->scaled(x.data(), scale, y.data(), 37);
      for (std::size_t n = 0; n < x.size(); ++n)
        BOOST_TEST(y[n] == static_cast<float>(static_cast<double>(x[n]) * scale));
    }
}

BOOST_AUTO_TEST_CASE(a_named_table_or_an_error) {
  BOOST_TEST(&internal::select_kernels(nullptr) == tables().front());
  BOOST_TEST(&internal::select_kernels("") == tables().front());
  BOOST_TEST(&internal::select_kernels("scalar") == &internal::kernels_scalar);
  for (const char* isa : {"avx513", "AVX2", "none"})
    BOOST_CHECK_EXCEPTION(internal::select_kernels(isa), InvalidArgument, [&](const InvalidArgument& error) {
      return std::string(error.what()).find(isa) != std::string::npos &&
             std::string(error.what()).find("scalar") != std::string::npos;
    });
}

BOOST_AUTO_TEST_SUITE_END()
