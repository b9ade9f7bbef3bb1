// AdamW on the CPU backend: decay and master weights by hand, then the reference in every mix of dtypes, in place too.
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

struct State {
  Tensor param, grad, m, v;
};

std::vector<Tensor> run(Backend& backend, const AdamWProblem& problem, const State& s, Layout layout) {
  std::vector<Tensor> out;
  for (const Tensor* t : {&s.param, &s.m, &s.v}) {
    const TensorView& view = t->view();
    out.push_back(fresh(Shape(view.shape.begin(), view.shape.begin() + view.rank), view.dtype, layout));
  }
  adamw_step(backend, problem, {s.param, s.grad, s.m, s.v}, {out[0], out[1], out[2]});
  return out;
}

State random_state(const Shape& shape, DType param, DType grad, DType moments, Layout layout) {
  State s{random(shape, 1, param, 1, layout), random(shape, 2, grad, 1, layout), random(shape, 3, moments, .1, layout),
          random(shape, 4, moments, .05, layout)};
  Values v = values(s.v);
  for (double& x : v) x = std::fabs(x);
  s.v = tensor(shape, v, moments, layout);
  return s;
}

void compare(const AdamWProblem& problem, const State& s, Layout layout) {
  const auto actual = run_on_cpu([&](Backend& b) { return run(b, problem, s, layout); });
  const auto expected =
      run(*reference(), problem, {wide(s.param), wide(s.grad), wide(s.m), wide(s.v)}, Layout::contiguous);
  const Values p = values(s.param), g = values(s.grad), m = values(s.m), new_v = values(expected[2]);
  Values p_terms(p.size()), m_terms(p.size());
  const double step = static_cast<double>(problem.step);
  for (std::size_t n = 0; n < p.size(); ++n) {
    m_terms[n] = problem.beta1 * std::fabs(m[n]) + (1 - problem.beta1) * std::fabs(g[n]);
    p_terms[n] = std::fabs(p[n]) + problem.lr * m_terms[n] / (1 - std::pow(problem.beta1, step)) /
                                       (std::sqrt(new_v[n] / (1 - std::pow(problem.beta2, step))) + problem.eps);
  }
  check("param", actual[0], values(expected[0]), p_terms);
  check("m", actual[1], values(expected[1]), m_terms);
  check("v", actual[2], new_v);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adamw)

BOOST_AUTO_TEST_CASE(decay_alone) {
  AdamWProblem problem;
  problem.lr = .1;
  problem.weight_decay = .1;
  for (const auto& [decay, need] : {std::pair{.1, .99}, std::pair{0.0, 1.0}}) {
    problem.weight_decay = decay;
    const State s{tensor({1}, {1}), tensor({1}, {0}), tensor({1}, {0}), tensor({1}, {0})};
    BOOST_TEST(values(run(*cpu(), problem, s, Layout::contiguous)[0])[0] == static_cast<float>(need));
  }
}

BOOST_AUTO_TEST_CASE(master_weights_keep_small_steps) {
  const Tensor param = tensor({1}, {1}), grad = tensor({1}, {1}, DType::bf16), m = tensor({1}, {0}),
               v = tensor({1}, {0});
  AdamWProblem problem;
  problem.lr = 6e-4;
  const auto backend = cpu();
  for (problem.step = 1; problem.step <= 100; ++problem.step)
    adamw_step(*backend, problem, {param, grad, m, v}, {param, m, v});
  BOOST_TEST(std::fabs(values(param)[0] - .94) < 1e-5);
}

BOOST_AUTO_TEST_CASE(shapes_dtypes_and_layouts) {
  AdamWProblem problem;
  problem.lr = 3e-3;
  problem.weight_decay = .1;
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{17, 3}, Shape{2, 5, 65}})
    for (const Layout layout : all_layouts)
      for (const DType param : main_dtypes)
        for (const DType grad : main_dtypes)
          for (const DType moments : {DType::f32, DType::bf16})
            for (const std::int64_t step : {1, 1000}) {
              problem.step = step;
              BOOST_TEST_CONTEXT(shape_string(shape) << name_of(param) << name_of(grad) << name_of(moments) << step)
              compare(problem, random_state(shape, param, grad, moments, layout), layout);
            }
}

BOOST_AUTO_TEST_CASE(many_elements_on_many_threads_and_in_place) {
  AdamWProblem problem;
  problem.lr = 1e-3;
  const State s = random_state({33, 1033}, DType::f32, DType::bf16, DType::f32, Layout::contiguous);
  compare(problem, s, Layout::contiguous);
  const auto apart = run(*cpu(), problem, s, Layout::contiguous);
  adamw_step(*cpu(7), problem, {s.param, s.grad, s.m, s.v}, {s.param, s.m, s.v});
  BOOST_TEST(same_bytes(s.param, apart[0]));
  BOOST_TEST(same_bytes(s.m, apart[1]));
  BOOST_TEST(same_bytes(s.v, apart[2]));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
