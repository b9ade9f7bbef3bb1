// The window predictor on the CPU backend against the reference: both forms, soft and floored, and rows that do not
// depend on their batch.
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

struct Setup {
  WindowProblem problem;
  Tensor x, weight, bias, dwindow;
  Layout layout = Layout::contiguous;

  std::vector<Tensor> run(Backend& backend, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          const Tensor& dwindow) const {
    const auto like = [&](const Tensor& t, DType dtype) {
      const TensorView& v = t.view();
      return fresh(Shape(v.shape.begin(), v.shape.begin() + v.rank), dtype, layout);
    };
    const Tensor window = like(dwindow, dwindow.view().dtype), dx = like(x, x.view().dtype);
    const Tensor dweight = like(weight, weight.view().dtype), dbias = like(bias, bias.view().dtype);
    window_sizes_forward(backend, problem, {x, weight, bias}, window);
    window_sizes_backward(backend, problem, {x, weight, bias}, dwindow, {dx, dweight, dbias});
    return {window, dx, dweight, dbias};
  }
};

Setup random_setup(std::int64_t batch, std::int64_t n, std::int64_t d, std::int64_t heads, DType dtype,
                   DType weight_dtype, Layout layout, bool packed, bool floor) {
  Setup setup;
  setup.layout = layout;
  setup.problem = {2, 50.5, floor};
  setup.x = random(packed ? Shape{n, d} : Shape{batch, n, d}, 1, dtype, 2, layout);
  setup.weight = random({heads, d}, 2, weight_dtype, 1, layout);
  setup.bias = random({heads}, 3, weight_dtype, 1, layout);
  setup.dwindow = random(packed ? Shape{n, heads} : Shape{batch, heads, n}, 4, DType::f32, 1, layout);
  return setup;
}

void compare(const Setup& setup) {
  const auto actual =
      run_on_cpu([&](Backend& b) { return setup.run(b, setup.x, setup.weight, setup.bias, setup.dwindow); });
  const auto expected =
      setup.run(*reference(), wide(setup.x), wide(setup.weight), wide(setup.bias), wide(setup.dwindow));
  const bool packed = setup.x.view().rank == 2;
  const std::int64_t heads = setup.weight.view().shape[0], d = setup.weight.view().shape[1];
  const std::int64_t n = packed ? setup.x.view().shape[0] : setup.x.view().shape[1];
  const std::int64_t rows = d ? setup.x.view().size() / d : 0;
  const Values x = values(setup.x), a = values(setup.weight), c = values(setup.bias), dw = values(setup.dwindow);
  const double range = setup.problem.n_max - setup.problem.n_min;
  Values dx_terms(rows * d), da_terms(heads * d), dc_terms(heads);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < heads; ++h) {
      double z = c[h];
      for (std::int64_t k = 0; k < d; ++k) z += x[r * d + k] * a[h * d + k];
      const double sigma = 1 / (1 + std::exp(-z)),
                   arriving = packed ? dw[r * heads + h] : dw[(r / n * heads + h) * n + r % n];
      const double dz = std::fabs(arriving * range * sigma * (1 - sigma));
      dc_terms[h] += dz;
      for (std::int64_t k = 0; k < d; ++k) {
        dx_terms[r * d + k] += dz * std::fabs(a[h * d + k]);
        da_terms[h * d + k] += dz * std::fabs(x[r * d + k]);
      }
    }
  const Values window = values(expected[0]);
  if (setup.problem.floor)
    BOOST_TEST(values(actual[0]) == window, boost::test_tools::per_element());
  else
    check("window", actual[0], window);
  check("dx", actual[1], values(expected[1]), dx_terms);
  check("dweight", actual[2], values(expected[2]), da_terms);
  check("dbias", actual[3], values(expected[3]), dc_terms);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(window_sizes)

BOOST_AUTO_TEST_CASE(forms_dtypes_and_layouts) {
  for (const DType dtype : main_dtypes)
    for (const Layout layout : all_layouts)
      for (const bool packed : {false, true})
        for (const bool floor : {false, true})
          BOOST_TEST_CONTEXT(name_of(dtype)
                             << " layout " << static_cast<int>(layout) << " packed " << packed << " floor " << floor) {
            for (const std::int64_t n : {0, 1, 17}) {
              compare(random_setup(2, n, 33, 3, dtype, dtype, layout, packed, floor));
              compare(random_setup(1, n, 1, 1, dtype, DType::f32, layout, packed, floor));
            }
            compare(random_setup(1, 65, 130, 7, dtype, DType::f32, layout, packed, floor));
          }
}

BOOST_AUTO_TEST_CASE(many_rows_on_many_threads) {
  compare(random_setup(3, 701, 193, 5, DType::f32, DType::f32, Layout::contiguous, false, false));
  compare(random_setup(1, 2003, 193, 5, DType::bf16, DType::f32, Layout::contiguous, true, true));
}

BOOST_AUTO_TEST_CASE(a_row_does_not_depend_on_its_batch) {
  const Setup setup = random_setup(2, 70, 37, 3, DType::f32, DType::f32, Layout::contiguous, false, false);
  const auto backend = cpu(2);
  const auto all = setup.run(*backend, setup.x, setup.weight, setup.bias, setup.dwindow);
  for (const std::int64_t row : {0, 29, 69}) {
    const TensorView x = setup.x.view().narrow(0, 1, 1).narrow(1, row, 1);
    const Tensor window = fresh({1, 3, 1}, DType::f32), dx = fresh({1, 1, 37}, DType::f32);
    window_sizes_forward(*backend, setup.problem, {x, setup.weight, setup.bias}, window);
    window_sizes_backward(*backend, setup.problem, {x, setup.weight, setup.bias},
                          setup.dwindow.view().narrow(0, 1, 1).narrow(2, row, 1), {dx, {}, {}});
    BOOST_TEST(same_bytes(window, all[0].view().narrow(0, 1, 1).narrow(2, row, 1)));
    BOOST_TEST(same_bytes(dx, all[1].view().narrow(0, 1, 1).narrow(1, row, 1)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
