// What the reference tests share: small tensors from written-out values, comparison that fails on NaN, and finite
// differences.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "dsalt/dsalt.hpp"
#include "internal/elements.hpp"

namespace dsalt::test {

using Values = std::vector<double>;
using Shape = std::vector<std::int64_t>;

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType floating_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

inline Backend& reference() {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  return *backend;
}

/// Values in row-major order; int32 values must be whole.
inline Tensor tensor(const Shape& shape, const Values& values, DType dtype = DType::f64) {
  Tensor result = Tensor::empty(shape, dtype);
  BOOST_REQUIRE_EQUAL(result.view().size(), static_cast<std::int64_t>(values.size()));
  for (std::size_t n = 0; n < values.size(); ++n) {
    const auto at = static_cast<std::int64_t>(n);
    if (dtype == DType::i32)
      *result.view().at<std::int32_t>(at) = static_cast<std::int32_t>(values[n]);
    else
      internal::store_double(result, at, values[n]);
  }
  return result;
}
inline Tensor indices(const Shape& shape, const Values& values) { return tensor(shape, values, DType::i32); }
inline Tensor scalar(double value) { return tensor({}, {value}); }

inline std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}
inline Tensor filled(const Shape& shape, double value, DType dtype = DType::f64) {
  return tensor(shape, Values(static_cast<std::size_t>(element_count(shape)), value), dtype);
}
/// Normal values; the same for the same seed.
inline Tensor random(const Shape& shape, unsigned seed, DType dtype = DType::f64, double deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, deviation);
  Values values(static_cast<std::size_t>(element_count(shape)));
  for (double& value : values) value = normal(generator);
  return tensor(shape, values, dtype);
}
inline Tensor like(const TensorView& view) {
  return filled(Shape(view.shape.begin(), view.shape.begin() + view.rank), quiet_nan, view.dtype);
}

/// Row-major values of any view.
inline Values values_of(const TensorView& view) {
  Values values;
  internal::for_each_element([&](std::int64_t at) { values.push_back(internal::load_double(view, at)); }, view);
  return values;
}

/// One check for the whole comparison, which reports the first element for which `agree` does not hold.
template <class Agree>
void check_all(const std::string& what, const Values& actual, const Values& expected, Agree&& agree) {
  BOOST_TEST_REQUIRE(actual.size() == expected.size(),
                     what << ": " << actual.size() << " values, not " << expected.size());
  std::string difference;
  for (std::size_t n = 0; n < actual.size() && difference.empty(); ++n) {
    if (agree(actual[n], expected[n])) continue;
    std::ostringstream text;
    text.precision(17);
    text << what << "[" << n << "] is " << actual[n] << ", not " << expected[n];
    difference = text.str();
  }
  BOOST_TEST(difference.empty(), difference);
}

/// |actual - expected| <= tolerance (1 + |expected|), so NaN fails; infinities must be equal.
inline void check_close(const std::string& what, const Values& actual, const Values& expected,
                        double tolerance = 1e-14) {
  check_all(what, actual, expected,
            [&](double a, double e) { return a == e || std::fabs(a - e) <= tolerance * (1 + std::fabs(e)); });
}
inline void check_close(const std::string& what, const TensorView& actual, const Values& expected,
                        double tolerance = 1e-14) {
  check_close(what, values_of(actual), expected, tolerance);
}
/// Equal values, NaN equal to NaN, and 0 different from -0.
inline void check_same(const std::string& what, const Values& actual, const Values& expected) {
  check_all(what, actual, expected, [](double a, double e) {
    return std::isnan(a) ? std::isnan(e) : a == e && std::signbit(a) == std::signbit(e);
  });
}
inline void check_same(const std::string& what, const TensorView& actual, const TensorView& expected) {
  check_same(what, values_of(actual), values_of(expected));
}
inline void check_same(const std::string& what, const TensorView& actual, const Values& expected) {
  check_same(what, values_of(actual), expected);
}

/// sum a b.
inline double inner(const TensorView& a, const TensorView& b) {
  const Values x = values_of(a), y = values_of(b);
  double sum = 0;
  for (std::size_t n = 0; n < x.size(); ++n) sum += x[n] * y[n];
  return sum;
}

/// The gradient against the five-point difference quotient of `objective` in every element of the float64 `input`:
///   f' = (f(-2h) - 8 f(-h) + 8 f(h) - f(2h)) / 12 h, truncation error h^4 f'''''/30.
inline void check_differences(const std::string& what, const Tensor& input, const TensorView& gradient,
                              const std::function<double()>& objective, double tolerance = 1e-9, double h = 5e-4) {
  const Values analytic = values_of(gradient);
  BOOST_TEST_REQUIRE(input.view().size() == static_cast<std::int64_t>(analytic.size()));
  BOOST_TEST_REQUIRE(!analytic.empty());
  Values numeric;
  for (std::int64_t at = 0; at < input.view().size(); ++at) {
    double& x = *input.view().at<double>(at);
    const double start = x;
    const auto moved = [&](double by) {
      x = start + by;
      const double value = objective();
      x = start;
      return value;
    };
    numeric.push_back((moved(-2 * h) - 8 * moved(-h) + 8 * moved(h) - moved(2 * h)) / (12 * h));
  }
  check_close(what, analytic, numeric, tolerance);
}

}  // namespace dsalt::test
