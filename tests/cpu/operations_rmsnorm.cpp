// RMSNorm on the CPU backend against the reference: shapes, dtypes, layouts, scales at the ends of the range, and rows
// that do not depend on their batch.
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

struct Setup {
  RmsNormProblem problem;
  Tensor x, gamma, dy;
  Layout layout = Layout::contiguous;

  std::vector<Tensor> run(Backend& backend, const Tensor& x, const Tensor& gamma, const Tensor& dy) const {
    const TensorView& v = x.view();
    const Shape shape(v.shape.begin(), v.shape.begin() + v.rank);
    const Tensor y = fresh(shape, v.dtype, layout), dx = fresh(shape, v.dtype, layout);
    const Tensor dgamma = fresh({shape.back()}, gamma.view().dtype, layout);
    rmsnorm_forward(backend, problem, {x, gamma}, y);
    rmsnorm_backward(backend, problem, {x, gamma}, dy, {dx, dgamma});
    return {y, dx, dgamma};
  }
};

void compare(const Setup& setup) {
  const auto actual = run_on_cpu([&](Backend& b) { return setup.run(b, setup.x, setup.gamma, setup.dy); });
  const auto expected = setup.run(*reference(), wide(setup.x), wide(setup.gamma), wide(setup.dy));
  const Values x = values(setup.x), gamma = values(setup.gamma), dy = values(setup.dy);
  const std::size_t d = gamma.size(), rows = d ? x.size() / d : 0;
  Values dx_terms(x.size()), dgamma_terms(d);
  for (std::size_t r = 0; r < rows; ++r) {
    double squares = 0, products = 0;
    for (std::size_t c = 0; c < d; ++c) {
      squares += x[r * d + c] * x[r * d + c];
      products += std::fabs(gamma[c] * dy[r * d + c] * x[r * d + c]);
    }
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(d) + setup.problem.eps);
    for (std::size_t c = 0; c < d; ++c) {
      dx_terms[r * d + c] = inverse * std::fabs(gamma[c] * dy[r * d + c]) +
                            std::fabs(x[r * d + c]) * inverse * inverse * inverse * products / static_cast<double>(d);
      dgamma_terms[c] += std::fabs(dy[r * d + c] * x[r * d + c]) * inverse;
    }
  }
  check("y", actual[0], values(expected[0]));
  check("dx", actual[1], values(expected[1]), dx_terms);
  check("dgamma", actual[2], values(expected[2]), dgamma_terms);
}

Setup random_setup(const Shape& shape, DType dtype, DType gamma_dtype, Layout layout, double size = 3) {
  Setup setup;
  setup.layout = layout;
  setup.x = random(shape, 1, dtype, size, layout);
  setup.gamma = random({shape.back()}, 2, gamma_dtype, 2, layout);
  setup.dy = random(shape, 3, dtype, 1, layout);
  return setup;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rmsnorm)

BOOST_AUTO_TEST_CASE(shapes_dtypes_and_layouts) {
  for (const Shape& shape : {Shape{0, 5}, Shape{1}, Shape{1, 1}, Shape{3, 17}, Shape{17, 65}, Shape{2, 3, 4, 7}})
    for (const DType dtype : main_dtypes)
      for (const Layout layout : all_layouts)
        BOOST_TEST_CONTEXT(shape_string(shape) << " " << name_of(dtype) << " layout " << static_cast<int>(layout)) {
          compare(random_setup(shape, dtype, dtype, layout));
          compare(random_setup(shape, dtype, DType::f32, layout));
        }
}

BOOST_AUTO_TEST_CASE(many_rows_on_many_threads) {
  compare(random_setup({3001, 65}, DType::f32, DType::f32, Layout::contiguous));
  for (const DType dtype : main_dtypes) compare(random_setup({19, 2085}, dtype, DType::f32, Layout::strided));
}

BOOST_AUTO_TEST_CASE(scales_at_the_ends_of_the_range) {
  for (const double size : {1e-40, 1e-30, 1e-3, 1e30, 3e38}) {
    Setup setup = random_setup({5, 33}, DType::f32, DType::f32, Layout::contiguous, size);
    setup.problem.eps = 0;
    BOOST_TEST_CONTEXT("size " << size) {
      const auto actual = setup.run(*cpu(), setup.x, setup.gamma, setup.dy);
      const auto expected = setup.run(*reference(), wide(setup.x), wide(setup.gamma), wide(setup.dy));
      check("y", actual[0], values(expected[0]));
    }
  }
}

BOOST_AUTO_TEST_CASE(broadcast_gradient_and_absent_outputs) {
  const Setup setup = random_setup({9, 6}, DType::f32, DType::f32, Layout::contiguous);
  const float one = 1;
  TensorView dy = TensorView::of(&one, {9, 6});
  dy.strides = {0, 0};
  const Tensor ones = tensor({9, 6}, Values(54, 1.0));
  const auto backend = cpu();
  const Tensor dx = fresh({9, 6}, DType::f32), dgamma = fresh({6}, DType::f32);
  rmsnorm_backward(*backend, {}, {setup.x, setup.gamma}, dy, {dx, {}});
  rmsnorm_backward(*backend, {}, {setup.x, setup.gamma}, dy, {{}, dgamma});
  const auto both = setup.run(*backend, setup.x, setup.gamma, ones);
  BOOST_TEST(same_bytes(dx, both[1]));
  BOOST_TEST(same_bytes(dgamma, both[2]));
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_its_batch) {
  const Setup setup = random_setup({40, 37}, DType::f32, DType::f32, Layout::contiguous);
  const auto backend = cpu(2);
  const auto all = setup.run(*backend, setup.x, setup.gamma, setup.dy);
  for (const std::int64_t row : {0, 13, 39}) {
    const Tensor y = fresh({1, 37}, DType::f32), dx = fresh({1, 37}, DType::f32);
    const TensorView x = setup.x.view().narrow(0, row, 1), dy = setup.dy.view().narrow(0, row, 1);
    rmsnorm_forward(*backend, {}, {x, setup.gamma}, y);
    rmsnorm_backward(*backend, {}, {x, setup.gamma}, dy, {dx, {}});
    BOOST_TEST(same_bytes(y, all[0].view().narrow(0, row, 1)));
    BOOST_TEST(same_bytes(dx, all[1].view().narrow(0, row, 1)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
