// AdamW steps worked out by hand.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

AdamWProblem settings(double lr, double weight_decay, std::int64_t step) {
  AdamWProblem problem;
  problem.lr = lr;
  problem.weight_decay = weight_decay;
  problem.step = step;
  return problem;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adamw)

// Step 1, p = 2, g = -3, m = v = 0: m = 0.1 g = -0.3, v = 0.05 g^2 = 0.45, mhat = -3, vhat = 9, eps = 1:
// p = 2 (1 - 0.1 * 0.5) - 0.1 (-3)/(3 + 1) = 1.9 + 0.075 = 1.975.
BOOST_AUTO_TEST_CASE(first_step) {
  const Tensor p = tensor({1}, {2}), g = tensor({1}, {-3}), m = tensor({1}, {0}), v = tensor({1}, {0});
  const Tensor new_p = like(p), new_m = like(m), new_v = like(v);
  AdamWProblem problem = settings(0.1, 0.5, 1);
  problem.eps = 1;
  adamw_step(reference(), problem, {p, g, m, v}, {new_p, new_m, new_v});
  check_close("param", new_p, {1.975});
  check_close("m", new_m, {-0.3});
  check_close("v", new_v, {0.45});
}

// Step 2 with beta1 = beta2 = 1/2, eps = 0, g = 3, m = 1, v = 7: m = (1 + 3)/2 = 2, v = (7 + 9)/2 = 8;
// corrections 1 - 1/4 = 3/4: mhat = 8/3, vhat = 32/3; p = 1 - 0.6 (8/3)/sqrt(32/3).
BOOST_AUTO_TEST_CASE(second_step) {
  const Tensor p = tensor({1}, {1}), g = tensor({1}, {3}), m = tensor({1}, {1}), v = tensor({1}, {7});
  AdamWProblem problem{0.6, 0.5, 0.5, 0, 0, 2};
  adamw_step(reference(), problem, {p, g, m, v}, {p, m, v});  // in place
  check_close("param", p, {1 - 0.6 * (8.0 / 3) / std::sqrt(32.0 / 3)});
  check_close("m", m, {2});
  check_close("v", v, {8});
}

// g = 0, lr = 0.1, wd = 0.1: only the decay, p = 1 * 0.99; without decay p stays.
BOOST_AUTO_TEST_CASE(decay_alone) {
  for (const double decay : {0.1, 0.0}) {
    const Tensor p = tensor({1}, {1}), zero = tensor({1}, {0}), m = tensor({1}, {0}), v = tensor({1}, {0});
    adamw_step(reference(), settings(0.1, decay, 1), {p, zero, m, v}, {p, m, v});
    check_close("param", p, {1 - 0.1 * decay});
  }
}

// Float32 master weights with bfloat16 gradients: 100 steps of g = 1 at lr = 6e-4 move p from 1 to 0.94.
BOOST_AUTO_TEST_CASE(hundred_small_steps) {
  const Tensor p = filled({1}, 1, DType::f32), g = filled({1}, 1, DType::bf16), m = filled({1}, 0, DType::f32),
               v = filled({1}, 0, DType::f32);
  for (std::int64_t step = 1; step <= 100; ++step)
    adamw_step(reference(), settings(6e-4, 0, step), {p, g, m, v}, {p, m, v});
  check_close("param", p, {0.94}, 2e-6);
}

// p uses m and v before they are rounded: with bfloat16 states, step 1 still moves by exactly lr g / |g|.
BOOST_AUTO_TEST_CASE(states_round_once_at_the_end) {
  const Tensor p = filled({1}, 1, DType::f32), g = tensor({1}, {0.0123}, DType::f32), m = filled({1}, 0, DType::bf16),
               v = filled({1}, 0, DType::bf16);
  const double gradient = values_of(g)[0];
  AdamWProblem problem = settings(0.25, 0, 1);
  problem.eps = 0;
  adamw_step(reference(), problem, {p, g, m, v}, {p, m, v});
  check_same("param", p, Values{0.75});
  check_same("m", m, tensor({1}, {(1 - 0.9) * gradient}, DType::bf16));
  check_same("v", v, tensor({1}, {(1 - 0.95) * gradient * gradient}, DType::bf16));
}

BOOST_AUTO_TEST_CASE(every_element_and_stride) {
  const Tensor p = random({3, 4}, 1), g = random({4, 3}, 2), m = random({3, 4}, 3), v = filled({3, 4}, 0.5);
  const Tensor all_p = like(p), all_m = like(m), all_v = like(v);
  const TensorView g_rows = g.view().transpose(0, 1);
  adamw_step(reference(), settings(0.1, 0.2, 3), {p, g_rows, m, v}, {all_p, all_m, all_v});
  for (std::int64_t r = 0; r < 3; ++r)
    for (std::int64_t c = 0; c < 4; ++c) {
      const auto at = [&](const TensorView& view) { return view.select(0, r).select(0, c); };
      const Tensor one_p = like(at(p)), one_m = like(at(m)), one_v = like(at(v));
      adamw_step(reference(), settings(0.1, 0.2, 3), {at(p), at(g_rows), at(m), at(v)}, {one_p, one_m, one_v});
      check_same("param", one_p, at(all_p));
      check_same("m", one_m, at(all_m));
      check_same("v", one_v, at(all_v));
    }
}

BOOST_AUTO_TEST_SUITE_END()
