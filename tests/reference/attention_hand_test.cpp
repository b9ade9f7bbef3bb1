// Attention worked out by hand: logits are logarithms of whole numbers, so that every weight is a fraction.
#include "attention_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {
const double ln2 = std::log(2.0), ln3 = std::log(3.0), ln4 = std::log(4.0), ln5 = std::log(5.0), ln8 = std::log(8.0);
}

BOOST_AUTO_TEST_SUITE(attention_hand)

// q = 1, k = [0, ln 3]: row 0 sees key 0 alone; row 1 has exp(s) = [1, 3], so P = [1/4, 3/4], o = 1/4 + 15/4 = 4.
// do = 1: row 0 has dP = delta = 1, ds = 0. Row 1 has dP = [1, 5], delta = 4, ds = P (dP - 4) = [-3/4, 3/4].
// dq = [0, 3/4 ln 3], dk = ds q = [-3/4, 3/4], dv = [1 + 1/4, 3/4].
BOOST_AUTO_TEST_CASE(causal_two_keys) {
  AttentionCall call = line_call(Mask::causal, {1, 1}, {0, ln3}, {1, 5});
  call.backward();
  check_close("out", call.out, {1, 4});
  check_close("lse", call.lse, {0, ln4});
  check_close("dq", call.dq, {0, 0.75 * ln3});
  check_close("dk", call.dk, {-0.75, 0.75});
  check_close("dv", call.dv, {1.25, 0.75});
}

// The same with dlse = [10, 2]: ds gains P dlse. Row 0: ds = 10; row 1: ds = [-3/4 + 1/2, 3/4 + 3/2] = [-1/4, 9/4].
// dq = [10 * 0, 9/4 ln 3], dk = [10 - 1/4, 9/4], dv unchanged.
BOOST_AUTO_TEST_CASE(gradient_of_lse) {
  AttentionCall call = line_call(Mask::causal, {1, 1}, {0, ln3}, {1, 5});
  call.dlse = tensor({1, 1, 2}, {10, 2});
  call.backward();
  check_close("dq", call.dq, {0, 2.25 * ln3});
  check_close("dk", call.dk, {9.75, 2.25});
  check_close("dv", call.dv, {1.25, 0.75});
}

// D = 4 without a scale: 1/sqrt(4) = 1/2. q = [2 ln 3, 0, 0, 0], k0 = 0, k1 = [1, 0, 0, 0]: s = [0, ln 3], P = [1/4,
// 3/4]. Dv = 2, v = [[4, 0], [0, 8]]: o = [1, 6]. do = [1, 0]: dP = [4, 0], delta = 1, ds = [3/4, -3/4]. dq = ds_1 k_1
// / 2 = [-3/8, 0, 0, 0]; dk_j = ds_j q / 2: first component +-3/4 ln 3; dv_j = P_j do.
BOOST_AUTO_TEST_CASE(default_scale_and_wide_heads) {
  AttentionCall call;
  call.problem.mask = Mask::full;
  call.q = tensor({1, 1, 1, 4}, {2 * ln3, 0, 0, 0});
  call.k = tensor({1, 1, 2, 4}, {0, 0, 0, 0, 1, 0, 0, 0});
  call.v = tensor({1, 1, 2, 2}, {4, 0, 0, 8});
  call.dout = tensor({1, 1, 1, 2}, {1, 0});
  call.backward();
  check_close("out", call.out, {1, 6});
  check_close("lse", call.lse, {ln4});
  check_close("dq", call.dq, {-0.375, 0, 0, 0});
  check_close("dk", call.dk, {0.75 * ln3, 0, 0, 0, -0.75 * ln3, 0, 0, 0});
  check_close("dv", call.dv, {0.25, 0, 0.75, 0});
}

// Two query heads on one kv head, k = [0, 1], v = [1, 5]. Head 0, q = ln 3: P = [1/4, 3/4], o = 4, do = 1,
// ds = [-3/4, 3/4]. Head 1, q = 0: P = [1/2, 1/2], o = 3, do = 2: dP = [2, 10], delta = 6, ds = [-2, 2].
// dq = [3/4, 2]; dk = ds_head0 ln 3 + ds_head1 0 = [-3/4 ln 3, 3/4 ln 3]; dv = [1/4 + 1, 3/4 + 1].
BOOST_AUTO_TEST_CASE(grouped_heads_sum_into_their_key_head) {
  AttentionCall call;
  call.problem.mask = Mask::full;
  call.problem.scale = 1;
  call.q = tensor({1, 2, 1, 1}, {ln3, 0});
  call.k = tensor({1, 1, 2, 1}, {0, 1});
  call.v = tensor({1, 1, 2, 1}, {1, 5});
  call.dout = tensor({1, 2, 1, 1}, {1, 2});
  call.backward();
  check_close("out", call.out, {4, 3});
  check_close("lse", call.lse, {ln4, ln2});
  check_close("dq", call.dq, {0.75, 2});
  check_close("dk", call.dk, {-0.75 * ln3, 0.75 * ln3});
  check_close("dv", call.dv, {1.25, 1.75});
}

// Four query heads on two kv heads: head h reads kv head h / 2.
BOOST_AUTO_TEST_CASE(query_head_reads_its_group) {
  AttentionCall call;
  call.problem.mask = Mask::full;
  call.q = filled({1, 4, 1, 1}, 0);
  call.k = filled({1, 2, 1, 1}, 0);
  call.v = tensor({1, 2, 1, 1}, {7, 9});
  call.forward();
  check_same("out", call.out, Values{7, 7, 9, 9});
}

// Row 3 of 4, q = 0, w = 2.5, edge = 1, tau = 1/2: e = 0, 1 <= w - edge = 1.5 have bias 0; e = 2 lies in the edge with
// bias log sigma((2.5 - 2)/0.5) = log sigma(1); e = 3 > w is not admitted. Write S = sigma(1); exp(s) = [S, 1, 1] for
// keys 1, 2, 3, so lse = log(2 + S), o = (S v_1 + v_2 + v_3)/(2 + S) with v = [100, 1, 2, 4].
// do = 1 in row 3 alone: ds_1 = S/(2 + S) (v_1 - o), dw_3 = ds_1 (1 - S)/tau; the other rows' edges get no gradient.
BOOST_AUTO_TEST_CASE(soft_edge) {
  AttentionCall call = line_call(Mask::sparse, {0, 0, 0, 0}, {0, 0, 0, 0}, {100, 1, 2, 4});
  call.problem.soft_edge = SoftEdge{1, 0.5};
  call.window = filled({1, 1, 4}, 2.5);
  call.dout = tensor({1, 1, 4, 1}, {0, 0, 0, 1});
  call.backward();
  const double s = 1 / (1 + std::exp(-1.0)), total = 2 + s, o = (s * 1 + 2 + 4) / total;
  check_close("row 3 of out", {values_of(call.out)[3]}, {o});
  check_close("row 3 of lse", {values_of(call.lse)[3]}, {std::log(total)});
  check_close("dwindow", call.dwindow, {0, 0, 0, s / total * (1 - o) * (1 - s) / 0.5});
  check_close("dv", call.dv, {0, s / total, 1 / total, 1 / total});
  check_close("dk", call.dk, {0, 0, 0, 0});  // q = 0
}

// e = w - edge is outside the edge (bias 0), e = w is inside the window with bias log sigma(0) = -ln 2.
// Row 2 of 3, w = 2, edge = 1: keys 2 and 1 weigh 1, key 0 weighs 1/2: o = (1/2 v_0 + v_1 + v_2) / (5/2).
BOOST_AUTO_TEST_CASE(soft_edge_at_its_ends) {
  AttentionCall call = line_call(Mask::sparse, {0, 0, 0}, {0, 0, 0}, {10, 1, 4});
  call.problem.soft_edge = SoftEdge{1, 3};
  call.window = filled({1, 1, 3}, 2);
  call.forward();
  check_close("row 2 of out", {values_of(call.out)[2]}, {4});
  check_close("row 2 of lse", {values_of(call.lse)[2]}, {std::log(2.5)});
}

// One query at position 3 of 4 keys, w = 0: the window is key 3. List [1, 1, 3, 7, -1, 0]: slot 0 admits key 1, slot 1
// repeats it, slot 2 is in the window, slots 3 and 4 are unused (their weights are NaN and not read), slot 5 admits key
// 0. lambda: slot 0 ln 2, slot 5 ln 5, so exp(s) = [5, 2, ., 1] for keys 0, 1, 3: lse = ln 8, v = [8, 4, NaN, 16]:
// o = (40 + 8 + 16)/8 = 8. do = 1: dP - delta = [0, -4, ., 8]; ds = [0, -1, ., 1]; dlambda = [-1, 0, 0, 0, 0, 0].
BOOST_AUTO_TEST_CASE(landmarks_are_a_set) {
  AttentionCall call = line_call(Mask::sparse, {1}, {0, 0, quiet_nan, 0}, {8, 4, quiet_nan, 16});
  call.window = filled({1, 1, 1}, 0);
  call.landmarks = indices({1, 1, 1, 6}, {1, 1, 3, 7, -1, 0});
  call.lambda = tensor({1, 1, 1, 6}, {ln2, 9, 9, quiet_nan, quiet_nan, ln5});
  call.backward();
  check_close("out", call.out, {8});
  check_close("lse", call.lse, {ln8});
  check_close("dlambda", call.dlambda, {-1, 0, 0, 0, 0, 0});
  check_close("dk", call.dk, {0, -1, 0, 1});
  check_close("dv", call.dv, {5.0 / 8, 2.0 / 8, 0, 1.0 / 8});
  check_close("dwindow", call.dwindow, {0});
}

// Causal lists do not admit the future: rows 0, 1, 2 with the list [1] and no window see {}, {1}, {1}.
// Bidirectional, all three see key 1.
BOOST_AUTO_TEST_CASE(future_landmarks) {
  AttentionCall call = line_call(Mask::sparse, {0, 0, 0}, {0, 0, 0}, {5, 6, 7});
  call.landmarks = indices({1, 1, 1, 1}, {1});
  call.forward();
  check_same("causal out", call.out, Values{0, 6, 6});
  check_same("causal lse", call.lse, Values{-inf, 0, 0});
  call.problem.bidirectional = true;
  call.forward();
  check_same("bidirectional out", call.out, Values{6, 6, 6});
}

// Chunk 2, offset 1: query i reads list (i + 1) / 2 = 0, 1, 1, 2. Lists [0], [1], [2] without a window; rows 0 to 3 see
// keys 0, 1, 1, 2.
BOOST_AUTO_TEST_CASE(lists_by_chunk_and_offset) {
  AttentionCall call = line_call(Mask::sparse, {0, 0, 0, 0}, {0, 0, 0, 0}, {5, 6, 7, 8});
  call.problem.landmark_chunk = 2;
  call.problem.landmark_offset = 1;
  call.landmarks = indices({1, 1, 3, 1}, {0, 1, 2});
  call.lambda = filled({1, 1, 3, 1}, 0);
  call.dlse = tensor({1, 1, 4}, {1, 2, 3, 4});
  call.backward();
  check_same("out", call.out, Values{5, 6, 6, 7});
  // P = 1 and ds = dlse: list 0 gets row 0, list 1 rows 1 and 2, list 2 row 3.
  check_close("dlambda", call.dlambda, {1, 5, 4});
}

// Bidirectional window of 1 over v = [0, 3, 6, 12]: means of (0,3), (0,3,6), (3,6,12), (6,12).
BOOST_AUTO_TEST_CASE(bidirectional_window) {
  AttentionCall call = line_call(Mask::sparse, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 3, 6, 12});
  call.problem.bidirectional = true;
  call.window = indices({1, 1, 4}, {1, 1, 1, 1});
  call.forward();
  check_close("out", call.out, {1.5, 3, 7, 9});
}

// A fractional window admits whole distances up to it; negative and NaN windows are empty, infinite ones reach the
// start.
BOOST_AUTO_TEST_CASE(windows_of_every_size) {
  AttentionCall call = line_call(Mask::sparse, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {10, 20, 30, 40, 50});
  call.window = tensor({1, 1, 5}, {-0.5, quiet_nan, 1.999, 0, inf});
  call.forward();
  check_close("out", call.out, {0, 0, 25, 40, 30});
  check_close("lse", call.lse, {-inf, -inf, ln2, 0, ln5});
}

// Two heads share one window and one list (Hw = Hl = 1): their gradients add up. One query at position 1, w = 0.5,
// edge = 1 (so e = 0 > w - edge: in the edge), tau = 1: key 1 weighs S = sigma(0.5); landmark 0 weighs 1.
// dout of head 0 is 1, of head 1 is 3; v = [0, 1]: o = S/(1 + S), ds_1 = do P_1 (1 - o) = do S/(1 + S)^2 = -ds_0.
// dw = (1 + 3) S/(1 + S)^2 (1 - S); dlambda = -(1 + 3) S/(1 + S)^2.
BOOST_AUTO_TEST_CASE(shared_window_and_list_sum_over_heads) {
  AttentionCall call;
  call.problem.mask = Mask::sparse;
  call.problem.soft_edge = SoftEdge{1, 1};
  call.q = filled({1, 2, 1, 1}, 0);
  call.k = filled({1, 1, 2, 1}, 0);
  call.v = tensor({1, 1, 2, 1}, {0, 1});
  call.window = tensor({1, 1, 1}, {0.5});
  call.landmarks = indices({1, 1, 1, 1}, {0});
  call.lambda = tensor({1, 1, 1, 1}, {0});
  call.dout = tensor({1, 2, 1, 1}, {1, 3});
  call.backward();
  const double s = 1 / (1 + std::exp(-0.5)), p = s / (1 + s);
  check_close("out", call.out, {p, p});
  check_close("dwindow", call.dwindow, {4 * p / (1 + s) * (1 - s)});
  check_close("dlambda", call.dlambda, {-4 * p / (1 + s)});
}

// Absent gradients are not computed, present ones do not depend on it.
BOOST_AUTO_TEST_CASE(gradients_are_optional) {
  AttentionCall call = line_call(Mask::causal, {1, 1}, {0, ln3}, {1, 5});
  call.backward();
  const Tensor only_dk = like(call.k);
  AttentionGradients gradients;
  gradients.dk = only_dk;
  attention_backward(reference(), call.problem, call.inputs(), {call.out, call.lse, call.dout, {}}, gradients);
  check_same("dk", only_dk, call.dk);
  attention_backward(reference(), call.problem, call.inputs(), {call.out, call.lse, call.dout, {}}, {});
  const Tensor out = like(call.out);
  attention_forward(reference(), call.problem, call.inputs(), {out, {}});
  check_same("out", out, call.out);
}

// Each dtype rounds its exact result once: o = 1/3 and lse = ln 3 stored in it.
BOOST_AUTO_TEST_CASE(one_rounding_at_the_end) {
  for (const DType dtype : floating_dtypes) {
    AttentionCall call = line_call(Mask::full, {0}, {0, 0, 0}, {1, 0, 0}, dtype);
    call.forward();
    check_same("out", call.out, tensor({1}, {1.0 / 3}, dtype));
    check_same("lse", call.lse, tensor({1}, {ln3}, statistics_dtype(dtype)));
  }
}

BOOST_AUTO_TEST_SUITE_END()
