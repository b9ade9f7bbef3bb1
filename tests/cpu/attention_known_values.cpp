// Small calls whose right values are known in closed form, and calls of extreme size.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstring>
#include <limits>

#include <sys/mman.h>

#include "attention_support.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

using Floats = std::vector<float>;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// B = H = D = 1 unless said otherwise.
struct Tiny {
  AttentionProblem problem;
  std::int64_t nq, nk, d = 1, dv = 1;
  Floats q, k, v, window;
  std::vector<std::int32_t> landmarks;
  Floats out, lse, dq, dk, dv_gradient;

  AttentionInputs inputs() const {
    AttentionInputs in;
    in.q = TensorView::of(q.data(), {1, 1, nq, d});
    in.k = TensorView::of(k.data(), {1, 1, nk, d});
    in.v = TensorView::of(v.data(), {1, 1, nk, dv});
    if (!window.empty()) in.window = TensorView::of(window.data(), {1, 1, nq});
    if (!landmarks.empty())
      in.landmarks = TensorView::of(landmarks.data(), {1, 1, 1, static_cast<std::int64_t>(landmarks.size())});
    return in;
  }
  void forward() {
    out.assign(static_cast<std::size_t>(nq * dv), -7);
    lse.assign(static_cast<std::size_t>(nq), -7);
    attention_forward(*cpu_backend(1), problem, inputs(),
                      {TensorView::of(out.data(), {1, 1, nq, dv}), TensorView::of(lse.data(), {1, 1, nq})});
  }
  void backward(const Floats& dout, const Floats& dlse = {}) {
    forward();
    dq.assign(q.size(), -7);
    dk.assign(k.size(), -7);
    dv_gradient.assign(v.size(), -7);
    AttentionSaved saved{TensorView::of(out.data(), {1, 1, nq, dv}),
                         TensorView::of(lse.data(), {1, 1, nq}),
                         TensorView::of(dout.data(), {1, 1, nq, dv}),
                         {}};
    if (!dlse.empty()) saved.dlse = TensorView::of(dlse.data(), {1, 1, nq});
    AttentionGradients gradients;
    gradients.dq = TensorView::of(dq.data(), {1, 1, nq, d});
    gradients.dk = TensorView::of(dk.data(), {1, 1, nk, d});
    gradients.dv = TensorView::of(dv_gradient.data(), {1, 1, nk, dv});
    attention_backward(*cpu_backend(1), problem, inputs(), saved, gradients);
  }
};

Tiny tiny(Mask mask, Floats q, Floats k, Floats v) {
  Tiny call;
  call.problem.mask = mask;
  call.problem.scale = 1;
  call.nq = static_cast<std::int64_t>(q.size());
  call.nk = static_cast<std::int64_t>(k.size());
  call.q = std::move(q);
  call.k = std::move(k);
  call.v = std::move(v);
  return call;
}

void check_close(const Floats& values, const Floats& expected, float relative = 1e-6f) {
  BOOST_TEST_REQUIRE(values.size() == expected.size());
  for (std::size_t n = 0; n < values.size(); ++n) {
    if (values[n] == expected[n]) continue;
    BOOST_TEST(std::fabs(values[n] - expected[n]) <= relative * std::max(std::fabs(expected[n]), 1e-3f),
               "element " << n << " is " << values[n] << ", expected " << expected[n]);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_attention_known_values)

BOOST_AUTO_TEST_CASE(rows_that_see_nothing) {
  Tiny call = tiny(Mask::causal, Floats(5, 0), {0, 0}, {1, 3});
  call.backward(Floats(5, 1));
  check_close(call.out, {0, 0, 0, 1, 2});
  check_close(call.lse, {minus_infinity, minus_infinity, minus_infinity, 0, 0.693147181f});
  check_close(call.dq, Floats(5, 0));
  check_close(call.dk, {0, 0});
  check_close(call.dv_gradient, {1.5f, 0.5f});
}

BOOST_AUTO_TEST_CASE(windows_count_the_token_itself) {
  const Floats v = {0, 1, 2, 3, 4, 5};
  Tiny call = tiny(Mask::sparse, Floats(6, 0), Floats(6, 0), v);
  call.window = Floats(6, 2);
  call.forward();
  check_close(call.out, {0, 0.5f, 1, 2, 3, 4});
  call.window = Floats(6, 0);
  call.forward();
  BOOST_TEST(call.out == v);
  call.window = Floats(6, -1);
  call.forward();
  check_close(call.out, Floats(6, 0));
  check_close(call.lse, Floats(6, minus_infinity));
}

BOOST_AUTO_TEST_CASE(a_single_key_is_copied) {
  // Weight exactly 1 whatever the score, subnormal values kept.
  for (const float score : {0.0f, 1.0f, -3.7e4f, 8.1e5f}) {
    Tiny call = tiny(Mask::sparse, {score, score, score}, {1, 1, 1}, {1e-40f, -3.25f, 3e38f});
    call.window = Floats(3, 0);
    call.forward();
    BOOST_TEST(call.out == call.v);
    BOOST_TEST(call.lse == call.q);
    call.window = Floats(3, -1);
    call.landmarks = {1, -1, 1, 2, 7};
    call.nq = 1;
    call.forward();  // its position is 2: both landmarks
    check_close(call.out, {1.5e38f});
  }
}

BOOST_AUTO_TEST_CASE(landmarks_are_a_set_outside_the_window) {
  Tiny call = tiny(Mask::sparse, Floats(4, 0), Floats(4, 0), {1, 10, 100, 1000});
  call.window = {0, 0, 0, 1};
  call.landmarks = {0, 3, 0, -1, 4, 2, 0};
  call.forward();
  check_close(call.out, {1, 5.5f, 50.5f, 367});  // {0}, {0,1}, {0,2}, {0,2,3}
}

BOOST_AUTO_TEST_CASE(extreme_scores) {
  Tiny call = tiny(Mask::causal, {-60000, 0}, {1, 0}, {1, 100});
  call.forward();
  check_close(call.out, {1, 50.5f});
  check_close(call.lse, {-60000, 0.693147181f});
  // Two equal scores of 60000: lse rounds to a multiple of 2^-8, the gradients do not see it.
  call = tiny(Mask::full, {300}, {200, 200}, {1, 2});
  call.backward({1});
  check_close(call.out, {1.5f});
  check_close(call.dv_gradient, {0.5f, 0.5f});
  check_close(call.dk, {-75, 75});
  // Far apart: the lower one vanishes without a trace.
  call = tiny(Mask::full, {1}, {1e30f, -1e30f}, {5, 7});
  call.backward({1});
  check_close(call.out, {5});
  check_close(call.dv_gradient, {1, 0});
  check_close(call.dk, {0, 0});
}

BOOST_AUTO_TEST_CASE(scale_and_gradients) {
  Tiny call = tiny(Mask::full, {1}, {0, 2}, {0, 1});
  call.problem.scale = -1;
  call.backward({1});
  check_close(call.out, {0.119202922f});
  check_close(call.dq, {-0.209987171f});
  check_close(call.dk, {0.104993585f, -0.104993585f});
  call.problem.scale = 0;
  call.backward({1});
  check_close(call.out, {0.5f});
  check_close(call.dq, {0});
  check_close(call.dk, {0, 0});
  call = tiny(Mask::full, {1}, {0, 1}, {0, 0});
  call.backward({0}, {1});
  check_close(call.dq, {0.731058579f});
  check_close(call.dk, {0.268941421f, 0.731058579f});
  check_close(call.dv_gradient, {0, 0});
}

BOOST_AUTO_TEST_CASE(constant_values_in_bfloat16) {
  const std::int64_t n = 1000, d = 8;
  Setup setup;
  setup.nq = setup.nk = n;
  setup.dtype = DType::bf16;
  setup.size = 3;
  setup.dv = d;
  const Call call = draw(setup);
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t c = 0; c < d; ++c)
      call.inputs.v.at<bfloat16>(0)[j * d + c] = to_bfloat16(static_cast<float>(0.1 * static_cast<double>(c + 1)));
  for (const double value : values_of(run(*cpu_backend(2), call, false).at("out").view().select(0, 0).select(0, 0)))
    BOOST_TEST(value > 0.09);
  const std::vector<double> out = values_of(run(*cpu_backend(2), call, false).at("out"));
  for (std::size_t m = 0; m < out.size(); ++m) {
    const double right = static_cast<double>(to_float(call.inputs.v.at<bfloat16>(0)[m % d]));
    BOOST_TEST(std::fabs(out[m] - right) <= right * 0x1p-8);
  }
}

BOOST_AUTO_TEST_CASE(dropout_scales_what_it_keeps) {
  const std::int64_t n = 64;
  Tiny call = tiny(Mask::full, Floats(64, 0), Floats(64, 0), {});
  call.dv = n;
  call.v.assign(static_cast<std::size_t>(n * n), 0);
  for (std::int64_t j = 0; j < n; ++j) call.v[static_cast<std::size_t>(j * n + j)] = 1;
  call.problem.dropout = Dropout{0.5, 42, 1};
  call.forward();
  std::size_t kept = 0;
  for (const float x : call.out) {
    BOOST_TEST((x == 0 || x == 2.0f / 64));
    kept += x != 0;
  }
  BOOST_TEST((kept > 64u * 64 / 2 - 300 && kept < 64u * 64 / 2 + 300));
  call.problem.dropout->p = 1;
  call.backward(Floats(64 * 64, 1));
  check_close(call.out, Floats(64 * 64, 0));
  check_close(call.dv_gradient, Floats(64 * 64, 0));
}

BOOST_AUTO_TEST_CASE(merging) {
  const auto backend = cpu_backend(2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats out1 = {nan, 1, 5, nan, 1}, lse1 = {minus_infinity, 0, 90000, minus_infinity, 0};
  const Floats out2 = {nan, nan, 7, 1e-40f, 3}, lse2 = {minus_infinity, minus_infinity, 90000, -50, 1};
  Floats out(5), lse(5);
  merge(*backend,
        {TensorView::of(out1.data(), {5, 1}), TensorView::of(lse1.data(), {5}), TensorView::of(out2.data(), {5, 1}),
         TensorView::of(lse2.data(), {5})},
        {TensorView::of(out.data(), {5, 1}), TensorView::of(lse.data(), {5})});
  check_close(out, {0, 1, 6, 1e-40f, 2.46211716f});
  BOOST_TEST(out[3] == 1e-40f);
  check_close(lse, {minus_infinity, 0, 90000.6931f, -50, 1.31326169f});
}

BOOST_AUTO_TEST_CASE(parts_merge_into_the_whole) {
  const auto backend = cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::f16}) {
    Setup setup;
    setup.problem.mask = Mask::full;
    setup.dtype = dtype;
    setup.b = 2;
    setup.hq = setup.hkv = 3;
    setup.nq = 20;
    setup.nk = 150;
    const Call call = draw(setup);
    const Results whole = run(*backend, call, false);
    Results sum;
    for (const auto& [begin, count] : {std::pair{0, 70}, {70, 0}, {70, 80}}) {
      Call part = call;
      part.inputs.k = call.inputs.k.narrow(2, begin, count);
      part.inputs.v = call.inputs.v.narrow(2, begin, count);
      const Results more = run(*backend, part, false);
      if (sum.empty()) {
        sum = more;
        continue;
      }
      Results both = run(*backend, call, false, 7);
      merge(*backend, {sum.at("out"), sum.at("lse"), more.at("out"), more.at("lse")}, {both.at("out"), both.at("lse")});
      if (count == 0) check_same_bytes(both, sum, "merging an empty part");
      sum = both;
    }
    for (const char* name : {"out", "lse"}) {
      const std::vector<double> a = values_of(sum.at(name)), b = values_of(whole.at(name));
      const double tolerance = dtype == DType::f16 && std::strcmp(name, "out") == 0 ? 2e-3 : 2e-6;
      for (std::size_t n = 0; n < a.size(); ++n)
        BOOST_TEST(std::fabs(a[n] - b[n]) <= tolerance * (1 + std::fabs(b[n])));
    }
  }
}

BOOST_AUTO_TEST_CASE(many_sequences_and_heads) {
  for (const bool heads : {false, true}) {
    const std::int64_t many = 65537;
    Setup setup;
    setup.problem.mask = Mask::sparse;
    setup.window = [](std::int64_t, std::int64_t) { return 3.0; };
    (heads ? setup.hq : setup.b) = many;
    setup.hkv = setup.hq;
    setup.nq = 1;
    setup.nk = 2;
    setup.d = setup.dv = 1;
    setup.slots = 1;
    setup.landmark = [](auto, auto, auto) { return 0; };
    setup.weights = true;
    const Call call = draw(setup);
    const Results all = run(*cpu_backend(2), call, true);
    const int dim = heads ? 1 : 0;
    Call last = call;
    for (TensorView* view : {&last.inputs.q, &last.inputs.k, &last.inputs.v, &last.arriving.dout, &last.arriving.dlse})
      *view = view->narrow(dim, many - 1, 1);
    if (!heads)
      for (TensorView* view : {&last.inputs.window, &last.inputs.landmarks, &last.inputs.landmark_log_weight})
        *view = view->narrow(0, many - 1, 1);
    for (const auto& [name, tensor] : run(*cpu_backend(2), last, true))
      if (heads ? name[1] != 'w' && name[1] != 'l' : true)  // a shared window or list sums over heads
        BOOST_TEST(values_of(tensor) == values_of(all.at(name).view().narrow(dim, many - 1, 1)), name);
  }
}

BOOST_AUTO_TEST_CASE(offsets_beyond_32_bits) {
  // Rows 1.5e9 elements apart in reserved, mostly untouched memory.
  const std::int64_t step = 1500000000, rows = 4, d = 4;
  const std::size_t bytes = static_cast<std::size_t>(step * rows) * 2;
  void* memory[3];
  for (void*& block : memory) {
    block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BOOST_TEST_REQUIRE((block != MAP_FAILED));
  }
  const auto view = [&](void* data) {
    TensorView v = TensorView::of(data, DType::bf16, {1, 1, rows, d});
    v.strides = {step * rows, step * rows, step, 1};
    return v;
  };
  const TensorView v = view(memory[0]), out = view(memory[1]), dv = view(memory[2]);
  for (std::int64_t j = 0; j < rows; ++j)
    for (std::int64_t c = 0; c < d; ++c)
      *v.at<bfloat16>(j * step + c) = to_bfloat16(static_cast<float>(j * 10 + c + 1));
  Floats window(4, 0), lse(4);
  AttentionProblem problem;
  problem.mask = Mask::sparse;
  AttentionInputs in;
  in.q = in.k = in.v = v;
  in.window = TensorView::of(window.data(), {1, 1, rows});
  attention_forward(*cpu_backend(2), problem, in, {out, TensorView::of(lse.data(), {1, 1, rows})});
  AttentionGradients gradients;
  gradients.dv = dv;
  attention_backward(*cpu_backend(2), problem, in, {out, TensorView::of(lse.data(), {1, 1, rows}), v, {}}, gradients);
  BOOST_TEST(values_of(out) == values_of(v));
  BOOST_TEST(values_of(dv) == values_of(v));
  for (void* block : memory) ::munmap(block, bytes);
}

BOOST_AUTO_TEST_SUITE_END()
