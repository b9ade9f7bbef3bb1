// RoPE on the CPU backend: the published faults (positions, precision of large angles) by hand, then the reference on
// both forms, with shared and separate positions.
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

/// y and the inverse rotation of x.
std::vector<Tensor> run(Backend& backend, const RopeProblem& problem, const RopeInputs& inputs, const Tensor& x,
                        Layout layout) {
  const TensorView& v = x.view();
  const Shape shape(v.shape.begin(), v.shape.begin() + v.rank);
  const Tensor y = fresh(shape, v.dtype, layout), dx = fresh(shape, v.dtype, layout);
  RopeInputs with_x = inputs;
  with_x.x = x;
  rope_forward(backend, problem, with_x, y);
  rope_backward(backend, problem, inputs, x, dx);
  return {y, dx};
}

void compare(const RopeProblem& problem, const RopeInputs& inputs, const Tensor& x, Layout layout) {
  const auto actual = run_on_cpu([&](Backend& b) { return run(b, problem, inputs, x, layout); });
  const auto expected = run(*reference(), problem, inputs, wide(x), Layout::contiguous);
  const Values from = values(x);
  const auto d = static_cast<std::size_t>(x.view().shape[x.view().rank - 1]);
  Values terms(from.size());
  for (std::size_t n = 0; n < from.size(); ++n) {
    const std::size_t partner = n % d < d / 2 ? n + d / 2 : n - d / 2;
    terms[n] = std::fabs(from[n]) + std::fabs(from[partner]);
  }
  check("y", actual[0], values(expected[0]), terms);
  check("dx", actual[1], values(expected[1]), terms);
}

void check_near(const Tensor& actual, const Values& expected) {
  const Values found = values(actual);
  for (std::size_t n = 0; n < expected.size(); ++n) BOOST_TEST(std::fabs(found[n] - expected[n]) <= 1e-6);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rope)

BOOST_AUTO_TEST_CASE(half_split_at_position_one) {
  const Tensor x = tensor({1, 1, 1, 4}, {1, 2, 3, 4}), y = fresh({1, 1, 1, 4}, DType::f32);
  RopeProblem problem;
  problem.position = 1;
  rope_forward(*cpu(), problem, {x, {}, {}}, y);
  check_near(y, {-1.984111, 1.959901, 2.462378, 4.019800});
}

BOOST_AUTO_TEST_CASE(precision_of_large_positions) {
  const Tensor x = tensor({1, 1, 1, 2}, {1, 0}), y = fresh({1, 1, 1, 2}, DType::f32);
  RopeProblem problem;  // the one frequency of D = 2 is 1
  problem.position = 257;
  rope_forward(*cpu(), problem, {x, {}, {}}, y);
  check_near(y, {.819306, -.573357});
  problem.position = 15962;
  rope_forward(*cpu(), problem, {x, {}, {}}, y);
  check_near(y, {-.908016, .418936});
}

BOOST_AUTO_TEST_CASE(positions_restart_in_a_pack_and_continue_in_decode) {
  const auto backend = cpu(2);
  const Tensor x = random({7, 3, 6}, 5);
  const Tensor y = fresh({7, 3, 6}, DType::f32);
  const Tensor cu = tensor({3}, {0, 3, 5}, DType::i32);
  rope_forward(*backend, {}, {x, {}, cu}, y);
  for (const auto& [start, length] : {std::pair{0, 3}, std::pair{3, 2}}) {
    // The sequence alone, as [1,H,N,D]; then split into a prefill and single decode steps.
    const TensorView rows = x.view().narrow(0, start, length);
    TensorView padded = rows.transpose(0, 1);
    padded.rank = 4;
    padded.shape = {1, 3, length, 6};
    padded.strides = {0, rows.strides[1], rows.strides[0], rows.strides[2]};
    const Tensor alone = fresh({1, 3, length, 6}, DType::f32);
    rope_forward(*backend, {}, {padded, {}, {}}, alone);
    BOOST_TEST(same_bytes(alone.view().select(0, 0), y.view().narrow(0, start, length).transpose(0, 1)));
    for (std::int64_t n = 0; n < length; ++n) {
      const Tensor step = fresh({1, 3, 1, 6}, DType::f32);
      const Tensor position = tensor({1}, {static_cast<double>(n)}, DType::i32);
      rope_forward(*backend, {}, {padded.narrow(2, n, 1), position, {}}, step);
      BOOST_TEST(same_bytes(step, alone.view().narrow(2, n, 1)));
    }
  }
  const Tensor untouched = fresh({2, 3, 6}, DType::f32);
  BOOST_TEST(same_bytes(y.view().narrow(0, 5, 2), untouched), "rows past cu_seqlens are not written");
}

BOOST_AUTO_TEST_CASE(against_the_reference) {
  for (const DType dtype : main_dtypes)
    for (const Layout layout : all_layouts)
      BOOST_TEST_CONTEXT(name_of(dtype) << " layout " << static_cast<int>(layout)) {
        RopeProblem problem;
        problem.base = 500;
        problem.rope_scale = 1.5;
        problem.position = 3;
        compare(problem, {}, random({2, 3, 17, 10}, 1, dtype, 2, layout), layout);
        compare(problem, {}, random({1, 1, 1, 2}, 1, dtype, 2, layout), layout);
        compare(problem, {}, random({2, 0, 3, 4}, 1, dtype, 2, layout), layout);
        compare(problem, {}, random({2, 1, 0, 4}, 1, dtype, 2, layout), layout);
        const Tensor positions = tensor({2}, {100000, 7}, DType::i32);
        compare({}, {{}, positions, {}}, random({2, 3, 5, 6}, 2, dtype, 2, layout), layout);
        const Tensor cu = tensor({5}, {0, 0, 20, 20, 23}, DType::i32);
        const Tensor starts = tensor({4}, {9, 1000, 3, 0}, DType::i32);
        compare({}, {{}, {}, cu}, random({23, 2, 8}, 3, dtype, 2, layout), layout);
        compare({}, {{}, starts, cu}, random({23, 2, 8}, 3, dtype, 2, layout), layout);
      }
}

BOOST_AUTO_TEST_CASE(long_sequences_on_many_threads) {
  compare({}, {}, random({2, 5, 403, 34}, 4), Layout::contiguous);
  for (const DType dtype : main_dtypes)  // rows of whole cache lines, converted together
    compare({}, {}, random({2, 3, 139, 32}, 4, dtype), Layout::contiguous);
}

BOOST_AUTO_TEST_CASE(in_place) {
  const Tensor x = random({2, 3, 5, 8}, 9), y = fresh({2, 3, 5, 8}, DType::f32);
  rope_forward(*cpu(), {}, {x, {}, {}}, y);
  rope_forward(*cpu(), {}, {x, {}, {}}, x);
  BOOST_TEST(same_bytes(x, y));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
