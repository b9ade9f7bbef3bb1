// The window predictor w = n_min + sigma(<x, a_h> + c_h)(n_max - n_min), by hand and by finite differences.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

struct WindowCall {
  WindowProblem problem;
  Tensor x, weight, bias, dwindow;
  Tensor window{}, dx{}, dweight{}, dbias{};

  void forward() {
    window = filled(x.view().rank == 2 ? Shape{x.view().shape[0], weight.view().shape[0]}
                                       : Shape{x.view().shape[0], weight.view().shape[0], x.view().shape[1]},
                    quiet_nan, statistics_dtype(x.view().dtype));
    window_sizes_forward(reference(), problem, {x, weight, bias}, window);
  }
  void backward() {
    forward();
    dx = like(x);
    dweight = like(weight);
    dbias = like(bias);
    window_sizes_backward(reference(), problem, {x, weight, bias}, dwindow, {dx, dweight, dbias});
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(window_sizes)

// a = c = 0, the start of training: sigma = 1/2, w = (2 + 10)/2 = 6 for every token and head; dz = dw (10 - 2)/4 = 2
// dw. x = [1, 2] and [3, 4]; dw of head 0 is [1, 0], of head 1 [1, 10]: da_0 = 2 [1, 2], da_1 = 2 [1, 2] + 20 [3, 4],
// dc = [2, 22], dx = 0 because a = 0.
BOOST_AUTO_TEST_CASE(zero_start) {
  WindowCall call{{2, 10, false},
                  tensor({1, 2, 2}, {1, 2, 3, 4}),
                  filled({2, 2}, 0),
                  filled({2}, 0),
                  tensor({1, 2, 2}, {1, 0, 1, 10})};
  call.backward();
  check_close("window", call.window, {6, 6, 6, 6});
  check_close("dweight", call.dweight, {2, 4, 62, 84});
  check_close("dbias", call.dbias, {2, 22});
  check_close("dx", call.dx, {0, 0, 0, 0});
}

// <x, a> + c = 1 * ln 3 + 0 = ln 3: sigma = 3/4, w = 1 + 3/4 * 8 = 7; dz = dw 8 * 3/16 = 3/2 dw.
// dx = dz a = 3/2 [ln 3, 5] dw, da = dz x.
BOOST_AUTO_TEST_CASE(by_hand) {
  const double ln3 = std::log(3.0);
  WindowCall call{
      {1, 9, false}, tensor({1, 1, 2}, {1, 0}), tensor({1, 2}, {ln3, 5}), tensor({1}, {0}), tensor({1, 1, 1}, {2})};
  call.backward();
  check_close("window", call.window, {7});
  check_close("dx", call.dx, {3 * ln3, 15});
  check_close("dweight", call.dweight, {3, 0});
  check_close("dbias", call.dbias, {3});
}

// Floored: w = 1 + 1/2 * 4.5 = 3.25 becomes 3, and nothing flows back.
BOOST_AUTO_TEST_CASE(floored) {
  WindowCall call{
      {1, 5.5, true}, tensor({1, 1, 1}, {7}), tensor({1, 1}, {0}), tensor({1}, {0}), tensor({1, 1, 1}, {2})};
  call.backward();
  check_same("window", call.window, Values{3});
  check_same("dx", call.dx, Values{0});
  check_same("dweight", call.dweight, Values{0});
  check_same("dbias", call.dbias, Values{0});
}

// sigma saturates at the ends without a NaN.
BOOST_AUTO_TEST_CASE(saturated) {
  WindowCall call{
      {1, 5, false}, tensor({1, 2, 1}, {-1e4, 1e4}), tensor({1, 1}, {1}), tensor({1}, {0}), tensor({1, 1, 2}, {1, 1})};
  call.backward();
  check_same("window", call.window, Values{1, 5});
  check_close("dx", call.dx, {0, 0}, 0);
}

BOOST_AUTO_TEST_CASE(differences) {
  WindowCall call{{2, 9, false}, random({2, 3, 4}, 1), random({3, 4}, 2), random({3}, 3), random({2, 3, 3}, 4)};
  call.backward();
  const WindowCall analytic = call;
  const auto objective = [&] {
    call.forward();
    return inner(call.window, call.dwindow);
  };
  check_differences("dx", call.x, analytic.dx, objective);
  check_differences("dweight", call.weight, analytic.dweight, objective);
  check_differences("dbias", call.bias, analytic.dbias, objective);
}

// A pack of R rows is one padded sequence with heads last.
BOOST_AUTO_TEST_CASE(packed_equals_padded) {
  for (const DType dtype : floating_dtypes) {
    WindowCall padded{{2, 9, false},
                      random({1, 5, 4}, 1, dtype),
                      random({3, 4}, 2, dtype),
                      random({3}, 3, dtype),
                      random({1, 3, 5}, 4, statistics_dtype(dtype))};
    WindowCall packed = padded;
    packed.x = Tensor(padded.x.storage(), padded.x.view().select(0, 0));
    packed.dwindow = Tensor(padded.dwindow.storage(), padded.dwindow.view().select(0, 0).transpose(0, 1));
    padded.backward();
    packed.backward();
    check_same("window", packed.window, padded.window.view().select(0, 0).transpose(0, 1));
    check_same("dx", packed.dx, padded.dx.view().select(0, 0));
    check_same("dweight", packed.dweight, padded.dweight);
    check_same("dbias", packed.dbias, padded.dbias);
  }
}

BOOST_AUTO_TEST_SUITE_END()
