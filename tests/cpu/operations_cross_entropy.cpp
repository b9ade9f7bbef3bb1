// Linear + cross-entropy on the CPU backend: ignored labels and a uniform vocabulary by hand, then the reference on
// partial tiles in both directions, large logits and label smoothing.
#include <algorithm>

#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

struct Setup {
  CrossEntropyProblem problem;
  Tensor hidden, weight, labels, dloss;
  Layout layout = Layout::contiguous;

  std::vector<Tensor> run(Backend& backend, const Tensor& hidden, const Tensor& weight, const Tensor& dloss) const {
    const auto like = [&](const Tensor& t) {
      const TensorView& v = t.view();
      return fresh(Shape(v.shape.begin(), v.shape.begin() + v.rank), v.dtype, layout);
    };
    const Tensor loss = fresh({}, statistics_dtype(hidden.view().dtype)), dhidden = like(hidden),
                 dweight = like(weight);
    cross_entropy_forward(backend, problem, {hidden, weight, labels}, loss);
    cross_entropy_backward(backend, problem, {hidden, weight, labels}, dloss, {dhidden, dweight});
    return {loss, dhidden, dweight};
  }
};

Setup random_setup(std::int64_t rows, std::int64_t vocabulary, std::int64_t d, DType dtype, double smoothing,
                   Layout layout = Layout::contiguous, double size = 1) {
  Setup setup;
  setup.layout = layout;
  setup.problem.label_smoothing = smoothing;
  setup.hidden = random({rows, d}, 1, dtype, size, layout);
  setup.weight = random({vocabulary, d}, 2, dtype, 1, layout);
  setup.dloss = tensor({}, {1.7});
  Values labels(rows);
  for (std::int64_t r = 0; r < rows; ++r) labels[r] = r % 5 == 3 ? -100 : static_cast<double>(r * 7919 % vocabulary);
  setup.labels = tensor({rows}, labels, DType::i32, layout);
  return setup;
}

/// Sums of absolute terms of the loss and the gradients; a logit s_rv carries the terms sum_k |h_rk w_vk|.
struct Terms {
  Values loss{0}, dhidden, dweight;
};
Terms terms_of(const Setup& setup) {
  const Values h = values(setup.hidden), w = values(setup.weight), labels = values(setup.labels);
  const auto rows = static_cast<std::int64_t>(labels.size());
  const std::int64_t vocabulary = setup.weight.view().shape[0], d = setup.weight.view().shape[1];
  const double e = setup.problem.label_smoothing;
  const auto counted = static_cast<double>(std::count_if(
      labels.begin(), labels.end(), [&](double l) { return l != static_cast<double>(setup.problem.ignore_index); }));
  Terms terms{{0}, Values(h.size()), Values(w.size())};
  Values s(vocabulary), size(vocabulary);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (labels[r] == static_cast<double>(setup.problem.ignore_index)) continue;
    double maximum = -1e300, sum = 0, mean_size = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      s[v] = size[v] = 0;
      for (std::int64_t k = 0; k < d; ++k) {
        s[v] += h[r * d + k] * w[v * d + k];
        size[v] += std::fabs(h[r * d + k] * w[v * d + k]);
      }
      maximum = std::max(maximum, s[v]);
      mean_size += size[v] / static_cast<double>(vocabulary);
    }
    for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(s[v] - maximum);
    double expected_size = 0;  // of the logits under the softmax
    for (std::int64_t v = 0; v < vocabulary; ++v) expected_size += std::exp(s[v] - maximum) / sum * size[v];
    const auto label = static_cast<std::int64_t>(labels[r]);
    terms.loss[0] +=
        (expected_size + std::fabs(maximum) + std::log(sum) + (1 - e) * size[label] + e * mean_size) / counted;
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const double p = std::exp(s[v] - maximum) / sum;
      const double g = std::fabs(values(setup.dloss)[0]) / counted *
                       (p * (1 + size[v] + expected_size + std::fabs(s[v] - maximum)) + (1 - e) * (v == label) +
                        e / static_cast<double>(vocabulary));
      for (std::int64_t k = 0; k < d; ++k) {
        terms.dhidden[r * d + k] += g * std::fabs(w[v * d + k]);
        terms.dweight[v * d + k] += g * std::fabs(h[r * d + k]);
      }
    }
  }
  return terms;
}

void compare(const Setup& setup) {
  const auto actual = run_on_cpu([&](Backend& b) { return setup.run(b, setup.hidden, setup.weight, setup.dloss); });
  const auto expected = setup.run(*reference(), wide(setup.hidden), wide(setup.weight), wide(setup.dloss));
  const Terms terms = terms_of(setup);
  check("loss", actual[0], values(expected[0]), terms.loss);
  check("dhidden", actual[1], values(expected[1]), terms.dhidden);
  check("dweight", actual[2], values(expected[2]), terms.dweight);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cross_entropy)

BOOST_AUTO_TEST_CASE(all_labels_ignored) {
  Setup setup = random_setup(4, 5, 3, DType::f32, .1);
  setup.labels = tensor({4}, Values(4, -100), DType::i32);
  setup.hidden = tensor({4, 3}, Values(12, std::numeric_limits<double>::quiet_NaN()));
  for (const Tensor& output : setup.run(*cpu(), setup.hidden, setup.weight, setup.dloss))
    for (const double x : values(output)) BOOST_TEST(x == 0);
}

BOOST_AUTO_TEST_CASE(uniform_vocabulary_of_33) {
  Setup setup = random_setup(2, 33, 4, DType::f32, 0);
  setup.hidden = tensor({2, 4}, Values(8, 0));
  const double loss = values(setup.run(*cpu(), setup.hidden, setup.weight, setup.dloss)[0])[0];
  BOOST_TEST(std::fabs(loss - 3.496508) < 1e-6);
}

BOOST_AUTO_TEST_CASE(shapes_dtypes_and_layouts) {
  for (const DType dtype : main_dtypes)
    for (const Layout layout : all_layouts)
      for (const double smoothing : {0.0, .1, 1.0})
        BOOST_TEST_CONTEXT(name_of(dtype) << " layout " << static_cast<int>(layout) << " smoothing " << smoothing) {
          compare(random_setup(0, 5, 3, dtype, smoothing, layout));
          compare(random_setup(1, 1, 1, dtype, smoothing, layout));
          compare(random_setup(3, 17, 5, dtype, smoothing, layout));
          compare(random_setup(17, 65, 33, dtype, smoothing, layout));
        }
}

BOOST_AUTO_TEST_CASE(partial_tiles_and_many_threads) {
  compare(random_setup(131, 259, 67, DType::f32, .1));
  compare(random_setup(65, 4099, 17, DType::f32, 0));  // more than one vocabulary segment
  compare(random_setup(64, 128, 520, DType::bf16, 0));
  compare(random_setup(1100, 1031, 9, DType::f32, .1));  // tasks of other sizes on 1, 2 and 7 threads
}

BOOST_AUTO_TEST_CASE(large_logits) {
  compare(random_setup(9, 40, 8, DType::f32, .1, Layout::contiguous, 100));
  compare(random_setup(9, 40, 8, DType::f32, 0, Layout::contiguous, 1e5));
}

BOOST_AUTO_TEST_CASE(long_sums_of_one_sign) {
  Setup setup = random_setup(3000, 2, 5, DType::f32, 0);
  setup.hidden = tensor({3000, 5}, Values(15000, .7));
  Values labels(3000);
  setup.labels = tensor({3000}, labels, DType::i32);
  compare(setup);
}

BOOST_AUTO_TEST_CASE(another_ignore_index_and_absent_outputs) {
  Setup setup = random_setup(6, 9, 4, DType::f32, 0);
  setup.problem.ignore_index = 2;
  setup.labels = tensor({6}, {0, 2, 8, 2, 1, 3}, DType::i32);
  compare(setup);
  const auto both = setup.run(*cpu(), setup.hidden, setup.weight, setup.dloss);
  const Tensor dhidden = fresh({6, 4}, DType::f32), dweight = fresh({9, 4}, DType::f32);
  const CrossEntropyInputs inputs{setup.hidden, setup.weight, setup.labels};
  cross_entropy_backward(*cpu(), setup.problem, inputs, setup.dloss, {dhidden, {}});
  cross_entropy_backward(*cpu(), setup.problem, inputs, setup.dloss, {{}, dweight});
  BOOST_TEST(same_bytes(dhidden, both[1]));
  BOOST_TEST(same_bytes(dweight, both[2]));
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_its_batch) {
  // dloss is scaled so that every call multiplies a row by the same power of two.
  Setup setup = random_setup(128, 261, 35, DType::f32, .1);
  Values labels(128);
  for (std::size_t r = 0; r < labels.size(); ++r) labels[r] = static_cast<double>(r * 37 % 261);
  setup.labels = tensor({128}, labels, DType::i32);
  const auto backend = cpu(2);
  setup.dloss = tensor({}, {128});
  const auto all = setup.run(*backend, setup.hidden, setup.weight, setup.dloss);
  for (const std::int64_t row : {0, 5, 127}) {
    const Tensor dhidden = fresh({1, 35}, DType::f32);
    cross_entropy_backward(*backend, setup.problem,
                           {setup.hidden.view().narrow(0, row, 1), setup.weight, setup.labels.view().narrow(0, row, 1)},
                           tensor({}, {1}), {dhidden, {}});
    BOOST_TEST(same_bytes(dhidden, all[1].view().narrow(0, row, 1)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
