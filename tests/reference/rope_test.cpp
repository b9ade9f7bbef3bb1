// Rotary position embedding against written-out rotations.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

Values rotated(const RopeProblem& problem, const Tensor& x, const TensorView& positions = {},
               const TensorView& cu_seqlens = {}) {
  const Tensor y = like(x);
  rope_forward(reference(), problem, {x, positions, cu_seqlens}, y);
  return values_of(y);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rope)

// x = [1, 2, 3, 4] at position 1, D = 4: pair (1, 3) turns by 1, pair (2, 4) by 10000^(-1/2) = 0.01:
// [cos 1 - 3 sin 1, 2 cos .01 - 4 sin .01, sin 1 + 3 cos 1, 2 sin .01 + 4 cos .01].
BOOST_AUTO_TEST_CASE(half_split_pairs) {
  const Tensor x = tensor({1, 1, 2, 4}, {1, 2, 3, 4, 1, 2, 3, 4});
  const Values y = rotated({}, x);
  check_same("position 0", Values(y.begin(), y.begin() + 4), Values{1, 2, 3, 4});
  check_close("position 1", Values(y.begin() + 4, y.end()), {-1.984111, 1.959901, 2.462378, 4.019800}, 5e-7);
  check_close("position 1", Values(y.begin() + 4, y.end()),
              {std::cos(1.0) - 3 * std::sin(1.0), 2 * std::cos(.01) - 4 * std::sin(.01),
               std::sin(1.0) + 3 * std::cos(1.0), 2 * std::sin(.01) + 4 * std::cos(.01)});
}

// rope_scale divides the angle, base sets the falling frequencies: D = 4, base 16, scale 2, position 6: angles 3, 3/4.
BOOST_AUTO_TEST_CASE(base_and_scale) {
  const RopeProblem problem{16, 2, 6};
  check_close("y", rotated(problem, tensor({1, 1, 1, 4}, {1, 1, 0, 0})),
              {std::cos(3.0), std::cos(.75), std::sin(3.0), std::sin(.75)});
}

// Angles in double, sin and cos rounded to float32: x = (1, 0) shows them.
BOOST_AUTO_TEST_CASE(precision) {
  const Tensor x = tensor({1, 1, 1, 2}, {1, 0}, DType::f32);
  check_close("position 257", rotated({10000, 1, 257}, x), {.819306, -.573357}, 5e-7);
  check_close("position 15962", rotated({10000, 1, 15962}, x), {-.908016, .418936}, 5e-7);
  check_same("position 15962", rotated({10000, 1, 15962}, x),
             Values{static_cast<float>(std::cos(15962.0)), static_cast<float>(std::sin(15962.0))});
  check_same("float64", rotated({10000, 1, 257}, tensor({1, 1, 1, 2}, {1, 0})),
             Values{std::cos(257.0), std::sin(257.0)});
  // With s and c the float32 sine and cosine, x = (s, c) gives s c - c s = 0 exactly, and s s + c c rounded once.
  for (const std::int64_t position : {1, 2, 3, 257, 15962}) {
    const double c = static_cast<float>(std::cos(static_cast<double>(position)));
    const double s = static_cast<float>(std::sin(static_cast<double>(position)));
    check_same("(s, c)", rotated({10000, 1, position}, tensor({1, 1, 1, 2}, {s, c}, DType::f32)),
               Values{0, static_cast<float>(s * s + c * c)});
  }
}

// cu_seqlens = [0, 3, 5]: positions 0, 1, 2, 0, 1; the sixth row is neither read nor written.
BOOST_AUTO_TEST_CASE(packed_positions_restart) {
  Values x(6 * 2);
  for (std::size_t n = 0; n < 6; ++n) x[2 * n] = n < 5 ? 1 : quiet_nan;
  const Tensor packed = tensor({6, 1, 2}, x), cu = indices({3}, {0, 3, 5});
  const auto expect = [](const Values& positions) {
    Values y;
    for (const double p : positions) y.insert(y.end(), {std::cos(p), std::sin(p)});
    y.insert(y.end(), {quiet_nan, quiet_nan});
    return y;
  };
  check_same("y", rotated({}, packed, {}, cu), expect({0, 1, 2, 0, 1}));
  check_same("from position", rotated({10000, 1, 7}, packed, {}, cu), expect({7, 8, 9, 7, 8}));
  check_same("from positions", rotated({10000, 1, 7}, packed, indices({2}, {4, 20}), cu), expect({4, 5, 6, 20, 21}));
}

// Prefill of 5 equals prefill of 3 and two decodes; sequences of a batch may start anywhere.
BOOST_AUTO_TEST_CASE(prefill_equals_decode) {
  for (const DType dtype : floating_dtypes) {
    const Tensor x = random({2, 3, 5, 4}, 1, dtype);
    const Tensor whole = like(x), parts = like(x);
    const auto rotate = [&](std::int64_t start, std::int64_t length) {
      rope_forward(reference(), {10000, 1, 0},
                   {x.view().narrow(2, start, length), indices({2}, {10.0 + start, 70.0 + start}), {}},
                   parts.view().narrow(2, start, length));
    };
    rope_forward(reference(), {}, {x, indices({2}, {10, 70}), {}}, whole);
    rotate(0, 3);
    rotate(3, 1);
    rotate(4, 1);
    check_same("parts", parts, whole);
  }
}

// The backward pass turns back: of y it gives x, and <dy, y(x)> = <dx, x> because the map is linear.
BOOST_AUTO_TEST_CASE(backward_is_the_inverse) {
  const RopeProblem problem{100, 1.5, 9};
  const Tensor x = random({2, 2, 3, 6}, 1), dy = random({2, 2, 3, 6}, 2), y = like(x), back = like(x), dx = like(x);
  rope_forward(reference(), problem, {x, {}, {}}, y);
  rope_backward(reference(), problem, {}, y, back);
  check_close("x", back, values_of(x));
  rope_backward(reference(), problem, {}, dy, dx);
  check_differences("dx", x, dx, [&] {
    rope_forward(reference(), problem, {x, {}, {}}, y);
    return inner(y, dy);
  });
}

BOOST_AUTO_TEST_CASE(in_place_and_empty) {
  const Tensor x = random({1, 2, 3, 4}, 1, DType::f32);
  const Values expected = rotated({}, x);
  rope_forward(reference(), {}, {x, {}, {}}, x);
  check_same("in place", x, expected);
  check_same("no tokens", rotated({}, filled({2, 2, 0, 4}, 0)), Values{});
}

BOOST_AUTO_TEST_SUITE_END()
