// Generators: names, reproducibility, coverage.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <map>
#include <set>

#include "case_support.hpp"

using namespace case_support;

BOOST_AUTO_TEST_SUITE(case_generators)

BOOST_AUTO_TEST_CASE(names_are_unique_and_belong_to_families) {
  std::map<std::string, Operation> known;
  for (const Family& family : families()) {
    BOOST_TEST(known.emplace(family.name, family.op).second, family.name);
    BOOST_TEST(family.description.back() == '.', family.name);
    BOOST_TEST(family.name.rfind(std::string(name_of(family.op)) + "/", 0) == 0, family.name);
  }
  std::set<std::string> names, used;
  for (const GeneratedCase& generated : generated_cases()) {
    BOOST_TEST(names.insert(generated.name).second, generated.name);
    BOOST_TEST(generated.name.rfind(generated.family + "/", 0) == 0, generated.name);
    BOOST_TEST((known.at(generated.family) == generated.op), generated.name);
    BOOST_TEST(generated.name.find('.') == std::string::npos, generated.name);
    BOOST_TEST((!generated.golden || generated.quick), generated.name);
    used.insert(generated.family);
  }
  BOOST_TEST(used.size() == families().size());
  BOOST_CHECK_THROW(generate_case("attention/nothing_f32"), InvalidArgument);
}

BOOST_AUTO_TEST_CASE(a_case_depends_on_its_name_alone) {
  const Case once = generate_case("attention/everything/17_bf16");
  generate_case("attention/everything/16_bf16");
  BOOST_TEST(same_case(once, generate_case("attention/everything/17_bf16")));
  BOOST_TEST(once.name == "attention/everything/17_bf16");
  BOOST_TEST(once.outputs.empty());
  // Another dtype is another name, so other numbers.
  const Case other = generate_case("attention/head_sizes/8_f64"), same = generate_case("attention/head_sizes/8_f32");
  BOOST_TEST(*other.inputs.at("q").view().at<double>(0) != *same.inputs.at("q").view().at<float>(0));
}

BOOST_AUTO_TEST_CASE(known_numbers) {
  // Computed from the definition in random_values.hpp by an independent program.
  const Case c = generate_case("rmsnorm/shapes/vector_f64");
  const double* x = c.inputs.at("x").view().at<double>(0);
  BOOST_TEST(x[0] == -1.347355612898163);
  BOOST_TEST(x[36] == -0.07372201449060105);
}

BOOST_AUTO_TEST_CASE(normal_deviates_are_normal_enough) {
  const Case c = generate_case("attention/long_rows/random_4099_f64");
  const TensorView& k = c.inputs.at("k").view();
  double sum = 0, squares = 0;
  for (std::int64_t n = 0; n < k.size(); ++n) {
    const double value = *k.at<double>(n);
    BOOST_REQUIRE(std::fabs(value) < 3.4642);
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(k.size());
  BOOST_TEST(std::fabs(sum / count) < 4 / std::sqrt(count));
  BOOST_TEST(std::fabs(squares / count - 1) < 6 / std::sqrt(count));
}

BOOST_AUTO_TEST_CASE(golden_cases_cover_operations_and_dtypes) {
  std::set<std::pair<Operation, DType>> covered;
  for (const GeneratedCase& generated : generated_cases())
    if (generated.golden) covered.insert({generated.op, generated.dtype});
  // All ten operations in four dtypes, except that energies entering the selection are float32 or float64.
  BOOST_TEST(covered.size() == 38u);
}

BOOST_AUTO_TEST_CASE(quick_cases_are_quick_on_the_reference) {
  const auto reference = make_backend("reference");
  const auto start = std::chrono::steady_clock::now();
  std::size_t count = 0, with_gradients = 0;
  for (const GeneratedCase& generated : generated_cases()) {
    if (!generated.quick) continue;
    const Case c = generate_case(generated.name);
    BOOST_CHECK_NO_THROW(evaluate(*reference, c));
    ++count;
    with_gradients += c.inputs.count("dout");
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  BOOST_TEST_MESSAGE(count << " quick cases in " << seconds << " s");
  BOOST_TEST(count > 1500u);
  BOOST_TEST(with_gradients > 900u);
#ifndef __SANITIZE_ADDRESS__
  BOOST_TEST(seconds < 60);
#endif
}

BOOST_AUTO_TEST_SUITE_END()
