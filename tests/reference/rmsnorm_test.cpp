// RMSNorm y = gamma x / sqrt(mean(x^2) + eps), by hand and by finite differences.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

BOOST_AUTO_TEST_SUITE(rmsnorm)

// x = [3, 4], eps = 0: mean(x^2) = 25/2, r = sqrt(2)/5; y = r [1 * 3, 2 * 4].
// dy = [1, 0]: g = [1, 0], <g, x> = 3, r^2 <g, x>/d = 2/25 * 3/2 = 3/25: dx = r ([1, 0] - 3/25 [3, 4])
// = r [16/25, -12/25]. dgamma = r dy x = [3 r, 0].
BOOST_AUTO_TEST_CASE(by_hand) {
  const Tensor x = tensor({1, 2}, {3, 4}), gamma = tensor({2}, {1, 2}), dy = tensor({1, 2}, {1, 0});
  const Tensor y = like(x), dx = like(x), dgamma = like(gamma);
  const double r = std::sqrt(2.0) / 5;
  rmsnorm_forward(reference(), {0}, {x, gamma}, y);
  rmsnorm_backward(reference(), {0}, {x, gamma}, dy, {dx, dgamma});
  check_close("y", y, {3 * r, 8 * r});
  check_close("dx", dx, {r * 16 / 25, -r * 12 / 25});
  check_close("dgamma", dgamma, {3 * r, 0});
}

// x = 0: y = 0, dx = dy gamma / sqrt(eps).
BOOST_AUTO_TEST_CASE(zero_rows) {
  const Tensor x = filled({2, 2}, 0), gamma = tensor({2}, {1, 2}), dy = tensor({2, 2}, {1, 1, 0, 3});
  const Tensor y = like(x), dx = like(x), dgamma = like(gamma);
  rmsnorm_forward(reference(), {}, {x, gamma}, y);
  rmsnorm_backward(reference(), {}, {x, gamma}, dy, {dx, dgamma});
  check_same("y", y, Values(4, 0));
  check_close("dx", dx, {1000, 2000, 0, 6000}, 1e-12);
  check_close("dgamma", dgamma, {0, 0}, 0);
}

BOOST_AUTO_TEST_CASE(differences) {
  const RmsNormProblem problem{0.3};
  const Tensor x = random({2, 3, 5}, 1), gamma = random({5}, 2), dy = random({2, 3, 5}, 3);
  const Tensor y = like(x), dx = like(x), dgamma = like(gamma);
  rmsnorm_backward(reference(), problem, {x, gamma}, dy, {dx, dgamma});
  const auto objective = [&] {
    rmsnorm_forward(reference(), problem, {x, gamma}, y);
    return inner(y, dy);
  };
  check_differences("dx", x, dx, objective);
  check_differences("dgamma", gamma, dgamma, objective);
}

// Any rank, any strides, absent gradients, gamma in the statistics dtype, in place.
BOOST_AUTO_TEST_CASE(forms) {
  for (const DType dtype : floating_dtypes) {
    const Tensor x = random({4, 3, 2}, 1, dtype), gamma = random({2}, 2, statistics_dtype(dtype));
    const Tensor y = like(x), strided = filled({3, 4, 2}, quiet_nan, dtype);
    rmsnorm_forward(reference(), {}, {x, gamma}, y);
    rmsnorm_forward(reference(), {}, {x, gamma}, strided.view().transpose(0, 1));
    check_same("strided", strided.view().transpose(0, 1), y);
    const TensorView row = x.view().select(0, 1).select(0, 2);
    const Tensor y_row = like(row);
    rmsnorm_forward(reference(), {}, {row, gamma}, y_row);
    check_same("rank 1", y_row, y.view().select(0, 1).select(0, 2));
    const Tensor dx = like(x), dgamma = like(gamma), dx_alone = like(x), dgamma_alone = like(gamma);
    rmsnorm_backward(reference(), {}, {x, gamma}, y, {dx, dgamma});
    rmsnorm_backward(reference(), {}, {x, gamma}, y, {dx_alone, {}});
    rmsnorm_backward(reference(), {}, {x, gamma}, y, {{}, dgamma_alone});
    check_same("dx alone", dx_alone, dx);
    check_same("dgamma alone", dgamma_alone, dgamma);
    rmsnorm_forward(reference(), {}, {x, gamma}, x);
    check_same("in place", x, y);
  }
}

BOOST_AUTO_TEST_SUITE_END()
