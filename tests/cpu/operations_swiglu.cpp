// SwiGLU on the CPU backend against the reference: any rank and layout, and gates far out on both sides.
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

std::vector<Tensor> run(Backend& backend, const Tensor& gate, const Tensor& up, const Tensor& dy, Layout layout) {
  const TensorView& v = gate.view();
  const Shape shape(v.shape.begin(), v.shape.begin() + v.rank);
  const Tensor y = fresh(shape, v.dtype, layout), dgate = fresh(shape, v.dtype, layout);
  const Tensor dup = fresh(shape, v.dtype, layout);
  swiglu_forward(backend, {gate, up}, y);
  swiglu_backward(backend, {gate, up}, dy, {dgate, dup});
  return {y, dgate, dup};
}

void compare(const Tensor& gate, const Tensor& up, const Tensor& dy, Layout layout) {
  const auto actual = run_on_cpu([&](Backend& b) { return run(b, gate, up, dy, layout); });
  const auto expected = run(*reference(), wide(gate), wide(up), wide(dy), Layout::contiguous);
  const Values g = values(gate), u = values(up), grad = values(dy);
  Values terms(g.size());
  for (std::size_t n = 0; n < g.size(); ++n) {
    const double sigma = 1 / (1 + std::exp(-g[n]));
    terms[n] = std::fabs(grad[n] * u[n]) * sigma * (1 + std::fabs(g[n]) / (1 + std::exp(g[n])));
  }
  check("y", actual[0], values(expected[0]));
  check("dgate", actual[1], values(expected[1]), terms);
  check("dup", actual[2], values(expected[2]));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(swiglu)

BOOST_AUTO_TEST_CASE(shapes_dtypes_and_layouts) {
  for (const Shape& shape :
       {Shape{}, Shape{0}, Shape{1}, Shape{17}, Shape{3, 0, 2}, Shape{5, 65}, Shape{2, 3, 1, 2, 7}})
    for (const DType dtype : main_dtypes)
      for (const Layout layout : all_layouts)
        BOOST_TEST_CONTEXT(shape_string(shape) << " " << name_of(dtype) << " layout " << static_cast<int>(layout))
  compare(random(shape, 1, dtype, 8, layout), random(shape, 2, dtype, 3, Layout::contiguous),
          random(shape, 3, dtype, 1, layout), layout);
}

BOOST_AUTO_TEST_CASE(many_elements_on_many_threads) {
  const Shape shape{131, 1031};
  compare(random(shape, 1, DType::f32, 20), random(shape, 2), random(shape, 3), Layout::contiguous);
}

BOOST_AUTO_TEST_CASE(far_gates) {
  const Values gates{-300,       -120,   -104, -103,  -100, -95, -90, -88, -87, -50,
                     -1.2784645, -1e-30, 0,    1e-30, 50,   88,  104, 1e4, 1e30};
  const Shape shape{static_cast<std::int64_t>(gates.size())};
  for (const double up : {1.0, 1e20}) {
    const Tensor dy = tensor(shape, Values(gates.size(), 1));
    if (up == 1.0)
      compare(tensor(shape, gates), tensor(shape, Values(gates.size(), up)), dy, Layout::contiguous);
    else  // exp(gate) is subnormal in float32, the product with up is not
      compare(tensor({7}, {-103, -100, -95, -90, -88, -87, -50}), tensor({7}, Values(7, up)), tensor({7}, Values(7, 1)),
              Layout::contiguous);
  }
}

// sigma(gate) is far below float32, but what it multiplies may bring it back, or not.
BOOST_AUTO_TEST_CASE(tiny_sigma_meets_huge_factors) {
  for (const double gate : {-150., -174., -175., -180., -200., -260., -1e4, -1e38, -3.4e38})
    for (const double up : {1., 1e38, 3.4e38})
      for (const double dy : {1., 1e-30, 3.4e38}) BOOST_TEST_CONTEXT(gate << " " << up << " " << dy)
  compare(tensor({1}, {gate}), tensor({1}, {up}), tensor({1}, {dy}), Layout::contiguous);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
