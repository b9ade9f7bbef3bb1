// The comparator must be able to fail: every way of being wrong is presented to it, beside the honest neighbour.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

#include "dsalt/errors.hpp"
#include "dsalt/verification/compare.hpp"
#include "dsalt/verification/condition.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::verification;

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double u32 = 0x1p-24;

Tensor tensor(const std::vector<double>& values, DType dtype = DType::f64) {
  const TensorView source = TensorView::of(values.data(), {static_cast<std::int64_t>(values.size())});
  Tensor result = Tensor::empty({static_cast<std::int64_t>(values.size())}, dtype);
  copy_elements(source, result);
  return result;
}

Comparison judge(const std::vector<double>& actual, const std::vector<double>& reference,
                 const std::vector<double>& condition, DType dtype = DType::f32) {
  return compare(tensor(actual, dtype), tensor(reference), tensor(condition),
                 tolerance_for(Operation::attention, "out", dtype));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(comparator)

BOOST_AUTO_TEST_CASE(accepts_the_reference_itself) {
  const Comparison c = judge({1, -2, 0.5}, {1, -2, 0.5}, {u32, u32, u32});
  BOOST_TEST(c.passed);
  BOOST_TEST(c.message.empty());
  BOOST_TEST(c.count == 3);
  BOOST_TEST(c.max_ratio == 0);
  BOOST_TEST(c.ratios.size() == 3u);
}

BOOST_AUTO_TEST_CASE(refuses_nan_where_there_is_none) {
  const Comparison c = judge({1, not_a_number, 0.5}, {1, -2, 0.5}, {u32, u32, u32});
  BOOST_TEST(!c.passed);
  BOOST_TEST(c.worst_index == std::vector<std::int64_t>{1}, boost::test_tools::per_element());
  BOOST_TEST(c.message.find("NaN where the reference is a number") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(refuses_a_missing_nan) {
  BOOST_TEST(!judge({1, 7}, {1, not_a_number}, {u32, u32}).passed);
  BOOST_TEST(judge({1, not_a_number}, {1, not_a_number}, {u32, u32}).passed);
}

BOOST_AUTO_TEST_CASE(infinities_have_signs) {
  BOOST_TEST(judge({-inf, inf}, {-inf, inf}, {0, 0}).passed);
  BOOST_TEST(!judge({inf, inf}, {-inf, inf}, {0, 0}).passed);
  BOOST_TEST(!judge({-1e30, inf}, {-inf, inf}, {0, 0}).passed);
  BOOST_TEST(!judge({inf}, {1}, {u32}).passed);
}

BOOST_AUTO_TEST_CASE(an_overflowing_reference_must_round_to_infinity) {
  BOOST_TEST(judge({inf}, {1e5}, {1}, DType::f16).passed);
  BOOST_TEST(!judge({65504}, {1e5}, {1}, DType::f16).passed);
  BOOST_TEST(!judge({-inf}, {1e5}, {1}, DType::f16).passed);
  BOOST_TEST(judge({inf}, {65519}, {1}, DType::f16).passed);  // within rounding of the threshold 65520
  BOOST_TEST(!judge({inf}, {60000}, {1}, DType::f16).passed);
}

BOOST_AUTO_TEST_CASE(shapes_must_match) {
  const Tensor row = Tensor::zeros({1, 6}, DType::f32), matrix = Tensor::zeros({2, 3}, DType::f64);
  const Tolerance tolerance = tolerance_for(Operation::rope, "y", DType::f32);
  const Comparison c = compare(row, matrix, matrix, tolerance);
  BOOST_TEST(!c.passed);
  BOOST_TEST(c.message.find("[1,6]") != std::string::npos);
  BOOST_TEST(c.message.find("[2,3]") != std::string::npos);
  BOOST_TEST(!compare(Tensor::zeros({6}, DType::f32), matrix, matrix, tolerance).passed);
  BOOST_TEST(!compare(TensorView{}, matrix, matrix, tolerance).passed);
}

BOOST_AUTO_TEST_CASE(an_empty_comparison_is_no_pass) {
  const Comparison c = judge({}, {}, {});
  BOOST_TEST(!c.passed);
  BOOST_TEST(c.count == 0);
}

BOOST_AUTO_TEST_CASE(ten_units_are_caught_and_one_is_not) {
  // one unit of an element with condition u and reference 1 is u + u_out
  BOOST_TEST(judge({1 + 2 * u32, 1, 1}, {1, 1, 1}, {u32, u32, u32}).passed);
  const Comparison c = judge({1, 1 + 20 * u32, 1}, {1, 1, 1}, {u32, u32, u32});
  BOOST_TEST(!c.passed);
  BOOST_TEST(c.max_ratio == 10, boost::test_tools::tolerance(1e-6));
  BOOST_TEST(c.worst_index == std::vector<std::int64_t>{1}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(one_percent_of_a_small_element_is_caught) {
  // beside elements of size 1 the small one would pass any tolerance that is relative to the tensor
  BOOST_TEST(!judge({1, 1.01e-6}, {1, 1e-6}, {u32, 1e-6 * u32}).passed);
  // bfloat16 has a unit of 0.4 %: 2 % of one element shows at once, 1 % when more than a few elements have it
  BOOST_TEST(!judge({1, 1.02e-6}, {1, 1e-6}, {0, 0}, DType::bf16).passed);
  std::vector<double> actual(100, 1), reference(100, 1), condition(100, 0);
  for (std::size_t n = 0; n < 60; ++n) {
    reference[n] = 1e-6;
    actual[n] = 1.01e-6;
  }
  BOOST_TEST(!judge(actual, reference, condition, DType::bf16).passed);
}

BOOST_AUTO_TEST_CASE(the_rms_must_hold_too) {
  // every element 2 units off: each alone is within the maximum, together they are no bad luck
  std::vector<double> actual, reference, condition;
  for (int n = 0; n < 100; ++n) {
    reference.push_back(1);
    condition.push_back(u32);
    actual.push_back(1 + 4 * u32);  // 2 units
  }
  const Comparison c = judge(actual, reference, condition);
  BOOST_TEST(!c.passed);
  BOOST_TEST(c.max_ratio < 4);
  BOOST_TEST(c.message.find("RMS") != std::string::npos);
  for (int n = 0; n < 90; ++n) actual[static_cast<std::size_t>(n)] = 1;
  BOOST_TEST(judge(actual, reference, condition).passed);
}

BOOST_AUTO_TEST_CASE(few_elements_are_judged_by_their_maximum) {
  BOOST_TEST(judge({1 + 6 * u32}, {1}, {u32}).passed);    // 3 units
  BOOST_TEST(!judge({1 + 10 * u32}, {1}, {u32}).passed);  // 5 units
}

BOOST_AUTO_TEST_CASE(rows_that_are_exactly_zero_do_not_dilute_the_rms) {
  std::vector<double> actual(10000, 0), reference(10000, 0), condition(10000, 0);
  for (std::size_t n = 0; n < 40; ++n) {
    actual[n] = 1 + 4 * u32;
    reference[n] = 1;
    condition[n] = u32;
  }
  BOOST_TEST(!judge(actual, reference, condition).passed);
}

BOOST_AUTO_TEST_CASE(what_has_no_term_must_be_exactly_zero) {
  BOOST_TEST(judge({0, -0.0}, {0, 0}, {0, 0}).passed);
  BOOST_TEST(!judge({0x1p-149}, {0}, {0}).passed);
}

BOOST_AUTO_TEST_CASE(a_condition_that_is_not_finite_passes_nothing) {
  BOOST_TEST(!judge({5}, {1}, {inf}).passed);
  BOOST_TEST(!judge({1}, {1}, {not_a_number}).passed);
}

BOOST_AUTO_TEST_CASE(subnormal_results_are_judged_by_their_spacing) {
  BOOST_TEST(judge({0x1p-149}, {1.4 * 0x1p-149}, {0x1p-160}).passed);
  BOOST_TEST(!judge({9 * 0x1p-149}, {0x1p-149}, {0x1p-160}).passed);
}

BOOST_AUTO_TEST_CASE(strides_do_not_matter) {
  const std::vector<float> data = {1, 9, 2, 9, 3, 9};
  TensorView view = TensorView::of(data.data(), {3});
  view.strides[0] = 2;
  const Tensor reference = tensor({1, 2, 3}), condition = tensor({u32, u32, u32});
  const Tolerance tolerance = tolerance_for(Operation::rope, "y", DType::f32);
  BOOST_TEST(compare(view, reference, condition, tolerance).passed);
  view.strides[0] = 1;
  BOOST_TEST(!compare(view, reference, condition, tolerance).passed);
}

BOOST_AUTO_TEST_CASE(long_tensors_are_sampled_but_wholly_compared) {
  std::vector<double> actual(100001, 1), reference(100001, 1), condition(100001, u32);
  Comparison c = judge(actual, reference, condition);
  BOOST_TEST(c.passed);
  BOOST_TEST(c.ratios.size() <= 4096u);
  BOOST_TEST(c.ratios.size() > 3000u);
  actual[99999] = 1.001;
  c = judge(actual, reference, condition);
  BOOST_TEST(!c.passed);
  BOOST_TEST(c.worst_index.at(0) == 99999);
}

BOOST_AUTO_TEST_CASE(every_output_has_a_tolerance_and_no_other_has) {
  BOOST_CHECK_THROW(tolerance_for(Operation::attention, "y", DType::f32), InvalidArgument);
  BOOST_CHECK_THROW(tolerance_for(Operation::select_landmarks, "landmarks", DType::i32), InvalidArgument);
  const Tolerance half = tolerance_for(Operation::swiglu, "y", DType::f16);
  BOOST_TEST(half.u_out == 0x1p-11);
  BOOST_TEST(half.tiny == 0x1p-24);
  BOOST_TEST(half.max_factor == 4);
  BOOST_TEST(half.rms_factor <= 1);
}

BOOST_AUTO_TEST_SUITE_END()
