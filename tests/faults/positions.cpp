// Faults of rotary positions.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support.hpp"

namespace dsalt::faults {

BOOST_AUTO_TEST_SUITE(positions)

namespace {

Tensor rotated(Backend& backend, const RopeProblem& problem, const RopeInputs& inputs) {
  const TensorView& x = inputs.x;
  const Tensor y = filled({x.shape.begin(), x.shape.begin() + x.rank}, nan, x.dtype);
  rope_forward(backend, problem, inputs, y);
  return y;
}

}  // namespace

BOOST_AUTO_TEST_CASE(rope_half_split_pairs) {
  on_every_backend(Operation::rope, all_floating, [](Backend& backend, DType dtype) {
    RopeProblem problem;
    problem.position = 1;
    const Tensor x = tensor({1, 1, 1, 4}, {1, 2, 3, 4}, dtype);
    const std::vector<double> expected = {std::cos(1) - 3 * std::sin(1), 2 * std::cos(.01) - 4 * std::sin(.01),
                                          3 * std::cos(1) + std::sin(1), 4 * std::cos(.01) + 2 * std::sin(.01)};
    const std::vector<double> table = {-1.984111, 1.959901, 2.462378, 4.019800};
    for (std::size_t n = 0; n < 4; ++n) BOOST_REQUIRE_SMALL(expected[n] - table[n], 1e-6);
    const double slack = dtype == DType::f64 ? 16 : 24;
    const Tensor y = rotated(backend, problem, {x, {}, {}});
    check_near(y, expected, slack);
    // the backward pass is the inverse rotation
    const Tensor back = filled({1, 1, 1, 4}, nan, dtype);
    rope_backward(backend, problem, {x, {}, {}}, x, back);
    check_near(back,
               {std::cos(1) + 3 * std::sin(1), 2 * std::cos(.01) + 4 * std::sin(.01), 3 * std::cos(1) - std::sin(1),
                4 * std::cos(.01) - 2 * std::sin(.01)},
               slack);
  });
}

BOOST_AUTO_TEST_CASE(rope_positions_restart_in_packs) {
  on_every_backend(Operation::rope, all_floating, [](Backend& backend, DType dtype) {
    const std::vector<double> position = {0, 1, 2, 0, 1};
    std::vector<double> x, expected;
    for (const double p : position) {
      x.insert(x.end(), {1, 0});
      expected.insert(expected.end(), {std::cos(p), std::sin(p)});
    }
    const Tensor packed = tensor({5, 1, 2}, x, dtype), cu = indices({3}, {0, 3, 5});
    check_near(rotated(backend, {}, {packed, {}, cu}), expected);

    // a first position for each sequence, a row beyond the last sequence that stays as it was
    const Tensor longer = filled({6, 1, 2}, nan, dtype);
    copy_elements(packed, longer.view().narrow(0, 0, 5));
    const Tensor y = filled({6, 1, 2}, 3.25, dtype), first = indices({2}, {10, 20});
    rope_forward(backend, {}, {longer, first, cu}, y);
    std::vector<double> shifted;
    for (const double p : {10, 11, 12, 20, 21}) shifted.insert(shifted.end(), {std::cos(p), std::sin(p)});
    check_near(y.view().narrow(0, 0, 5), shifted);
    check_all(y.view().narrow(0, 5, 1), 3.25);
  });
}

BOOST_AUTO_TEST_CASE(rope_prefill_equals_prefill_and_decode) {
  on_every_backend(Operation::rope, all_floating, [](Backend& backend, DType dtype) {
    const Tensor x = random_tensor({2, 3, 5, 8}, 54, dtype);
    const Tensor whole = rotated(backend, {}, {x, {}, {}});
    for (const std::vector<std::int64_t>& steps : {std::vector<std::int64_t>{3, 1, 1}, {1, 4}, {1, 1, 1, 1, 1}}) {
      std::int64_t start = 0;
      for (const std::int64_t length : steps) {
        RopeProblem problem;
        problem.position = start;
        const Tensor part(x.storage(), x.view().narrow(2, start, length));
        BOOST_TEST(same_bytes(rotated(backend, problem, {part, {}, {}}), whole.view().narrow(2, start, length)));
        const auto at = static_cast<std::int32_t>(start);
        const Tensor positions = indices({2}, {at, at});
        BOOST_TEST(same_bytes(rotated(backend, {}, {part, positions, {}}), whole.view().narrow(2, start, length)));
        start += length;
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(rope_precision_at_large_positions) {
  on_every_backend(Operation::rope, all_floating, [](Backend& backend, DType dtype) {
    const Tensor x = tensor({1, 1, 1, 2}, {1, 0}, dtype);
    BOOST_REQUIRE_SMALL(std::cos(257.) - .819306, 1e-6);
    BOOST_REQUIRE_SMALL(std::sin(257.) - -.573357, 1e-6);
    BOOST_REQUIRE_SMALL(std::cos(15962.) - -.908016, 1e-6);
    BOOST_REQUIRE_SMALL(std::sin(15962.) - .418936, 1e-6);
    for (const std::int64_t position : {0, 1, 257, 15962, 65537, 1000003, 2147483647}) {
      BOOST_TEST_CONTEXT("position " << position) {
        RopeProblem problem;
        problem.position = position;
        const auto angle = static_cast<double>(position);
        check_near(rotated(backend, problem, {x, {}, {}}), {std::cos(angle), std::sin(angle)}, 2);
        const Tensor positions = indices({1}, {static_cast<std::int32_t>(position)});
        check_near(rotated(backend, {}, {x, positions, {}}), {std::cos(angle), std::sin(angle)}, 2);
      }
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
