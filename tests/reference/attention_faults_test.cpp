// Inputs on which attention libraries have been wrong, with the value that the definition gives.
#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "attention_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {
const double ln2 = std::log(2.0);
}

BOOST_AUTO_TEST_SUITE(attention_faults)

// Nk = 2 < Nq = 5: p(i) = i - 3, so rows 0 to 2 see nothing.
BOOST_AUTO_TEST_CASE(rows_that_see_nothing) {
  AttentionCall call = line_call(Mask::causal, {0, 0, 0, 0, 0}, {0, 0}, {1, 3});
  call.dlse = tensor({1, 1, 5}, {1, 1, 1, 0, 0});  // through rows without keys nothing flows
  call.backward();
  check_same("out", call.out, Values{0, 0, 0, 1, 2});
  check_close("lse", call.lse, {-inf, -inf, -inf, 0, ln2});
  check_close("dq", call.dq, {0, 0, 0, 0, 0});
  check_close("dk", call.dk, {0, 0});
  check_close("dv", call.dv, {1.5, 0.5});
}

BOOST_AUTO_TEST_CASE(no_keys_at_all) {
  for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
    AttentionCall call = line_call(mask, {1, 2}, {}, {});
    call.backward();
    check_same("out", call.out, Values{0, 0});
    check_same("lse", call.lse, Values{-inf, -inf});
    check_close("dq", call.dq, {0, 0});
  }
}

BOOST_AUTO_TEST_CASE(no_queries) {
  AttentionCall call = line_call(Mask::causal, {}, {1, 2}, {3, 4});
  call.backward();
  check_same("dk", call.dk, Values{0, 0});
  check_same("dv", call.dv, Values{0, 0});
}

BOOST_AUTO_TEST_CASE(causal_alignment_is_bottom_right) {
  AttentionCall call = line_call(Mask::causal, {0, 0}, {0, 0, 0, 0, 0}, {1, 2, 3, 4, 5});
  call.forward();
  check_close("out", call.out, {2.5, 3});
}

BOOST_AUTO_TEST_CASE(window_counts_the_keys_before_the_token) {
  const Values zeros(6, 0), v = {0, 1, 2, 3, 4, 5};
  AttentionCall call = line_call(Mask::sparse, zeros, zeros, v);
  const auto out_for = [&](double w) {
    call.window = indices({1, 1, 6}, Values(6, w));
    call.forward();
    return values_of(call.out);
  };
  check_close("w = 2", out_for(2), {0, 0.5, 1, 2, 3, 4});
  check_same("w = 0", out_for(0), v);
  check_close("w = 6", out_for(6), {0, 0.5, 1, 1.5, 2, 2.5});
  check_same("w = -1", out_for(-1), Values(6, 0));
  check_same("lse of w = -1", call.lse, Values(6, -inf));
}

// A lone key has weight exactly 1: o is v bit for bit and dv is do, in every dtype, for any logit.
BOOST_AUTO_TEST_CASE(lone_key_returns_its_value) {
  for (const DType dtype : floating_dtypes) {
    AttentionCall call;
    call.problem.mask = Mask::sparse;
    call.q = random({1, 2, 5, 3}, 1, dtype, 30);
    call.k = random({1, 2, 5, 3}, 2, dtype, 30);
    call.v = random({1, 2, 5, 4}, 3, dtype);
    internal::store_double(call.v, 0, -0.0);
    internal::store_double(call.v, 1, dtype == DType::f16 ? 0x1p-24 : 1e-40);  // subnormal in all but float64
    call.window = filled({1, 1, 5}, 0, statistics_dtype(dtype));
    call.dout = random({1, 2, 5, 4}, 4, dtype);
    call.backward();
    check_same("out", call.out, call.v);
    check_same("dv", call.dv, call.dout);
    check_close("dq", call.dq, Values(30, 0), 0);
    check_close("dk", call.dk, Values(30, 0), 0);
  }
}

// Hq = 9 on Hkv = 3, causal, q = 0: row means per sequence, the second sequence having neither queries nor keys.
BOOST_AUTO_TEST_CASE(empty_sequences_in_a_pack) {
  AttentionCall call;
  call.problem.mask = Mask::causal;
  call.q = filled({2, 9, 64}, 0);
  call.k = random({8, 3, 64}, 1);
  call.v = random({8, 3, 2}, 2);
  call.cu_q = indices({4}, {0, 1, 1, 2});
  call.cu_k = indices({4}, {0, 3, 3, 8});
  call.forward();
  const Values v = values_of(call.v), out = values_of(call.out);
  Values expected;
  for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, 3}, {3, 8}})
    for (std::size_t h = 0; h < 9; ++h)
      for (std::size_t c = 0; c < 2; ++c) {
        double sum = 0;
        for (std::size_t j = begin; j < end; ++j) sum += v[(j * 3 + h / 3) * 2 + c];
        expected.push_back(sum / static_cast<double>(end - begin));
      }
  check_close("out", out, expected);
  check_close("lse", {values_of(call.lse)[0], values_of(call.lse)[9]}, {std::log(3.0), std::log(5.0)});

  // Keys of a sequence without queries get gradient exactly 0.
  call.q = filled({1, 9, 64}, 0);
  call.k = random({5, 3, 64}, 3);
  call.v = random({5, 3, 2}, 4);
  call.cu_q = indices({3}, {0, 0, 1});
  call.cu_k = indices({3}, {0, 2, 5});
  call.backward();
  const Values dk = values_of(call.dk), dv = values_of(call.dv);
  check_same("dk of rows 0 and 1", Values(dk.begin(), dk.begin() + 2 * 3 * 64), Values(2 * 3 * 64, 0));
  check_same("dv of rows 0 and 1", Values(dv.begin(), dv.begin() + 2 * 3 * 2), Values(2 * 3 * 2, 0));
  check_close("dv of the others", Values(dv.begin() + 2 * 3 * 2, dv.end()), Values(3 * 3 * 2, 1));  // 3 heads 1/3 do
}

// Rows past cu_seqlens[S] are neither read (NaN there changes nothing) nor written (they keep their NaN).
BOOST_AUTO_TEST_CASE(buffer_longer_than_cu_seqlens) {
  const auto packed = [](std::int64_t rows, double rest) {
    AttentionCall call;
    call.problem.mask = Mask::sparse;
    call.problem.soft_edge = SoftEdge{2, 1};
    call.problem.landmark_chunk = 2;
    const auto part = [&](const Shape& inner, unsigned seed) {
      Shape used = inner, shape = inner;
      used.insert(used.begin(), 7);
      shape.insert(shape.begin(), rows);
      Values values = values_of(random(used, seed));
      values.resize(static_cast<std::size_t>(element_count(shape)), rest);
      return tensor(shape, values);
    };
    call.q = part({4, 3}, 1);
    call.k = part({2, 3}, 2);
    call.v = part({2, 5}, 3);
    call.window = part({1}, 4);
    call.dout = part({4, 5}, 5);
    call.dlse = part({4}, 6);
    call.landmarks = indices({2, 1, 2, 2}, {0, 1, 2, 0, 0, 2, 1, 0});
    call.lambda = random({2, 1, 2, 2}, 7);
    call.cu_q = call.cu_k = indices({3}, {0, 3, 7});
    call.backward();
    return call;
  };
  const AttentionCall exact = packed(7, 0), longer = packed(9, quiet_nan);
  const auto check = [](const std::string& what, const TensorView& actual, const TensorView& expected) {
    const Values all = values_of(actual);
    const auto used = static_cast<std::ptrdiff_t>(expected.size());
    check_same(what, Values(all.begin(), all.begin() + used), values_of(expected));
    check_same("untouched rows of " + what, Values(all.begin() + used, all.end()),
               Values(all.size() - static_cast<std::size_t>(used), quiet_nan));
  };
  check("out", longer.out, exact.out);
  check("lse", longer.lse, exact.lse);
  check("dq", longer.dq, exact.dq);
  check("dk", longer.dk, exact.dk);
  check("dv", longer.dv, exact.dv);
  check("dwindow", longer.dwindow, exact.dwindow);
  check_same("dlambda", longer.dlambda, exact.dlambda);
}

// Keys past k_lengths do not exist: NaN there changes nothing, p(i) counts from the valid length, gradients are 0.
BOOST_AUTO_TEST_CASE(keys_past_k_lengths) {
  AttentionCall call;
  call.problem.mask = Mask::causal;
  call.problem.scale = 1;
  call.q = filled({2, 1, 2, 1}, 0);
  call.k = tensor({2, 1, 4, 1}, {0, 0, 0, quiet_nan, quiet_nan, quiet_nan, quiet_nan, quiet_nan});
  call.v = tensor({2, 1, 4, 1}, {1, 2, 3, quiet_nan, quiet_nan, quiet_nan, quiet_nan, quiet_nan});
  call.k_lengths = indices({2}, {3, 0});
  call.backward();
  check_close("out", call.out, {1.5, 2, 0, 0});
  check_close("lse", call.lse, {ln2, std::log(3.0), -inf, -inf});
  check_close("dk", call.dk, Values(8, 0));
  check_close("dv", call.dv, {0.5 + 1.0 / 3, 0.5 + 1.0 / 3, 1.0 / 3, 0, 0, 0, 0, 0});
}

BOOST_AUTO_TEST_CASE(partial_tiles) {
  for (const std::int64_t n : {1, 15, 17, 63, 65, 127, 129, 137, 192}) {
    const auto count = static_cast<std::size_t>(n);
    Values v;
    for (std::int64_t j = 0; j < n; ++j) v.push_back(static_cast<double>(j));
    AttentionCall call = line_call(Mask::full, Values(count, 0), Values(count, 0), v, DType::f32);
    call.forward();
    check_same("out", call.out, Values(count, static_cast<double>(n - 1) / 2));
    check_same("lse", call.lse, Values(count, static_cast<float>(std::log(static_cast<double>(n)))));
  }
}

// Two logits, 0 and 64/sqrt(D): o = sigma(64/sqrt(D)).
BOOST_AUTO_TEST_CASE(head_sizes) {
  const std::pair<std::int64_t, double> rows[] = {{40, .999960},  {80, .999220},  {96, .998546},  {128, .996519},
                                                  {192, .990232}, {256, .982014}, {320, 0.972820}};
  for (const auto& [d, expected] : rows) {
    AttentionCall call;
    call.problem.mask = Mask::full;
    call.q = filled({1, 1, 1, d}, 0);
    call.k = filled({1, 1, 2, d}, 0);
    call.v = tensor({1, 1, 2, 1}, {0, 1});
    *call.q.view().at<double>(d - 1) = 8;
    *call.k.view().at<double>(2 * d - 1) = 8;
    call.forward();
    check_close("D = " + std::to_string(d), call.out, {expected}, 3e-7);
  }
}

BOOST_AUTO_TEST_CASE(cross_lengths_and_head_sizes) {
  const auto means = [](std::int64_t nq, std::int64_t nk) {
    AttentionCall call;
    call.problem.mask = Mask::full;
    call.q = filled({1, 1, nq, 16}, 0, DType::bf16);
    call.k = filled({1, 1, nk, 16}, 1, DType::bf16);
    Values v;
    for (std::int64_t j = 0; j < nk; ++j) v.insert(v.end(), 32, static_cast<double>(j));
    call.v = tensor({1, 1, nk, 32}, v, DType::bf16);
    call.forward();
    return values_of(call.out);
  };
  check_same("3 queries, 7 keys", means(3, 7), Values(3 * 32, 3));
  check_same("7 queries, 3 keys", means(7, 3), Values(7 * 32, 1));
}

BOOST_AUTO_TEST_CASE(very_negative_logits) {
  AttentionCall call = line_call(Mask::causal, {-60000, 0}, {1, 0}, {1, 100}, DType::f32);
  call.forward();
  check_same("out", call.out, Values{1, 50.5});
  check_same("lse", call.lse, Values{-60000, static_cast<float>(ln2)});
}

BOOST_AUTO_TEST_CASE(extreme_logits_stay_finite) {
  AttentionCall call = line_call(Mask::full, {1e30}, {1e30, -1e30, 0.99e30}, {3, 5, 7}, DType::f32);
  call.backward();
  check_same("out", call.out, Values{3});
  check_same("lse", call.lse, Values{inf});  // 1e60 is past float32
  check_close("dv", call.dv, {1, 0, 0});
  check_close("dq", call.dq, {0});
}

BOOST_AUTO_TEST_CASE(low_precision_sums) {
  const auto constant = [](double value) {
    AttentionCall call = line_call(Mask::full, {0}, Values(1000, 0), Values(1000, value), DType::bf16);
    call.forward();
    check_same("lse", call.lse, Values{static_cast<float>(std::log(1000.0))});
    return values_of(call.out);
  };
  check_same("v = 1", constant(1), Values{1});
  check_same("v = 0.10009765625", constant(0.10009765625), Values{0.10009765625});
}

BOOST_AUTO_TEST_CASE(lse_is_natural) {
  AttentionCall call = line_call(Mask::full, {1}, {1, 2, 3}, {0, 0, 0});
  call.forward();
  check_close("lse", call.lse, {3.407606}, 2e-7);
}

BOOST_AUTO_TEST_CASE(gradient_of_lse_alone) {
  AttentionCall call = line_call(Mask::full, {1}, {0, 1}, {2, 3});
  call.dout = tensor({1, 1, 1, 1}, {0});
  call.dlse = tensor({1, 1, 1}, {1});
  call.backward();
  check_close("dq", call.dq, {.731059}, 1e-6);
  check_close("dk", call.dk, {.268941, .731059}, 1e-6);
  check_close("dv", call.dv, {0, 0}, 0);
}

BOOST_AUTO_TEST_CASE(scale_is_no_sentinel) {
  AttentionCall call = line_call(Mask::full, {1}, {0, 2}, {0, 1});
  call.problem.scale = -1;
  call.backward();
  check_close("out", call.out, {.119203}, 1e-6);
  check_close("dq", call.dq, {-.209987}, 1e-6);
  check_close("dk", call.dk, {.104994, -.104994}, 1e-6);
  call.problem.scale = 0;
  call.backward();
  check_close("out", call.out, {0.5});
  check_close("dq", call.dq, {0}, 0);
  check_close("dk", call.dk, {0, 0}, 0);
  call.problem.scale = inf;
  BOOST_CHECK_THROW(call.forward(), InvalidArgument);
}

// K above the number of valid candidates: row 0 attends only itself.
BOOST_AUTO_TEST_CASE(more_slots_than_candidates) {
  AttentionCall call = line_call(Mask::sparse, {0, 0}, {0, 0}, {3, 5});
  call.window = filled({1, 1, 2}, 0);
  call.landmarks = indices({1, 1, 1, 4}, {0, -1, -1, -1});
  call.forward();
  check_same("out", call.out, Values{3, 4});
}

// A non-finite key or value arrives only at rows that admit it, and through them only at the keys those rows admit.
BOOST_AUTO_TEST_CASE(non_finite_keys_touch_only_their_rows) {
  const auto run = [](double k1, double v2) {
    AttentionCall call = line_call(Mask::sparse, {1, 1, 1, 1, 1}, {0, k1, 1, 1, 2}, {1, 2, v2, 4, 5});
    call.window = filled({1, 1, 5}, 1);
    call.backward();
    return call;
  };
  const AttentionCall clean = run(3, 3), broken = run(quiet_nan, inf);
  const auto touched = [&](const TensorView& actual, const TensorView& expected, std::size_t n) {
    return std::memcmp(static_cast<double*>(actual.data) + n, static_cast<double*>(expected.data) + n, 8) != 0;
  };
  for (std::size_t i = 0; i < 5; ++i) {
    const bool sees = i >= 1 && i <= 3;  // rows 1, 2 admit key 1; rows 2, 3 admit key 2
    BOOST_TEST(touched(broken.out, clean.out, i) == sees, "out " << i);
    BOOST_TEST(touched(broken.dq, clean.dq, i) == sees, "dq " << i);
    BOOST_TEST(touched(broken.lse, clean.lse, i) == (i == 1 || i == 2), "lse " << i);  // a value is not in lse
  }
  BOOST_TEST(!touched(broken.dk, clean.dk, 4));  // row 4 admits keys 3 and 4; key 4 is admitted by row 4 alone
  BOOST_TEST(!touched(broken.dv, clean.dv, 4));
}

// Heads 2^31 + 5 elements apart, in address space that is reserved and not filled: all offsets need 64 bits.
BOOST_AUTO_TEST_CASE(offsets_past_31_bits) {
  const std::int64_t apart = (std::int64_t{1} << 31) + 5;
  const std::size_t bytes = static_cast<std::size_t>(apart + 4096) * 2;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BOOST_REQUIRE(memory != MAP_FAILED);
  std::int64_t used = 0;
  const auto far_tensor = [&] {
    TensorView view = TensorView::of(static_cast<bfloat16*>(memory) + used, DType::bf16, {1, 2, 3, 4});
    view.strides[1] = apart;
    used += 12;
    return view;
  };
  const auto near = [](unsigned seed) { return random({1, 2, 3, 4}, seed, DType::bf16); };
  AttentionCall call;
  call.problem.mask = Mask::causal;
  call.q = near(1);
  call.k = near(2);
  call.v = near(3);
  call.dout = near(4);
  call.backward();
  const TensorView q = far_tensor(), k = far_tensor(), v = far_tensor(), dout = far_tensor();
  copy_elements(call.q, q);
  copy_elements(call.k, k);
  copy_elements(call.v, v);
  copy_elements(call.dout, dout);
  const TensorView out = far_tensor(), dq = far_tensor(), dk = far_tensor(), dv = far_tensor();
  AttentionInputs in;
  in.q = q;
  in.k = k;
  in.v = v;
  attention_forward(reference(), call.problem, in, {out, {}});
  attention_backward(reference(), call.problem, in, {out, call.lse, dout, {}}, {dq, dk, dv, {}, {}});
  check_same("out", out, call.out);
  check_same("dq", dq, call.dq);
  check_same("dk", dk, call.dk);
  check_same("dv", dv, call.dv);
  munmap(memory, bytes);
}

// 65,537 heads and 65,537 sequences: past every 16-bit count.
BOOST_AUTO_TEST_CASE(many_heads_and_many_sequences) {
  const std::int64_t many = 65537;
  Values v(many);
  for (std::size_t n = 0; n < v.size(); ++n) v[n] = static_cast<double>(n);
  AttentionCall call;
  call.problem.mask = Mask::causal;
  call.q = filled({1, many, 1, 1}, 0, DType::f32);
  call.k = filled({1, many, 1, 1}, 0, DType::f32);
  call.v = tensor({1, many, 1, 1}, v, DType::f32);
  call.backward();
  check_same("heads", call.out, v);
  check_same("dv of heads", call.dv, Values(v.size(), 1));

  Values cu(many + 1);
  for (std::size_t n = 0; n < cu.size(); ++n) cu[n] = static_cast<double>(n);
  call = {};
  call.problem.mask = Mask::causal;
  call.q = filled({many, 1, 1}, 0, DType::f32);
  call.k = filled({many, 1, 1}, 0, DType::f32);
  call.v = tensor({many, 1, 1}, v, DType::f32);
  call.cu_q = call.cu_k = indices({many + 1}, cu);
  call.backward();
  check_same("sequences", call.out, v);
  check_same("dv of sequences", call.dv, Values(v.size(), 1));
}

BOOST_AUTO_TEST_SUITE_END()
