// A cache in pages against values by hand, and against the same keys in one piece.
#include "attention_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

/// out and lse of the call with the page table.
std::pair<Tensor, Tensor> paged(const AttentionCall& call, const TensorView& table, const TensorView& k,
                                const TensorView& v) {
  AttentionInputs in = call.inputs();
  in.k = k;
  in.v = v;
  in.page_table = table;
  Shape shape = AttentionCall::shape_of(call.q);
  const Tensor lse = filled(Shape(shape.begin(), shape.end() - 1), quiet_nan);
  shape.back() = v.shape[3];
  const Tensor out = filled(shape, quiet_nan);
  attention_forward(reference(), call.problem, in, {out, lse});
  return {out, lse};
}

/// Pages of `page` rows with the keys [B,Hkv,Nk,E], in the order of the table's entries; NaN where there are none.
Tensor pool_of(const TensorView& keys, const TensorView& table, std::int64_t pages, std::int64_t page) {
  const Tensor pool = filled({pages, keys.shape[1], page, keys.shape[3]}, quiet_nan);
  for (std::int64_t b = 0; b < keys.shape[0]; ++b)
    for (std::int64_t j = 0; j < keys.shape[2]; ++j) {
      const std::int64_t entry = internal::load_i32(table.select(0, b), j / page);
      copy_elements(keys.select(0, b).narrow(1, j, 1), pool.view().select(0, entry).narrow(1, j % page, 1));
    }
  return pool;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_paged)

// The example of docs/semantics.md: two sequences share a page, and the second one's table ends behind it.
BOOST_AUTO_TEST_CASE(shared_page) {
  AttentionCall call;
  call.q = filled({2, 1, 1, 1}, 0);
  call.k_lengths = indices({2}, {3, 2});
  const Tensor k = tensor({3, 1, 2, 1}, {quiet_nan, quiet_nan, 0, 0, 0, quiet_nan});
  const Tensor v = tensor({3, 1, 2, 1}, {quiet_nan, quiet_nan, 1, 2, 3, quiet_nan});
  const auto [out, lse] = paged(call, indices({2, 2}, {1, 2, 1, -1}), k, v);
  check_close("out", out, {2, 1.5});
  check_close("lse", lse, {std::log(3.0), std::log(2.0)});
}

// Positions count to k_lengths, not to the room of the table: two queries on keys 1, 2, 3 in pages of two.
BOOST_AUTO_TEST_CASE(positions) {
  AttentionCall call;
  call.q = filled({1, 1, 2, 1}, 0);
  call.k_lengths = indices({1}, {3});
  const Tensor k = filled({4, 1, 2, 1}, 0);
  const Tensor v = tensor({4, 1, 2, 1}, {9, 9, 3, 9, 1, 2, 9, 9});
  check_close("causal", paged(call, indices({1, 3}, {2, 1, 7}), k, v).first, {1.5, 2});
  call.problem.mask = Mask::full;
  check_close("full", paged(call, indices({1, 3}, {2, 1, 7}), k, v).first, {2, 2});
}

// Landmarks name keys of the sequence: with window 0 and landmark 1, row p = 4 is the mean of keys 4 and 1.
BOOST_AUTO_TEST_CASE(landmarks) {
  AttentionCall call;
  call.problem.mask = Mask::sparse;
  call.q = filled({1, 1, 1, 1}, 0);
  call.window = filled({1, 1, 1}, 0);
  call.landmarks = indices({1, 1, 1, 2}, {1, 5});
  call.k_lengths = indices({1}, {5});
  const Tensor k = filled({3, 1, 2, 1}, 0);
  const Tensor v = tensor({3, 1, 2, 1}, {16, quiet_nan, 1, 2, 4, 8});
  check_close("out", paged(call, indices({1, 3}, {1, 2, 0}), k, v).first, {9});
}

// One page that stands in a row again and again: the same keys each time.
BOOST_AUTO_TEST_CASE(repeated_page) {
  AttentionCall call;
  call.problem.mask = Mask::full;
  call.problem.scale = 1;
  call.q = filled({1, 1, 1, 1}, 1);
  call.k_lengths = indices({1}, {7});
  const Tensor k = tensor({1, 1, 2, 1}, {0, std::log(2.0)}), v = tensor({1, 1, 2, 1}, {0, 3});
  const auto [out, lse] = paged(call, indices({1, 4}, {0, 0, 0, 0}), k, v);
  check_close("out", out, {3 * 6.0 / 10});  // weights 1 2 1 2 1 2 1
  check_close("lse", lse, {std::log(10.0)});
}

BOOST_AUTO_TEST_CASE(equals_a_contiguous_cache) {
  for (const std::int64_t page : {1, 3, 8, 50})
    for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
      AttentionCall call;
      call.problem.mask = mask;
      call.problem.dropout = Dropout{0.3, 5, 1};
      call.q = random({2, 4, 5, 6}, 1);
      call.k = random({2, 2, 21, 6}, 2);
      call.v = random({2, 2, 21, 3}, 3);
      call.k_lengths = indices({2}, {21, 10});
      if (mask == Mask::sparse) {
        call.window = filled({2, 4, 5}, 4.5);
        call.landmarks = indices({2, 1, 1, 3}, {0, 7, 12, 3, 3, 9});
        call.problem.soft_edge = SoftEdge{1, 0.5};
      }
      call.forward();
      const std::int64_t entries = (21 + page - 1) / page;
      Values table;  // the pages backwards, those of the two sequences in turn
      for (std::int64_t n = 2 * entries - 1; n >= 0; --n)
        table.push_back(static_cast<double>(n % entries * 2 + n / entries));
      const Tensor pages = indices({2, entries}, table);
      const Tensor k = pool_of(call.k, pages, 2 * entries, page), v = pool_of(call.v, pages, 2 * entries, page);
      const auto [out, lse] = paged(call, pages, k, v);
      check_same("out", out, call.out);
      check_same("lse", lse, call.lse);
      const TensorView turned = k.view().transpose(1, 2);  // [P,page,Hkv,D] storage
      const Tensor storage = filled(AttentionCall::shape_of(turned), quiet_nan);
      copy_elements(turned, storage);
      check_same("tokens outermost", paged(call, pages, storage.view().transpose(1, 2), v).first, call.out);
    }
}

BOOST_AUTO_TEST_SUITE_END()
