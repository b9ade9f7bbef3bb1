// The row kernels of every instruction set that this machine runs: accuracy against double, and elements whose bits do
// not depend on their place in a row.
#include <bit>

#include "kernels.hpp"
#include "operations_support.hpp"
#include "row_kernels.hpp"

namespace dsalt::cpu_test {
namespace {

using internal::RowKernels;

std::vector<const RowKernels*> tables() {
  internal::KernelChoice choices[internal::most_kernels];
  std::vector<const RowKernels*> result;
  const int count = internal::available_kernels(choices);
  for (int n = 0; n < count; ++n) result.push_back(&internal::row_kernels_for(*choices[n].table));
  return result;
}

using Floats = std::vector<float>;
Floats numbers(std::int64_t count, std::uint32_t seed, double size = 1) {
  const Values drawn = values(random({count}, seed, DType::f32, size));
  return Floats(drawn.begin(), drawn.end());
}

/// Distance in units in the last place of the float32 nearest to `need`.
double ulps(float got, double need) {
  const float nearest = static_cast<float>(need);
  if (std::isinf(nearest) || nearest == 0) return got == nearest ? 0 : 1e30;
  const double ulp = std::max(std::ldexp(1.0, std::ilogb(nearest) - 23), 0x1p-149);
  return std::fabs(static_cast<double>(got) - need) / ulp;
}

/// Calls `kernel(offset, n)`, which returns the outputs of the elements [offset, offset + n) of one fixed row: every
/// element must have the bits that it has alone, at every length and offset.
template <class Kernel>
void check_places(const std::string& what, Kernel kernel) {
  constexpr std::int64_t length = 70;
  std::vector<std::vector<float>> alone;
  for (std::int64_t i = 0; i < length; ++i) alone.push_back(kernel(i, 1));
  for (const std::int64_t offset : {0, 1, 3, 8})
    for (std::int64_t n = 0; n + offset <= length; ++n) {
      const std::vector<float> row = kernel(offset, n);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(row.size()); ++i) {
        const std::vector<float>& need = alone[offset + (n ? i % n : 0)];
        const float bits = need[n ? i / n : 0];
        BOOST_REQUIRE_MESSAGE(std::memcmp(&row[i], &bits, sizeof bits) == 0,
                              what << ": element " << i << " of " << n << " from " << offset);
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(row_kernels)

BOOST_AUTO_TEST_CASE(an_element_does_not_depend_on_its_place) {
  const Floats a = numbers(200, 1, 3), b = numbers(200, 2, 3), c = numbers(200, 3, 3), d = numbers(200, 4, 3);
  Floats positive = numbers(200, 5, 3);
  for (float& x : positive) x = std::fabs(x);
  for (const RowKernels* table : tables()) {
    const auto check = [&](const char* what, auto kernel) {
      check_places(std::string(table->name) + " " + what, kernel);
    };
    check("scaled", [&](std::int64_t at, std::int64_t n) {
      Floats y(n);
      table->scaled(a.data() + at, 1.7, y.data(), n);
      return y;
    });
    check("mix", [&](std::int64_t at, std::int64_t n) {
      Floats y(n);
      table->mix(a.data() + at, b.data() + at, .3, .7, 1.1, y.data(), n);
      return y;
    });
    check("rmsnorm", [&](std::int64_t at, std::int64_t n) {
      Floats y(n);
      table->rmsnorm(a.data() + at, b.data() + at, .7, y.data(), n);
      return y;
    });
    for (const bool dx : {true, false})
      check("rmsnorm_gradients", [&](std::int64_t at, std::int64_t n) {
        Floats y(n);
        std::vector<double> sum(n, .1);
        table->rmsnorm_gradients(a.data() + at, b.data() + at, c.data() + at, .7, .2, dx ? y.data() : nullptr,
                                 sum.data(), n);
        Floats narrowed(sum.begin(), sum.end());
        y.insert(y.end(), narrowed.begin(), narrowed.end());
        return y;
      });
    check("swiglu", [&](std::int64_t at, std::int64_t n) {
      Floats y(n);
      table->swiglu(a.data() + at, b.data() + at, y.data(), n);
      return y;
    });
    check("swiglu_gradients", [&](std::int64_t at, std::int64_t n) {
      Floats y(2 * n);
      table->swiglu_gradients(a.data() + at, b.data() + at, c.data() + at, y.data(), y.data() + n, n);
      return y;
    });
    const std::vector<double> frequencies(a.begin(), a.end());
    check("angles", [&](std::int64_t at, std::int64_t n) {
      Floats y(2 * n);
      table->angles(1e6, frequencies.data() + at, 1.5, -1, y.data(), y.data() + n, n);  // some above 2^20
      return y;
    });
    check("rotate", [&](std::int64_t at, std::int64_t n) {
      Floats x(2 * n), y(2 * n);
      std::copy_n(a.data() + at, n, x.data());
      std::copy_n(b.data() + at, n, x.data() + n);
      table->rotate(1, n, x.data(), 2 * n, c.data() + at, d.data() + at, n, y.data(), 2 * n);
      return y;
    });
    check("adamw", [&](std::int64_t at, std::int64_t n) {
      Floats y(3 * n);
      const internal::AdamWStep step{
          .beta1 = .9, .beta2 = .95, .inverse_correction2 = 1.3, .eps = 1e-8, .decay = .99, .rate = .01};
      table->adamw(step, a.data() + at, b.data() + at, c.data() + at, positive.data() + at, y.data(), y.data() + n,
                   y.data() + 2 * n, n);
      return y;
    });
    check("scores", [&](std::int64_t at, std::int64_t n) {
      std::vector<double> s(n);
      table->scores({.3, .1, .7, -.2}, a.data() + at, b.data() + at, s.data(), n);
      return Floats(s.begin(), s.end());
    });
  }
}

BOOST_AUTO_TEST_CASE(sums_of_every_length) {
  const Floats x = numbers(150, 1), dy = numbers(150, 2), gamma = numbers(150, 3);
  for (const RowKernels* table : tables())
    for (std::int64_t n = 0; n <= 150; ++n) {
      double squares = 0, products = 0, need_squares = 0, need_products = 0;
      table->rmsnorm_sums(x.data(), dy.data(), gamma.data(), n, &squares, &products);
      for (std::int64_t i = 0; i < n; ++i) {
        need_squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        need_products += static_cast<double>(dy[i]) * static_cast<double>(gamma[i]) * static_cast<double>(x[i]);
      }
      BOOST_REQUIRE(std::fabs(squares - need_squares) <= 1e-14 * need_squares);
      BOOST_REQUIRE(std::fabs(products - need_products) <= 1e-14 * static_cast<double>(n));
      BOOST_REQUIRE_EQUAL(table->squares(x.data(), n), squares);
    }
}

BOOST_AUTO_TEST_CASE(dots) {
  for (const RowKernels* table : tables())
    for (const std::int64_t m : {1, 2, 4, 7})
      for (const std::int64_t n : {1, 3, 4, 9})
        for (const std::int64_t k : {1, 3, 8, 37}) {
          const Floats a = numbers(m * (k + 1), 1), b_floats = numbers(n * k, 2);
          const std::vector<double> b(b_floats.begin(), b_floats.end());
          std::vector<const float*> rows;
          for (std::int64_t i = 0; i < m; ++i) rows.push_back(a.data() + i * (k + 1));
          std::vector<double> c(m * n, .5);
          table->dots(m, n, k, rows.data(), b.data(), c.data());
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              double need = .5, alone = .5;
              for (std::int64_t t = 0; t < k; ++t) need += static_cast<double>(rows[i][t]) * b[j * k + t];
              BOOST_REQUIRE(std::fabs(c[i * n + j] - need) <= 1e-14 * static_cast<double>(k));
              table->dots(1, 1, k, &rows[i], b.data() + j * k, &alone);
              BOOST_REQUIRE_EQUAL(c[i * n + j], alone);
            }
        }
}

BOOST_AUTO_TEST_CASE(silu_over_its_range) {
  Floats gate;
  for (double z = -120; z < 120; z += 1.0 / 64) gate.push_back(static_cast<float>(z));
  for (const float z : {0.0f, 1e-30f, -1e-30f, 0x1p-149f, -600.0f, -1e5f, 3e38f, -3e38f}) gate.push_back(z);
  const auto n = static_cast<std::int64_t>(gate.size());
  const Floats ones(gate.size(), 1), huge(gate.size(), 3e38f);
  for (const RowKernels* table : tables()) {
    Floats y(gate.size()), dgate(gate.size()), dup(gate.size());
    table->swiglu(gate.data(), ones.data(), y.data(), n);
    table->swiglu_gradients(gate.data(), ones.data(), ones.data(), dgate.data(), dup.data(), n);
    double worst = 0;
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const auto z = static_cast<double>(gate[i]);
      const double sigma = z >= 0 ? 1 / (1 + std::exp(-z)) : std::exp(z) / (1 + std::exp(z));
      const double rest = z >= 0 ? std::exp(-z) / (1 + std::exp(-z)) : 1 / (1 + std::exp(z));
      worst = std::max(worst, ulps(y[i], z * sigma));
      BOOST_REQUIRE_EQUAL(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(dup[i]));
      const double terms = sigma * (1 + std::fabs(z) * rest);
      BOOST_REQUIRE(std::fabs(static_cast<double>(dgate[i]) - sigma * (1 + z * rest)) <=
                    3 * 0x1p-23 * terms + 0x1p-149);
    }
    BOOST_TEST_MESSAGE(table->name << ": silu within " << worst << " ulp");
    BOOST_TEST(worst <= 2);
    table->swiglu(gate.data(), huge.data(), y.data(), n);  // a tiny sigma meets a huge factor
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const auto z = static_cast<double>(gate[i]);
      const double sigma = z >= 0 ? 1 / (1 + std::exp(-z)) : std::exp(z) / (1 + std::exp(z));
      BOOST_REQUIRE(ulps(y[i], z * sigma * static_cast<double>(huge[i])) <= 2);
    }
    const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
    table->swiglu(&nan, &one, y.data(), 1);
    BOOST_TEST(std::isnan(y[0]));
  }
}

BOOST_AUTO_TEST_CASE(angles_of_every_size) {
  std::vector<double> theta{0, 1e-300, 0x1p20, 0x1.fffffffffffffp19, 0x1.0000000000001p20, 1e9, -1e15, 0x1p53, 1e300};
  for (int k = 0; k < 4000; ++k) theta.push_back(k * 1.57079632679489662);  // next to the zeros
  for (int k = 0; k < 4000; ++k) theta.push_back(std::pow(1.01, k % 1400) * (k % 2 ? -1 : 1) * 1e-3);
  const auto n = static_cast<std::int64_t>(theta.size());
  for (const RowKernels* table : tables()) {
    Floats cos(theta.size()), sin(theta.size());
    table->angles(1, theta.data(), 1, 1, cos.data(), sin.data(), n);
    for (std::size_t i = 0; i < theta.size(); ++i) {
      // Rounded once from double, whose own error may move a tie.
      BOOST_REQUIRE_MESSAGE(ulps(sin[i], std::sin(theta[i])) <= .5001, table->name << " sin " << theta[i]);
      BOOST_REQUIRE_MESSAGE(ulps(cos[i], std::cos(theta[i])) <= .5001, table->name << " cos " << theta[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_first_score_above_a_threshold) {
  constexpr std::int64_t block = internal::energy_block;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const internal::ScoreRule rule{.3, .1, .7, -.2};
  for (const std::int64_t length : {1, 15, 16, 17, 100, 333}) {
    Floats v = numbers(length, 1), x = numbers(length, 2);
    for (std::int64_t i = 7; i < length; i += 41) v[i] = nan;
    if (length > 32) std::fill_n(v.begin() + 16, 16, nan);
    Floats v_bounds((length + block - 1) / block, -std::numeric_limits<float>::infinity()), x_bounds = v_bounds;
    for (std::int64_t i = 0; i < length; ++i) {
      if (v[i] > v_bounds[i / block]) v_bounds[i / block] = v[i];
      if (x[i] > x_bounds[i / block]) x_bounds[i / block] = x[i];
    }
    for (const RowKernels* table : tables()) {
      Floats bounds(v_bounds.size());
      table->block_bounds(v.data(), length, bounds.data());
      BOOST_TEST(bounds == v_bounds);
      std::vector<double> s(length);
      table->scores(rule, v.data(), x.data(), s.data(), length);
      // A NaN is found where its block may hold a score above the threshold, and may be passed over elsewhere.
      for (const double threshold : {-1e9, 0.0, .5, s[0], 1e9})
        for (std::int64_t begin = 0; begin <= length; begin += 5)
          for (const std::int64_t end : {begin, (begin + length) / 2, length}) {
            std::int64_t at = begin, need = begin;
            const auto next = [&](std::int64_t from) {
              return table->first_above(rule, v.data(), x.data(), v_bounds.data(), x_bounds.data(), threshold, from,
                                        end);
            };
            at = next(begin);
            while (at < end && std::isnan(s[at])) at = next(at + 1);
            while (need < end && !(s[need] > threshold)) ++need;
            BOOST_REQUIRE_MESSAGE(at == need, table->name << " " << length << " from " << begin << " to " << end << ": "
                                                          << at << ", need " << need);
          }
    }
  }
}

BOOST_AUTO_TEST_CASE(widening_is_exact) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t n = 0; n < patterns.size(); ++n) patterns[n] = static_cast<std::uint16_t>(n);
  for (const RowKernels* table : tables()) {
    Floats wide(patterns.size());
    table->widen_bf16(patterns.data() + 3, wide.data() + 3, 65536 - 3);  // neither aligned nor whole vectors
    for (std::size_t n = 3; n < patterns.size(); ++n)
      BOOST_REQUIRE_EQUAL(std::bit_cast<std::uint32_t>(wide[n]), static_cast<std::uint32_t>(n) << 16);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
