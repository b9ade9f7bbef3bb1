// Conditions of small cases, computed by hand from the formulas that verification/src/condition documents.
#include <boost/test/unit_test.hpp>

#include <cmath>

#include "dsalt/verification/condition.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::verification;

constexpr double u = 0x1p-24, u_bf16 = 0x1p-8;
constexpr double floor32 = 0x1p-126;  // exponentials may be cut off there

Tensor tensor(std::initializer_list<std::int64_t> shape, const std::vector<double>& values, DType dtype) {
  const Tensor result = Tensor::empty(shape, dtype);
  copy_elements(TensorView::of(const_cast<double*>(values.data()), DType::f64, shape), result);
  return result;
}

double at(const Tensors& tensors, const char* name, std::int64_t n = 0) {
  return tensors.at(name).view().at<double>(0)[n];
}

double growth(double n) { return std::sqrt(n) / 4; }

}  // namespace

BOOST_AUTO_TEST_SUITE(condition_by_hand)

BOOST_AUTO_TEST_CASE(attention_of_two_equal_keys) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Case c;
    c.name = "two";
    c.op = Operation::attention;
    c.attributes = {{"mask", std::string("full")}, {"scale", 1.0}};
    c.inputs = {{"q", tensor({1, 1, 1, 1}, {2}, dtype)},
                {"k", tensor({1, 1, 2, 1}, {1.5, 1.5}, dtype)},
                {"v", tensor({1, 1, 2, 1}, {1, -3}, dtype)},
                {"dout", tensor({1, 1, 1, 1}, {1}, dtype)}};
    const Yardstick y = make_yardstick(c);
    const double lse = 3 + std::log(2.0);
    BOOST_TEST(at(y.reference, "out") == -1, boost::test_tools::tolerance(1e-14));
    BOOST_TEST(at(y.reference, "lse") == lse, boost::test_tools::tolerance(1e-14));
    // the score: |2 * 1.5| and its growth over one term
    const double size = 3 * (1 + growth(1));
    const double rho = u * (1 + std::max(size, lse) + growth(2));
    const double r = (dtype == DType::bf16 ? u_bf16 : u) + rho;
    const auto near = boost::test_tools::tolerance(1e-9);
    BOOST_TEST(at(y.condition, "lse") == rho, near);
    BOOST_TEST(at(y.condition, "out") == 2 * r, near);  // (|1| + |-3|) / 2
    // delta: |out| terms 2; |ds| = (1 + 2)/2 and (3 + 2)/2
    BOOST_TEST(at(y.condition, "dq") == (1.5 + 2.5) * 1.5 * r, near);
    BOOST_TEST(at(y.condition, "dk", 0) == 1.5 * 2 * (r + u * growth(1)), near);
    BOOST_TEST(at(y.condition, "dk", 1) == 2.5 * 2 * (r + u * growth(1)), near);
    BOOST_TEST(at(y.condition, "dv", 0) == 0.5 * (r + u * growth(1)), near);
  }
}

BOOST_AUTO_TEST_CASE(rows_that_see_nothing_are_exact) {
  Case c;
  c.name = "blind";
  c.op = Operation::attention;
  c.attributes = {{"mask", std::string("causal")}};
  c.inputs = {{"q", tensor({1, 1, 3, 1}, {1, 1, 1}, DType::f32)},
              {"k", tensor({1, 1, 1, 1}, {1}, DType::f32)},
              {"v", tensor({1, 1, 1, 1}, {1}, DType::f32)},
              {"dout", tensor({1, 1, 3, 1}, {1, 1, 1}, DType::f32)}};
  const Yardstick y = make_yardstick(c);
  for (const char* output : {"out", "lse", "dq"}) {
    BOOST_TEST(at(y.condition, output, 0) == 0);
    BOOST_TEST(at(y.condition, output, 1) == 0);
  }
  BOOST_TEST(at(y.condition, "out", 2) > 0);
  BOOST_TEST(std::isinf(at(y.reference, "lse", 0)));
}

BOOST_AUTO_TEST_CASE(scores_enter_by_their_terms_not_their_sum) {
  // <q,k> = 1000 - 1000 + 1: a sum of 1, terms of 2001
  Case c;
  c.name = "cancelling";
  c.op = Operation::attention;
  c.attributes = {{"mask", std::string("full")}, {"scale", 1.0}};
  c.inputs = {{"q", tensor({1, 1, 1, 3}, {1000, -1000, 1}, DType::f32)},
              {"k", tensor({1, 1, 1, 3}, {1, 1, 1}, DType::f32)},
              {"v", tensor({1, 1, 1, 1}, {1}, DType::f32)}};
  const Yardstick y = make_yardstick(c);
  BOOST_TEST(at(y.condition, "lse") == u * (1 + 2001 + growth(3) + growth(1)), boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(rotation_covers_the_rounding_of_its_table) {
  Case c;
  c.name = "rotation";
  c.op = Operation::rope;
  c.attributes = {{"position", std::int64_t{1}}};
  c.inputs = {{"x", tensor({1, 1, 1, 2}, {3, -4}, DType::f32)}};
  const Yardstick y = make_yardstick(c);
  const double terms = 3 * std::cos(1.0) + 4 * std::sin(1.0);
  BOOST_TEST(at(y.condition, "y", 0) == terms * u + 7 * (u + 4 * 0x1p-53), boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(float64_is_judged_in_its_own_units) {
  Case c;
  c.name = "wide";
  c.op = Operation::merge;
  c.inputs = {{"out1", tensor({1, 1}, {2}, DType::f64)},
              {"lse1", tensor({1}, {0}, DType::f64)},
              {"out2", tensor({1, 1}, {-4}, DType::f64)},
              {"lse2", tensor({1}, {0}, DType::f64)}};
  const Yardstick y = make_yardstick(c);
  BOOST_TEST(at(y.condition, "out") == 3 * 3 * 0x1p-53, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(an_empty_part_of_a_merge_is_exact) {
  const double inf = std::numeric_limits<double>::infinity();
  Case c;
  c.name = "identity";
  c.op = Operation::merge;
  c.inputs = {{"out1", tensor({1, 1}, {2}, DType::f32)},
              {"lse1", tensor({1}, {5}, DType::f32)},
              {"out2", tensor({1, 1}, {std::nan("")}, DType::f32)},
              {"lse2", tensor({1}, {-inf}, DType::f32)}};
  const Yardstick y = make_yardstick(c);
  BOOST_TEST(at(y.condition, "out") == 0);
  BOOST_TEST(at(y.condition, "lse") == 0);
}

BOOST_AUTO_TEST_CASE(gate_may_vanish_below_the_smallest_normal_number) {
  Case c;
  c.name = "closed";
  c.op = Operation::swiglu;
  c.inputs = {{"gate", tensor({1}, {-100}, DType::f32)}, {"up", tensor({1}, {1}, DType::f32)}};
  const Yardstick y = make_yardstick(c);
  BOOST_TEST(at(y.condition, "y") >= 100 * floor32);
  BOOST_TEST(at(y.condition, "y") <= 101 * floor32);
}

BOOST_AUTO_TEST_CASE(floored_windows_have_a_second_value_only_beside_a_whole_number) {
  // w = 1 + sigma(z) * 8: z = 0 is exactly 5; z = 0.3 is 5.595...
  Case c;
  c.name = "floored";
  c.op = Operation::window_sizes;
  c.attributes = {{"n_min", 1.0}, {"n_max", 9.0}, {"floor", std::int64_t{1}}};
  c.inputs = {{"x", tensor({1, 2, 1}, {0, 0.3}, DType::f32)},
              {"weight", tensor({1, 1}, {1}, DType::f32)},
              {"bias", tensor({1}, {0}, DType::f32)}};
  const Yardstick y = make_yardstick(c);
  BOOST_TEST(at(y.reference, "window", 0) == 5);
  BOOST_TEST(at(y.alternative, "window", 0) == 4);
  BOOST_TEST(at(y.reference, "window", 1) == 5);
  BOOST_TEST(at(y.alternative, "window", 1) == 5);
  const auto passes = [&](float first, float second) {
    const std::vector<double> values = {first, second};
    for (const auto& [name, comparison] : compare_outputs(c, {{"window", tensor({1, 1, 2}, values, DType::f32)}}, y))
      if (!comparison.passed) return false;
    return true;
  };
  BOOST_TEST(passes(5, 5));
  BOOST_TEST(passes(4, 5));
  BOOST_TEST(!passes(6, 5));
  BOOST_TEST(!passes(5, 4));
}

BOOST_AUTO_TEST_SUITE_END()
