// Attention gradients against finite differences of <dout, out> + <dlse, lse>, in double, in every element of every
// input. Windows keep clear of the jumps at e = w and e = w - soft_edge, where no derivative exists.
#include "attention_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

struct Sizes {
  std::int64_t b, hq, hkv, nq, nk, d, dv;
};

AttentionCall padded_call(Mask mask, const Sizes& s) {
  AttentionCall call;
  call.problem.mask = mask;
  call.q = random({s.b, s.hq, s.nq, s.d}, 1);
  call.k = random({s.b, s.hkv, s.nk, s.d}, 2);
  call.v = random({s.b, s.hkv, s.nk, s.dv}, 3);
  call.dout = random({s.b, s.hq, s.nq, s.dv}, 4);
  call.dlse = random({s.b, s.hq, s.nq}, 5);
  return call;
}

/// w = whole + 0.2 ... 0.4 with whole from -1 to 4: with edges of whole + 0.5 the jumps stay 0.1 away.
Tensor windows(const Shape& shape) {
  std::mt19937 generator(6);
  Values values;
  for (std::int64_t n = 0; n < element_count(shape); ++n)
    values.push_back(static_cast<double>(generator() % 6) - 1 + 0.2 + 0.1 * static_cast<double>(generator() % 3));
  return tensor(shape, values);
}

/// Lists with repeats, future indices, indices inside windows, and unused slots on both sides.
Tensor lists(const Shape& shape, std::int64_t nk) {
  std::mt19937 generator(7);
  Values values;
  for (std::int64_t n = 0; n < element_count(shape); ++n)
    values.push_back(static_cast<double>(generator() % static_cast<unsigned>(nk + 3)) - 1);
  return indices(shape, values);
}

void check_gradients(AttentionCall call) {
  call.backward();
  const AttentionCall analytic = call;
  const auto objective = [&] { return call.objective(); };
  check_differences("dq", call.q, analytic.dq, objective);
  check_differences("dk", call.k, analytic.dk, objective);
  check_differences("dv", call.v, analytic.dv, objective);
  if (analytic.dwindow.present()) check_differences("dwindow", call.window, analytic.dwindow, objective);
  if (analytic.dlambda.present()) check_differences("dlambda", call.lambda, analytic.dlambda, objective);
}

/// Sparse with every selector: hw and hl are 1 or the number of query heads.
AttentionCall sparse_call(const Sizes& s, std::int64_t hw, std::int64_t hl) {
  AttentionCall call = padded_call(Mask::sparse, s);
  call.problem.soft_edge = SoftEdge{1.5, 0.8};
  call.problem.landmark_chunk = 3;
  call.problem.landmark_offset = 1;
  const std::int64_t count = (s.nq + 1 + 2) / 3;
  call.window = windows({s.b, hw, s.nq});
  call.landmarks = lists({s.b, hl, count, 3}, s.nk);
  call.lambda = random({s.b, hl, count, 3}, 8);
  return call;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_gradient)

BOOST_AUTO_TEST_CASE(full_and_causal) {
  for (const Mask mask : {Mask::full, Mask::causal}) {
    check_gradients(padded_call(mask, {2, 2, 2, 4, 4, 3, 3}));
    check_gradients(padded_call(mask, {1, 4, 2, 3, 5, 3, 2}));  // grouped heads, D != Dv, more keys than queries
    check_gradients(padded_call(mask, {1, 3, 1, 5, 3, 2, 4}));  // one kv head, rows that see nothing when causal
  }
}

BOOST_AUTO_TEST_CASE(scales) {
  for (const double scale : {-1.0, 0.0, 2.5}) {
    AttentionCall call = padded_call(Mask::causal, {1, 2, 1, 4, 4, 3, 2});
    call.problem.scale = scale;
    check_gradients(call);
  }
}

BOOST_AUTO_TEST_CASE(sparse_with_every_selector) {
  check_gradients(sparse_call({2, 2, 2, 5, 5, 3, 2}, 2, 2));
  check_gradients(sparse_call({1, 4, 2, 7, 7, 3, 4}, 4, 4));
  check_gradients(sparse_call({1, 2, 1, 4, 7, 2, 3}, 2, 2));  // more keys than queries
  check_gradients(sparse_call({1, 2, 1, 7, 4, 2, 3}, 2, 2));  // rows before the first key
}

BOOST_AUTO_TEST_CASE(shared_window_and_lists) {
  check_gradients(sparse_call({2, 4, 2, 5, 5, 3, 2}, 1, 4));
  check_gradients(sparse_call({2, 4, 2, 5, 5, 3, 2}, 4, 1));
  check_gradients(sparse_call({2, 4, 2, 5, 5, 3, 2}, 1, 1));
}

BOOST_AUTO_TEST_CASE(bidirectional) {
  for (const Sizes& sizes : {Sizes{1, 2, 1, 6, 6, 3, 2}, Sizes{1, 2, 2, 4, 6, 2, 3}, Sizes{1, 2, 2, 6, 3, 2, 3}}) {
    AttentionCall call = sparse_call(sizes, 2, 2);
    call.problem.bidirectional = true;
    check_gradients(call);
  }
}

BOOST_AUTO_TEST_CASE(soft_edge_of_the_whole_window_and_of_width_zero) {
  AttentionCall call = sparse_call({1, 2, 1, 6, 6, 3, 2}, 2, 2);
  call.problem.soft_edge = SoftEdge{100, 2};
  check_gradients(call);
  call.problem.soft_edge = SoftEdge{0, 2};  // no whole e lies in (w, w]: the same as no soft edge
  check_gradients(call);
}

BOOST_AUTO_TEST_CASE(hard_windows_have_zero_gradient) {
  AttentionCall call = sparse_call({1, 2, 1, 6, 6, 3, 2}, 2, 2);
  call.problem.soft_edge.reset();
  check_gradients(call);
  call.backward();
  check_same("dwindow", call.dwindow, Values(12, 0));
}

BOOST_AUTO_TEST_CASE(window_alone_and_landmarks_alone) {
  AttentionCall call = sparse_call({1, 2, 1, 6, 6, 3, 2}, 2, 2);
  AttentionCall window_alone = call, landmarks_alone = call, unweighted = call;
  window_alone.landmarks = window_alone.lambda = {};
  check_gradients(window_alone);
  landmarks_alone.window = {};
  landmarks_alone.problem.soft_edge.reset();
  check_gradients(landmarks_alone);
  unweighted.lambda = {};
  check_gradients(unweighted);
}

BOOST_AUTO_TEST_CASE(without_the_gradient_of_lse) {
  AttentionCall call = sparse_call({1, 2, 1, 5, 5, 3, 2}, 2, 2);
  call.dlse = {};
  check_gradients(call);
}

BOOST_AUTO_TEST_CASE(dropout) {
  for (const Mask mask : {Mask::causal, Mask::sparse}) {
    AttentionCall call =
        mask == Mask::sparse ? sparse_call({2, 4, 2, 6, 6, 3, 2}, 1, 4) : padded_call(mask, {2, 4, 2, 5, 7, 3, 2});
    call.problem.dropout = Dropout{0.4, 0x123456789abcdefu, 3};
    check_gradients(call);
    call.problem.dropout->p = 1;  // out is 0, lse keeps its gradient
    check_gradients(call);
  }
}

BOOST_AUTO_TEST_CASE(valid_keys_of_a_cache) {
  AttentionCall call = sparse_call({3, 2, 1, 4, 6, 3, 2}, 2, 2);
  call.k_lengths = indices({3}, {6, 4, 0});
  check_gradients(call);
  AttentionCall causal = padded_call(Mask::causal, {2, 2, 1, 3, 5, 3, 2});
  causal.k_lengths = indices({2}, {2, 5});
  check_gradients(causal);
}

BOOST_AUTO_TEST_CASE(packed) {
  for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
    AttentionCall call;
    call.problem.mask = mask;
    call.q = random({8, 4, 3}, 1);
    call.k = random({9, 2, 3}, 2);
    call.v = random({9, 2, 2}, 3);
    call.dout = random({8, 4, 2}, 4);
    call.dlse = random({8, 4}, 5);
    call.cu_q = indices({5}, {0, 3, 3, 7, 8});  // the second sequence has keys and no queries
    call.cu_k = indices({5}, {0, 2, 4, 9, 9});  // the last one queries and no keys
    if (mask == Mask::sparse) {
      call.problem.soft_edge = SoftEdge{1.5, 0.8};
      call.problem.landmark_chunk = 3;
      call.window = windows({8, 4});
      call.landmarks = lists({4, 1, 2, 3}, 5);
      call.lambda = random({4, 1, 2, 3}, 8);
    }
    check_gradients(call);
  }
}

BOOST_AUTO_TEST_SUITE_END()
