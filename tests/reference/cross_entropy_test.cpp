// Linear layer + cross-entropy, by hand and by finite differences.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

struct LossCall {
  CrossEntropyProblem problem;
  Tensor hidden, weight, labels;
  double dloss = 1;
  Tensor dhidden{}, dweight{};

  double loss() const {
    const DType stat = statistics_dtype(hidden.view().dtype);
    const Tensor result = filled({}, quiet_nan, stat);
    cross_entropy_forward(reference(), problem, {hidden, weight, labels}, result);
    return values_of(result)[0];
  }
  void backward() {
    dhidden = like(hidden);
    dweight = like(weight);
    const Tensor arriving = tensor({}, {dloss}, statistics_dtype(hidden.view().dtype));
    cross_entropy_backward(reference(), problem, {hidden, weight, labels}, arriving, {dhidden, dweight});
  }
};

const double ln3 = std::log(3.0), ln4 = std::log(4.0);

}  // namespace

BOOST_AUTO_TEST_SUITE(cross_entropy)

// hidden = 1, weight = [0, ln 3]: softmax [1/4, 3/4]. Label 0: loss = ln 4; dz = [-3/4, 3/4]; dhidden = 3/4 ln 3,
// dweight = dz hidden.
BOOST_AUTO_TEST_CASE(by_hand) {
  LossCall call{{}, tensor({1, 1}, {1}), tensor({2, 1}, {0, ln3}), indices({1}, {0})};
  call.backward();
  check_close("loss", {call.loss()}, {ln4});
  check_close("dhidden", call.dhidden, {0.75 * ln3});
  check_close("dweight", call.dweight, {-0.75, 0.75});
}

// eps = 1/2: the mean of nll over V is (ln 4 + ln 4/3)/2 = ln 4 - ln 3 / 2, loss = ln 4 - ln 3 / 4.
// dz = [1/4 - 1/2 - 1/4, 3/4 - 1/4] = [-1/2, 1/2].
BOOST_AUTO_TEST_CASE(label_smoothing) {
  LossCall call{{0.5, -100}, tensor({1, 1}, {1}), tensor({2, 1}, {0, ln3}), indices({1}, {0})};
  call.backward();
  check_close("loss", {call.loss()}, {ln4 - ln3 / 4});
  check_close("dhidden", call.dhidden, {0.5 * ln3});
  check_close("dweight", call.dweight, {-0.5, 0.5});
}

// Two counted rows (labels 0 and 1, losses ln 4 and ln 4/3) and an ignored one with NaN in it: the mean is over two.
// dloss = 4: dz = 4/2 [-3/4, 3/4] and 4/2 [1/4, -1/4].
BOOST_AUTO_TEST_CASE(ignored_rows_enter_no_term) {
  LossCall call{{}, tensor({3, 1}, {1, quiet_nan, 1}), tensor({2, 1}, {0, ln3}), indices({3}, {0, -100, 1}), 4};
  call.backward();
  check_close("loss", {call.loss()}, {ln4 - ln3 / 2});
  check_close("dhidden", call.dhidden, {1.5 * ln3, 0, -0.5 * ln3});
  check_close("dweight", call.dweight, {-1, 1});
  call.problem.ignore_index = 1;
  call.labels = indices({3}, {0, 1, 1});
  check_close("another ignore_index", {call.loss()}, {ln4});
}

BOOST_AUTO_TEST_CASE(all_ignored) {
  for (const DType dtype : floating_dtypes) {
    LossCall call{{0.1, -100}, random({3, 2}, 1, dtype), random({4, 2}, 2, dtype), indices({3}, {-100, -100, -100})};
    call.backward();
    check_same("loss", {call.loss()}, Values{0});
    check_same("dhidden", call.dhidden, Values(6, 0));
    check_same("dweight", call.dweight, Values(8, 0));
  }
  LossCall none{{}, filled({0, 2}, 0), random({4, 2}, 2), indices({0}, {})};
  none.backward();
  check_same("no rows", {none.loss()}, Values{0});
  check_same("dweight of no rows", none.dweight, Values(8, 0));
}

BOOST_AUTO_TEST_CASE(zero_logits_give_the_log_of_the_vocabulary) {
  LossCall call{{}, filled({2, 3}, 0), random({33, 3}, 1), indices({2}, {0, 32})};
  check_close("loss", {call.loss()}, {3.496508}, 5e-7);
}

// Logits of 10^4 neither overflow nor lose the loss: label logit 10^4 lower.
BOOST_AUTO_TEST_CASE(large_logits) {
  LossCall call{{}, tensor({1, 1}, {1e4}, DType::f32), tensor({2, 1}, {1, 0}, DType::f32), indices({1}, {1})};
  call.backward();
  check_same("loss", {call.loss()}, Values{1e4});
  check_close("dhidden", call.dhidden, {1}, 0);
  check_close("dweight", call.dweight, {1e4, -1e4}, 0);
}

BOOST_AUTO_TEST_CASE(differences) {
  for (const double eps : {0.0, 0.1, 1.0}) {
    LossCall call{{eps, -100}, random({4, 3}, 1), random({5, 3}, 2), indices({4}, {2, -100, 4, 2}), 1.7};
    call.backward();
    const LossCall analytic = call;
    const auto objective = [&] { return 1.7 * call.loss(); };
    check_differences("dhidden", call.hidden, analytic.dhidden, objective);
    check_differences("dweight", call.weight, analytic.dweight, objective);
  }
}

BOOST_AUTO_TEST_CASE(strides_and_absent_gradients) {
  LossCall call{
      {0.1, -100}, random({4, 3}, 1, DType::bf16), random({5, 3}, 2, DType::bf16), indices({4}, {2, 0, 4, 1})};
  call.backward();
  LossCall strided = call;
  const Tensor hidden = filled({3, 4}, quiet_nan, DType::bf16);
  copy_elements(call.hidden, hidden.view().transpose(0, 1));
  strided.hidden = Tensor(hidden.storage(), hidden.view().transpose(0, 1));
  strided.backward();
  check_same("loss", {strided.loss()}, Values{call.loss()});
  check_same("dhidden", strided.dhidden, call.dhidden);
  check_same("dweight", strided.dweight, call.dweight);
  const Tensor alone = like(call.hidden), arriving = tensor({}, {1}, DType::f32);
  cross_entropy_backward(reference(), call.problem, {call.hidden, call.weight, call.labels}, arriving, {alone, {}});
  check_same("dhidden alone", alone, call.dhidden);
}

BOOST_AUTO_TEST_SUITE_END()
