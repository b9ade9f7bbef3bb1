// Token energies ||x|| and ||v||.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

BOOST_AUTO_TEST_SUITE(energies)

// ||[3, 4]|| = 5, ||[0, 0]|| = 0 with gradient 0; d[3, 4] = 10 [3/5, 4/5]. v has two heads: norms 13 and 2.
BOOST_AUTO_TEST_CASE(by_hand) {
  const Tensor x = tensor({1, 2, 2}, {3, 4, 0, 0}), v = tensor({1, 2, 2, 2}, {5, 12, 0, -2, 0, 0, 1, 0});
  const Tensor nx = filled({1, 2}, quiet_nan), nv = filled({1, 2, 2}, quiet_nan);
  energies_forward(reference(), {x, v}, {nx, nv});
  check_close("nx", nx, {5, 0});
  check_close("nv", nv, {13, 2, 0, 1});
  const Tensor dnx = tensor({1, 2}, {10, 10}), dnv = tensor({1, 2, 2}, {13, 3, 7, -1});
  const Tensor dx = like(x), dv = like(v);
  energies_backward(reference(), {x, v}, {dnx, dnv}, {dx, dv});
  check_close("dx", dx, {6, 8, 0, 0});
  check_close("dv", dv, {5, 12, 0, -3, 0, 0, -1, 0});
  energies_backward(reference(), {x, v}, {{}, dnv}, {dx, dv});  // an absent dnx counts as zeros
  check_same("dx without dnx", dx, Values(4, 0));
}

// Squares past the range of double, and below it; NaN and infinity stay themselves.
BOOST_AUTO_TEST_CASE(range) {
  const Tensor x =
      tensor({1, 7, 2}, {3e300, 4e300, 3e-310, 4e-310, 5e-324, 0, quiet_nan, 1, 0, quiet_nan, inf, 1, -0.0, 0});
  const Tensor nx = filled({1, 7}, quiet_nan), v = filled({1, 1, 7, 1}, 0);
  energies_forward(reference(), {x, v}, {nx, {}});
  check_close("nx", nx.view().narrow(1, 0, 1), {5e300}, 1e-15);
  const Values norms = values_of(nx);
  BOOST_TEST(std::fabs(norms[1] - 5e-310) <= 5e-324);
  check_same("the others", Values(norms.begin() + 2, norms.end()), Values{5e-324, quiet_nan, quiet_nan, inf, 0});
  const Tensor dnx = filled({1, 7}, 1), dx = like(x);
  energies_backward(reference(), {x, v}, {dnx, {}}, {dx, {}});
  const Values gradient = values_of(dx);
  check_close("dx", Values(gradient.begin(), gradient.begin() + 4), {0.6, 0.8, 0.6, 0.8}, 1e-13);
}

BOOST_AUTO_TEST_CASE(differences) {
  const Tensor x = random({2, 3, 4}, 1), v = random({2, 2, 3, 5}, 2), dnx = random({2, 3}, 3),
               dnv = random({2, 2, 3}, 4), dx = like(x), dv = like(v), nx = like(dnx), nv = like(dnv);
  energies_backward(reference(), {x, v}, {dnx, dnv}, {dx, dv});
  const auto objective = [&] {
    energies_forward(reference(), {x, v}, {nx, nv});
    return inner(nx, dnx) + inner(nv, dnv);
  };
  check_differences("dx", x, dx, objective);
  check_differences("dv", v, dv, objective);
}

// Packed x [R,d], v [R,Hkv,Dv] against padded with one sequence; every dtype rounds once.
BOOST_AUTO_TEST_CASE(packed_equals_padded) {
  for (const DType dtype : floating_dtypes) {
    const DType stat = statistics_dtype(dtype);
    const Tensor x = random({1, 4, 3}, 1, dtype), v = random({1, 2, 4, 5}, 2, dtype);
    const Tensor nx = filled({1, 4}, quiet_nan, stat), nv = filled({1, 2, 4}, quiet_nan, stat);
    energies_forward(reference(), {x, v}, {nx, nv});
    const TensorView px = x.view().select(0, 0), pv = v.view().select(0, 0).transpose(0, 1);
    const Tensor pnx = filled({4}, quiet_nan, stat), pnv = filled({4, 2}, quiet_nan, stat);
    energies_forward(reference(), {px, pv}, {pnx, pnv});
    check_same("nx", pnx, nx.view().select(0, 0));
    check_same("nv", pnv, nv.view().select(0, 0).transpose(0, 1));
    const Tensor dx = like(x), dv = like(v), pdx = like(px), pdv = like(pv);
    energies_backward(reference(), {x, v}, {nx, nv}, {dx, dv});
    energies_backward(reference(), {px, pv}, {pnx, pnv}, {pdx, pdv});
    check_same("dx", pdx, dx.view().select(0, 0));
    check_same("dv", pdv, dv.view().select(0, 0).transpose(0, 1));
    // dn = ||x|| gives dx = x, up to the roundings of ||x|| and of dx.
    check_close("dx = x", dx, values_of(x), dtype == DType::f64 ? 1e-15 : dtype == DType::f32 ? 1.2e-7 : 4e-3);
  }
}

BOOST_AUTO_TEST_SUITE_END()
