// Landmark lists are judged by equivalence: near-ties may change places, nothing else may.
#include <boost/test/unit_test.hpp>

#include "dsalt/registry.hpp"
#include "dsalt/verification/condition.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::verification;

/// One head, one global list of 3 among these energies; nx and nv are equal, so that scores follow them.
Case selection(const std::vector<float>& energies, bool gradient = false) {
  const auto n = static_cast<std::int64_t>(energies.size());
  Case c;
  c.name = "selection";
  c.op = Operation::select_landmarks;
  c.attributes = {{"policy", std::string("global")}, {"k", std::int64_t{3}}, {"tau", 1.0}};
  c.inputs["nx"] = Tensor::empty({1, n}, DType::f32);
  c.inputs["nv"] = Tensor::empty({1, 1, n}, DType::f32);
  for (std::int64_t j = 0; j < n; ++j)
    for (const char* name : {"nx", "nv"}) c.inputs[name].view().at<float>(0)[j] = energies[static_cast<std::size_t>(j)];
  c.inputs["alpha_raw"] = Tensor::zeros({1}, DType::f32);
  if (gradient) {
    c.inputs["dlandmark_log_weight"] = Tensor::empty({1, 1, 1, 3}, DType::f32);
    for (int slot = 0; slot < 3; ++slot)
      c.inputs["dlandmark_log_weight"].view().at<float>(0)[slot] = 1.0f + static_cast<float>(slot);
  }
  return c;
}

Tensors outputs_of(const Case& c) { return evaluate(*make_backend("reference"), c); }

void set_list(Tensors& outputs, std::vector<std::int32_t> list) {
  for (std::size_t slot = 0; slot < list.size(); ++slot)
    outputs.at("landmarks").view().at<std::int32_t>(0)[slot] = list[slot];
}

/// Passed, and the message of the first output that is not.
std::pair<bool, std::string> judge(const Case& c, const Tensors& actual) {
  for (const auto& [name, comparison] : compare_outputs(c, actual, make_yardstick(c)))
    if (!comparison.passed) return {false, name + ": " + comparison.message};
  return {true, ""};
}

void expect_fault(const Case& c, std::vector<std::int32_t> list, const std::string& words) {
  Tensors actual = outputs_of(c);
  set_list(actual, std::move(list));
  const auto [passed, message] = judge(c, actual);
  BOOST_TEST(!passed);
  BOOST_TEST_INFO(message);
  BOOST_TEST((message.starts_with("landmarks: ") && message.find(words) != std::string::npos));
}

const std::vector<float> spread = {1, 5, 2, 6, 3, 7, 4};  // the three highest: 1, 3, 5
const float next_up = std::nextafterf(5.0f, 6.0f);
const std::vector<float> near_tie = {1, 5, next_up, 6, 3, 7, 4};  // index 2 by one place in the last bit

}  // namespace

BOOST_AUTO_TEST_SUITE(selection_equivalence)

BOOST_AUTO_TEST_CASE(the_reference_is_equivalent_to_itself) {
  for (const auto& energies : {spread, near_tie}) {
    const Case c = selection(energies, true);
    const auto [passed, message] = judge(c, outputs_of(c));
    BOOST_TEST(passed, message);
  }
}

BOOST_AUTO_TEST_CASE(a_near_tie_may_be_ordered_differently) {
  const Case c = selection(near_tie, true);
  Case other = selection({1, next_up, 5, 6, 3, 7, 4}, true);  // the same list as if the tie had gone the other way
  const Tensors actual = outputs_of(other);
  BOOST_TEST(actual.at("landmarks").view().at<std::int32_t>(0)[0] == 1);
  BOOST_TEST(outputs_of(c).at("landmarks").view().at<std::int32_t>(0)[0] == 2);
  const auto [passed, message] = judge(c, actual);
  BOOST_TEST(passed, message);
}

BOOST_AUTO_TEST_CASE(the_gradient_belongs_to_the_list_that_was_chosen) {
  const Case c = selection(near_tie, true);
  Tensors actual = outputs_of(c);
  set_list(actual, {1, 3, 5});  // an equivalent list, but with the gradients of {2, 3, 5}
  const auto [passed, message] = judge(c, actual);
  BOOST_TEST(!passed);
  BOOST_TEST(!message.starts_with("landmarks"));
}

BOOST_AUTO_TEST_CASE(faults_of_a_list_are_named) {
  const Case c = selection(spread);
  expect_fault(c, {1, 3, 6}, "index 5 is missing");
  expect_fault(c, {3, 1, 5}, "must ascend");
  expect_fault(c, {3, 3, 5}, "must ascend without repeats");
  expect_fault(c, {3, 5, -1}, "2 indices, need 3");
  expect_fault(c, {3, -1, 5}, "an index follows -1");
  expect_fault(c, {3, 5, 7}, "no candidate");
  expect_fault(c, {-2, 3, 5}, "no candidate");
}

BOOST_AUTO_TEST_CASE(equal_energies_go_to_the_lower_index) {
  expect_fault(selection({1, 5, 5, 6, 3, 7, 4}), {2, 3, 5}, "same energies");
  expect_fault(selection({2, 2, 2, 2, 2}), {1, 2, 3}, "same energies");
}

BOOST_AUTO_TEST_CASE(scores_are_judged_at_the_members) {
  const Case c = selection(spread);
  for (const char* name : {"score", "landmark_log_weight"}) {
    Tensors actual = outputs_of(c);
    actual.at(name).view().at<float>(0)[1] *= 1.01f;
    const auto [passed, message] = judge(c, actual);
    BOOST_TEST(!passed);
    BOOST_TEST(message.starts_with(name));
  }
}

BOOST_AUTO_TEST_CASE(unused_slots_are_exactly_zero) {
  const Case c = selection({1, 2});
  Tensors actual = outputs_of(c);
  BOOST_TEST(judge(c, actual).first);
  actual.at("score").view().at<float>(0)[2] = 1e-30f;
  BOOST_TEST(!judge(c, actual).first);
}

BOOST_AUTO_TEST_CASE(missing_and_unknown_outputs_fail) {
  const Case c = selection(spread);
  Tensors actual = outputs_of(c);
  actual.erase("score");
  BOOST_TEST(!judge(c, actual).first);
  actual = outputs_of(c);
  actual["dnx"] = Tensor::zeros({1, 7}, DType::f32);
  BOOST_TEST(!judge(c, actual).first);
}

BOOST_AUTO_TEST_SUITE_END()
