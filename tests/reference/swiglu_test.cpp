// SwiGLU y = silu(gate) up.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

BOOST_AUTO_TEST_SUITE(swiglu)

// gate = ln 3: sigma = 3/4, silu = 3/4 ln 3, silu' = 3/4 (1 + ln 3 / 4). gate = 0: silu = 0, silu' = 1/2.
BOOST_AUTO_TEST_CASE(by_hand) {
  const double ln3 = std::log(3.0);
  const Tensor gate = tensor({2}, {ln3, 0}), up = tensor({2}, {2, 7}), dy = tensor({2}, {10, 3});
  const Tensor y = like(gate), dgate = like(gate), dup = like(up);
  swiglu_forward(reference(), {gate, up}, y);
  swiglu_backward(reference(), {gate, up}, dy, {dgate, dup});
  check_close("y", y, {1.5 * ln3, 0});
  check_close("dgate", dgate, {15 * (1 + ln3 / 4), 10.5});
  check_close("dup", dup, {7.5 * ln3, 0});
}

// silu(z) is z for large z and 0 for very negative z; so are its slopes 1 and 0.
BOOST_AUTO_TEST_CASE(both_ends) {
  const Tensor gate = tensor({2}, {1e4, -1e4}, DType::f32), one = filled({2}, 1, DType::f32);
  const Tensor y = like(gate), dgate = like(gate), dup = like(gate);
  swiglu_forward(reference(), {gate, one}, y);
  swiglu_backward(reference(), {gate, one}, one, {dgate, dup});
  check_close("y", y, {1e4, 0}, 0);
  check_close("dgate", dgate, {1, 0}, 0);
  check_close("dup", dup, {1e4, 0}, 0);
}

BOOST_AUTO_TEST_CASE(differences) {
  const Tensor gate = random({2, 3, 4}, 1, DType::f64, 3), up = random({2, 3, 4}, 2), dy = random({2, 3, 4}, 3);
  const Tensor y = like(gate), dgate = like(gate), dup = like(up);
  swiglu_backward(reference(), {gate, up}, dy, {dgate, dup});
  const auto objective = [&] {
    swiglu_forward(reference(), {gate, up}, y);
    return inner(y, dy);
  };
  check_differences("dgate", gate, dgate, objective);
  check_differences("dup", up, dup, objective);
}

// Any rank (a scalar too), any strides, absent gradients.
BOOST_AUTO_TEST_CASE(forms) {
  for (const DType dtype : floating_dtypes) {
    const Tensor gate = random({2, 5}, 1, dtype), up = random({5, 2}, 2, dtype), y = like(gate), up_copy = like(gate);
    copy_elements(up.view().transpose(0, 1), up_copy);
    swiglu_forward(reference(), {gate, up.view().transpose(0, 1)}, y);
    const Tensor same = like(gate);
    swiglu_forward(reference(), {gate, up_copy}, same);
    check_same("strided", y, same);
    const TensorView one_gate = gate.view().select(0, 1).select(0, 3), one_up = up.view().select(0, 3).select(0, 1);
    const Tensor one_y = like(one_gate);
    swiglu_forward(reference(), {one_gate, one_up}, one_y);
    check_same("scalar", one_y, y.view().select(0, 1).select(0, 3));
    const Tensor dgate = like(gate), dup = like(gate), alone = like(gate);
    swiglu_backward(reference(), {gate, up_copy}, y, {dgate, dup});
    swiglu_backward(reference(), {gate, up_copy}, y, {alone, {}});
    check_same("dgate alone", alone, dgate);
    swiglu_backward(reference(), {gate, up_copy}, y, {{}, alone});
    check_same("dup alone", alone, dup);
  }
}

BOOST_AUTO_TEST_SUITE_END()
