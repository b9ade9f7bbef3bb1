// Energies on the CPU backend against the reference: both forms, zero rows, extreme rows, absent gradients.
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

Shape shape_of(const TensorView& view) { return Shape(view.shape.begin(), view.shape.begin() + view.rank); }
Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

std::vector<Tensor> run(Backend& backend, const Tensor& x, const Tensor& v, const Tensor& dnx, const Tensor& dnv,
                        Layout layout) {
  const DType stat = statistics_dtype(x.view().dtype);
  const Tensor nx = fresh(without_last(shape_of(x)), stat, layout), nv = fresh(without_last(shape_of(v)), stat, layout);
  const Tensor dx = fresh(shape_of(x), x.view().dtype, layout), dv = fresh(shape_of(v), v.view().dtype, layout);
  energies_forward(backend, {x, v}, {nx, nv});
  energies_backward(backend, {x, v}, {dnx, dnv}, {dx, dv});
  return {nx, nv, dx, dv};
}

void compare(const Tensor& x, const Tensor& v, const Tensor& dnx, const Tensor& dnv, Layout layout) {
  const auto actual = run_on_cpu([&](Backend& b) { return run(b, x, v, dnx, dnv, layout); });
  const auto expected = run(*reference(), wide(x), wide(v), wide(dnx), wide(dnv), Layout::contiguous);
  const char* names[] = {"nx", "nv", "dx", "dv"};
  for (std::size_t n = 0; n < 4; ++n) check(names[n], actual[n], values(expected[n]));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(energies)

BOOST_AUTO_TEST_CASE(forms_dtypes_and_layouts) {
  for (const DType dtype : main_dtypes)
    for (const Layout layout : all_layouts)
      BOOST_TEST_CONTEXT(name_of(dtype) << " layout " << static_cast<int>(layout)) {
        for (const std::int64_t n : {0, 1, 17}) {
          compare(random({2, n, 33}, 1, dtype, 2, layout), random({2, 3, n, 5}, 2, dtype, 2, layout),
                  random({2, n}, 3, DType::f32, 1, layout), random({2, 3, n}, 4, DType::f32, 1, layout), layout);
          compare(random({n, 65}, 1, dtype, 2, layout), random({n, 3, 1}, 2, dtype, 2, layout),
                  random({n}, 3, DType::f32, 1, layout), random({n, 3}, 4, DType::f32, 1, layout), layout);
        }
      }
}

BOOST_AUTO_TEST_CASE(many_rows_on_many_threads) {
  compare(random({2, 1201, 33}, 1), random({2, 5, 1201, 17}, 2), random({2, 1201}, 3), random({2, 5, 1201}, 4),
          Layout::contiguous);
}

BOOST_AUTO_TEST_CASE(zero_and_extreme_rows) {
  Values rows(5 * 3);
  const double scales[] = {0, 1e-44, 1e-25, 1e25, 1e38};
  for (int r = 0; r < 5; ++r)
    for (int c = 0; c < 3; ++c) rows[r * 3 + c] = scales[r] * (c - 0.5);
  const Tensor x = tensor({5, 3}, rows), v = tensor({5, 1, 3}, rows), ones = tensor({5}, Values(5, 1));
  compare(x, v, ones, tensor({5, 1}, Values(5, 1)), Layout::contiguous);
  const Tensor dx = fresh({5, 3}, DType::f32);
  energies_backward(*cpu(), {x, v}, {ones, {}}, {dx, {}});
  for (int c = 0; c < 3; ++c) BOOST_TEST(values(dx)[c] == 0);
}

BOOST_AUTO_TEST_CASE(absent_arriving_gradient_is_zero) {
  const Tensor x = random({3, 4}, 1), v = random({3, 2, 4}, 2), dx = fresh({3, 4}, DType::f32);
  const Tensor dv = fresh({3, 2, 4}, DType::f32);
  energies_backward(*cpu(), {x, v}, {}, {dx, dv});
  for (const Tensor& t : {dx, dv})
    for (const double g : values(t)) BOOST_TEST(g == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
