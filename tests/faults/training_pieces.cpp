// Faults of the loss and of AdamW.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support.hpp"

namespace dsalt::faults {
namespace {

struct Loss {
  CrossEntropyProblem problem;
  Tensor hidden, weight, labels;
  double dloss = 1;
  Tensor loss, dhidden, dweight;

  void run(Backend& backend) {
    const DType dtype = hidden.view().dtype, stat = statistics_dtype(dtype);
    const auto like = [&](const TensorView& view) {
      return filled({view.shape.begin(), view.shape.begin() + view.rank}, nan, dtype);
    };
    loss = filled({}, nan, stat);
    dhidden = like(hidden), dweight = like(weight);
    cross_entropy_forward(backend, problem, {hidden, weight, labels}, loss);
    cross_entropy_backward(backend, problem, {hidden, weight, labels}, filled({}, dloss, stat), {dhidden, dweight});
  }
};

/// Two classes, hidden [R,1], weight [0, 1]: the loss of a row with label 0 is log(1 + exp(hidden)).
Loss two_classes(const std::vector<double>& token_losses, DType dtype) {
  std::vector<double> hidden;
  for (const double loss : token_losses) hidden.push_back(loss == 0 ? -2000 : std::log(std::expm1(loss)));
  const auto rows = static_cast<std::int64_t>(hidden.size());
  Loss l;
  l.hidden = tensor({rows, 1}, hidden, dtype);
  l.weight = tensor({2, 1}, {0, 1}, dtype);
  l.labels = indices({rows}, std::vector<std::int32_t>(hidden.size(), 0));
  return l;
}

/// log(1 + exp(h)) of the stored, rounded hidden.
double stored_loss(const Loss& l, std::size_t row) { return std::log1p(std::exp(values(l.hidden)[row])); }

}  // namespace

BOOST_AUTO_TEST_SUITE(loss)

BOOST_AUTO_TEST_CASE(all_labels_ignored) {
  on_every_backend(Operation::cross_entropy, all_floating, [](Backend& backend, DType dtype) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const std::int64_t rows : {0, 1, 5}) {
        Loss l;
        l.problem.label_smoothing = smoothing;
        l.hidden = random_tensor({rows, 4}, 70, dtype);
        l.weight = random_tensor({7, 4}, 71, dtype);
        l.labels = indices({rows}, std::vector<std::int32_t>(static_cast<std::size_t>(rows), -100));
        l.run(backend);
        check_all(l.loss, 0);
        if (rows > 0) check_all(l.dhidden, 0);
        check_all(l.dweight, 0);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(ignored_rows_enter_no_term) {
  on_every_backend(Operation::cross_entropy, all_floating, [](Backend& backend, DType dtype) {
    // the ignored row holds values that would show anywhere; another index than -100 works too
    for (const std::int32_t ignore : {-100, -1, 2}) {
      Loss some = two_classes({4, 1, 2}, dtype), without = two_classes({4, 2}, dtype);
      for (Loss* l : {&some, &without}) {
        l->problem.label_smoothing = 0.1;
        l->problem.ignore_index = ignore;
      }
      some.labels = indices({3}, {0, ignore, 0});
      some.run(backend);
      without.run(backend);
      BOOST_TEST(same_bytes(some.loss, without.loss));
      BOOST_TEST(same_bytes(some.dweight, without.dweight));
      BOOST_TEST(same_bytes(some.dhidden.view().narrow(0, 0, 1), without.dhidden.view().narrow(0, 0, 1)));
      check_all(some.dhidden.view().narrow(0, 1, 1), 0);
    }
  });
}

BOOST_AUTO_TEST_CASE(vocabulary_that_is_no_multiple_of_a_tile) {
  on_every_backend(Operation::cross_entropy, all_floating, [](Backend& backend, DType dtype) {
    BOOST_REQUIRE_SMALL(std::log(33.) - 3.496508, 1e-6);
    std::vector<std::int64_t> sizes = {255, 256, 257, 1000};
    for (std::int64_t v = 1; v <= 70; ++v) sizes.push_back(v);
    for (const std::int64_t vocabulary : sizes) {
      BOOST_TEST_CONTEXT("V=" << vocabulary) {
        Loss l;
        l.hidden = filled({2, 3}, 1, dtype);
        l.weight = filled({vocabulary, 3}, 0, dtype);  // zero logits: padding of the vocabulary would add terms
        l.labels = indices({2}, {0, static_cast<std::int32_t>(vocabulary - 1)});
        l.run(backend);
        const double v = static_cast<double>(vocabulary);
        check_near(l.loss, {std::log(v)});
        check_all(l.dhidden, 0);
        std::vector<double> dweight;  // (1/V) per row and class, minus 1 at the label; the mean is over two rows
        for (std::int64_t c = 0; c < vocabulary; ++c)
          dweight.insert(dweight.end(), 3, 1 / v - ((c == 0) + (c == vocabulary - 1)) / 2.0);
        check_near(l.dweight, dweight);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(mean_over_tokens_of_unequal_micro_batches) {
  on_every_backend(Operation::cross_entropy, all_floating, [](Backend& backend, DType dtype) {
    Loss whole = two_classes({4, 0, 0, 0}, dtype), first = two_classes({4}, dtype),
         second = two_classes({0, 0, 0}, dtype);
    const double four = stored_loss(whole, 0);
    BOOST_REQUIRE_SMALL(four - 4, 40 * unit_roundoff(dtype));
    whole.run(backend);
    check_near(whole.loss, {four / 4});  // 1.0; a mean of means would be 2.0
    // the parts, each weighted with its share of the tokens, give the same loss and the same gradient
    first.dloss = 1. / 4;
    second.dloss = 3. / 4;
    first.run(backend);
    second.run(backend);
    check_near(whole.loss, {values(first.loss)[0] / 4 + values(second.loss)[0] * 3 / 4});
    const std::vector<double> a = values(first.dweight), b = values(second.dweight);
    check_near(whole.dweight, {a[0] + b[0], a[1] + b[1]}, 16 + 2 * unit_roundoff(dtype) / 0x1p-24);
    check_near(whole.dhidden.view().narrow(0, 0, 1), values(first.dhidden));
  });
}

BOOST_AUTO_TEST_CASE(logits_of_any_size) {
  on_every_backend(Operation::cross_entropy, {DType::f64, DType::f32, DType::bf16}, [](Backend& backend, DType dtype) {
    for (const double logit : {-1e30, -1e4, 1e4, 1e30}) {
      BOOST_TEST_CONTEXT("logit " << logit) {
        Loss l = two_classes({1}, dtype);
        l.hidden = tensor({1, 1}, {logit}, dtype);
        l.run(backend);
        const double stored = values(l.hidden)[0];
        check_near(l.loss, {stored > 0 ? stored : 0});
        check_near(l.dhidden, {stored > 0 ? 1.0 : 0});
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(label_smoothing_shares_with_every_class) {
  on_every_backend(Operation::cross_entropy, all_floating, [](Backend& backend, DType dtype) {
    Loss l = two_classes({1}, dtype);
    l.problem.label_smoothing = .25;
    l.run(backend);
    const double h = values(l.hidden)[0], lse = std::log1p(std::exp(h)), p1 = 1 / (1 + std::exp(-h));
    check_near(l.loss, {.75 * lse + .25 * (lse - h / 2)});
    check_near(l.dhidden, {p1 - .125});
  });
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(adamw)

namespace {

struct Parameter {
  Tensor param, grad, m, v;
  Parameter(double p, double g, DType dtype, DType state) {
    param = filled({3}, p, dtype);
    grad = filled({3}, g, dtype);
    m = filled({3}, 0, state);
    v = filled({3}, 0, state);
  }
  void step(Backend& backend, const AdamWProblem& problem) {
    adamw_step(backend, problem, {param, grad, m, v}, {param, m, v});  // in place
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(decay_acts_on_the_parameter_not_on_the_gradient) {
  on_every_backend(Operation::adamw, all_floating, [](Backend& backend, DType dtype) {
    AdamWProblem problem;
    problem.lr = .1;
    problem.weight_decay = .1;
    Parameter matrix(1, 0, dtype, statistics_dtype(dtype)), norm = matrix;
    matrix.step(backend, problem);
    check_near(matrix.param, {.99, .99, .99});
    check_all(matrix.m, 0);
    check_all(matrix.v, 0);
    problem.weight_decay = 0;  // norms, biases, embeddings
    norm = Parameter(1, 0, dtype, statistics_dtype(dtype));
    norm.step(backend, problem);
    check_all(norm.param, 1);
  });
}

BOOST_AUTO_TEST_CASE(master_weights) {
  on_every_backend(Operation::adamw, {DType::f64, DType::f32}, [](Backend& backend, DType dtype) {
    AdamWProblem problem;
    problem.lr = 6e-4;
    const DType narrow = dtype == DType::f64 ? DType::f64 : DType::bf16;  // float64 goes with float64 only
    Parameter master(1, 1, dtype, dtype);
    master.grad = filled({3}, 1, narrow);
    for (std::int64_t step = 1; step <= 100; ++step) {
      problem.step = step;
      master.step(backend, problem);
    }
    // mhat = vhat = 1 at every step: p = 1 - 100 lr / (1 + eps); a bfloat16 p would stay 1, half its ulp being 2^-9
    check_near(master.param, std::vector<double>(3, 1 - 100 * 6e-4 / (1 + 1e-8)), 200);
    check_near(master.m, std::vector<double>(3, 1 - std::pow(.9, 100)), 200);
    check_near(master.v, std::vector<double>(3, 1 - std::pow(.95, 100)), 200);
  });
  on_every_backend(Operation::adamw, {DType::bf16}, [](Backend& backend, DType dtype) {
    AdamWProblem problem;
    problem.lr = 6e-4;
    Parameter narrow(1, 1, dtype, DType::f32);
    for (problem.step = 1; problem.step <= 100; ++problem.step) narrow.step(backend, problem);
    check_all(narrow.param, 1);  // round to nearest: why master weights exist
  });
}

BOOST_AUTO_TEST_CASE(bias_correction_of_the_first_and_of_late_steps) {
  on_every_backend(Operation::adamw, {DType::f64, DType::f32}, [](Backend& backend, DType dtype) {
    for (const std::int64_t step : {std::int64_t{1}, std::int64_t{2}, std::int64_t{1000}, std::int64_t{1} << 40}) {
      BOOST_TEST_CONTEXT("step " << step) {
        AdamWProblem problem;
        problem.lr = .5;
        problem.weight_decay = .1;
        problem.step = step;
        Parameter p(2, -3, dtype, dtype);
        p.m = filled({3}, .5, dtype);
        p.v = filled({3}, .25, dtype);
        p.step(backend, problem);
        const double t = static_cast<double>(step), m = .9 * .5 - .1 * 3, v = .95 * .25 + (1 - .95) * 9;
        const double mhat = m / (1 - std::pow(.9, t)), vhat = v / (1 - std::pow(.95, t));
        const double expected = 2 * (1 - .5 * .1) - .5 * mhat / (std::sqrt(vhat) + 1e-8);
        check_near(p.param, {expected, expected, expected});
        check_near(p.m, {m, m, m});
        check_near(p.v, {v, v, v});
      }
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
