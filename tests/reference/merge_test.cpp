// Merging two attentions over disjoint keys, by hand and at the edges.
#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

struct Merged {
  Tensor out, lse;
};

Merged merged(const Tensor& out1, const Tensor& lse1, const Tensor& out2, const Tensor& lse2) {
  Merged result{like(out1), like(lse1)};
  merge(reference(), {out1, lse1, out2, lse2}, {result.out, result.lse});
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(merging)

// lse = [0, ln 3]: weights 1/4 and 3/4; out = [(1 + 3 * 5)/4, (2 + 3 * 6)/4] = [4, 5], lse = ln 4.
BOOST_AUTO_TEST_CASE(by_hand) {
  const Merged m =
      merged(tensor({1, 2}, {1, 2}), tensor({1}, {0}), tensor({1, 2}, {5, 6}), tensor({1}, {std::log(3.0)}));
  check_close("out", m.out, {4, 5});
  check_close("lse", m.lse, {std::log(4.0)});
}

// A part without keys is the exact identity, whatever stands in its out; two of them are nothing.
BOOST_AUTO_TEST_CASE(empty_parts) {
  for (const DType dtype : floating_dtypes) {
    const DType stat = statistics_dtype(dtype);
    const Tensor some = random({3, 4}, 1, dtype), garbage = tensor({3, 4}, Values(12, quiet_nan), dtype);
    internal::store_double(some, 0, -0.0);
    const Tensor lse = random({3}, 2, stat), nothing = filled({3}, -inf, stat);
    Merged m = merged(garbage, nothing, some, lse);
    check_same("out of (nothing, some)", m.out, some);
    check_same("lse of (nothing, some)", m.lse, lse);
    m = merged(some, lse, garbage, nothing);
    check_same("out of (some, nothing)", m.out, some);
    check_same("lse of (some, nothing)", m.lse, lse);
    m = merged(garbage, nothing, garbage, nothing);
    check_same("out of (nothing, nothing)", m.out, Values(12, 0));
    check_same("lse of (nothing, nothing)", m.lse, nothing);
  }
}

// Sizes of lse at which exp alone would overflow or vanish.
BOOST_AUTO_TEST_CASE(large_and_small_lse) {
  for (const double lse : {-60000.0, 60000.0}) {
    const Merged m = merged(tensor({1, 1}, {1}), tensor({1}, {lse}), tensor({1, 1}, {3}), tensor({1}, {lse}));
    check_close("out", m.out, {2});
    check_close("lse", m.lse, {lse + std::log(2.0)});
  }
}

// One row without leading dimensions, no rows, any strides, lse left out.
BOOST_AUTO_TEST_CASE(shapes_and_strides) {
  Merged m = merged(tensor({2}, {1, 3}), scalar(0), tensor({2}, {3, 5}), scalar(0));
  check_close("one row", m.out, {2, 4});
  m = merged(tensor({0, 2}, {}), tensor({0}, {}), tensor({0, 2}, {}), tensor({0}, {}));
  check_same("no rows", m.out, Values{});

  const Tensor out1 = random({3, 2, 4}, 1), out2 = random({3, 2, 4}, 2), lse1 = random({3, 2}, 3),
               lse2 = random({3, 2}, 4);
  m = merged(out1, lse1, out2, lse2);
  const Tensor strided = filled({4, 2, 3}, quiet_nan), transposed = like(out1.view().transpose(0, 1));
  copy_elements(out1.view().transpose(0, 1), transposed);
  merge(reference(), {transposed.view().transpose(0, 1), lse1, out2, lse2}, {strided.view().transpose(0, 2), {}});
  check_same("strided", strided.view().transpose(0, 2), m.out);
}

BOOST_AUTO_TEST_SUITE_END()
