// Bytes that must be equal: another run, another number of threads, another batch or pack or padding, decode and
// chunked prefill; and every instruction set against the reference.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "attention_support.hpp"
#include "internal/elements.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

/// Windows with a soft edge, untidy lists with weights, grouped heads: everything that shares work between rows.
Setup rich(std::int64_t nq, std::int64_t nk, std::int64_t chunk) {
  Setup setup;
  setup.name = "rich";
  setup.problem.mask = Mask::sparse;
  setup.problem.soft_edge = SoftEdge{6, 2};
  setup.problem.landmark_chunk = chunk;
  setup.b = 2;
  setup.hq = 4;
  setup.hkv = 2;
  setup.nq = nq;
  setup.nk = nk;
  setup.d = 40;
  setup.dv = 24;
  setup.hw = 4;
  setup.hl = 4;
  setup.slots = 70;
  setup.weights = true;
  setup.window = ragged;
  setup.landmark = [nk](auto h, auto t, auto slot) { return untidy(h, t, slot, nk); };
  return setup;
}

Setup dense(Mask mask, std::int64_t nq, std::int64_t nk) {
  Setup setup;
  setup.name = "dense";
  setup.problem.mask = mask;
  setup.b = 3;
  setup.hq = 4;
  setup.hkv = 2;
  setup.nq = nq;
  setup.nk = nk;
  setup.d = 40;
  setup.dv = 24;
  return setup;
}

/// A contiguous copy.
Tensor copied(const TensorView& view) {
  Tensor tensor = Tensor::empty(std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), view.dtype);
  copy_elements(view, tensor);
  return tensor;
}

/// Whether two equally shaped views hold the same bits, whatever their strides.
bool equal(const TensorView& a, const TensorView& b) { return same_bytes(copied(a), copied(b)); }

/// Sequence b of a padded call, alone.
Call alone(const Call& call, std::int64_t b) {
  Call one = call;
  for (TensorView* view :
       {&one.inputs.q, &one.inputs.k, &one.inputs.v, &one.inputs.window, &one.inputs.landmarks,
        &one.inputs.landmark_log_weight, &one.inputs.k_lengths, &one.arriving.dout, &one.arriving.dlse})
    if (view->present()) *view = view->narrow(0, b, 1);
  return one;
}

/// Queries [begin, begin + count) of a padded call against its first begin + count + (nk - nq) keys.
Call part(const Call& call, std::int64_t begin, std::int64_t count) {
  Call some = call;
  AttentionInputs& in = some.inputs;
  const std::int64_t keys = begin + count + in.k.shape[2] - in.q.shape[2];
  in.q = in.q.narrow(2, begin, count);
  in.k = in.k.narrow(2, 0, keys);
  in.v = in.v.narrow(2, 0, keys);
  if (in.window.present()) in.window = in.window.narrow(2, begin, count);
  if (call.problem.landmark_chunk) {
    const std::int64_t c = *call.problem.landmark_chunk, first = begin / c, last = (begin + count - 1) / c;
    some.problem.landmark_offset = begin % c;
    in.landmarks = in.landmarks.narrow(2, first, last - first + 1);
    in.landmark_log_weight = in.landmark_log_weight.narrow(2, first, last - first + 1);
  }
  return some;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_attention_invariance)

BOOST_AUTO_TEST_CASE(runs_and_threads) {
  std::vector<Setup> setups = {rich(200, 230, 1),
                               rich(200, 230, 50),
                               rich(330, 330, 128),
                               rich(150, 90, 1000),
                               dense(Mask::causal, 200, 260),
                               dense(Mask::full, 70, 70)};
  setups.push_back(rich(200, 200, 64));
  setups.back().hw = setups.back().hl = 1;
  setups.push_back(dense(Mask::causal, 200, 260));
  setups.back().problem.dropout = Dropout{0.4, 5, 6};
  setups.back().dtype = DType::bf16;
  for (const Setup& setup : setups) {
    const Call call = draw(setup);
    const Results once = run(*cpu_backend(1), call, true);
    for (const int threads : {1, 2, 7})
      check_same_bytes(once, run(*cpu_backend(threads), call, true), std::to_string(threads) + " threads");
  }
}

BOOST_AUTO_TEST_CASE(a_sequence_alone_and_in_a_batch) {
  const auto backend = cpu_backend(2);
  for (Setup setup : {rich(150, 170, 50), dense(Mask::causal, 200, 210), dense(Mask::full, 3, 130)})
    for (const DType dtype : {DType::f32, DType::f16}) {
      setup.dtype = dtype;
      const Call call = draw(setup);
      const Results together = run(*backend, call, true);
      for (std::int64_t b = 0; b < setup.b; ++b)
        for (const auto& [name, tensor] : run(*backend, alone(call, b), true))
          BOOST_TEST(equal(tensor, together.at(name).view().narrow(0, b, 1)), name << " of sequence " << b);
    }
}

BOOST_AUTO_TEST_CASE(padding_changes_nothing) {
  const auto backend = cpu_backend(2);
  for (Setup setup : {rich(100, 200, 50), dense(Mask::causal, 100, 200), dense(Mask::full, 70, 200)}) {
    setup.b = 1;
    setup.k_lengths = {133};
    const Call padded = draw(setup);
    Call exact = padded;
    exact.inputs.k_lengths = {};
    exact.inputs.k = padded.inputs.k.narrow(2, 0, 133);
    exact.inputs.v = padded.inputs.v.narrow(2, 0, 133);
    const Results a = run(*backend, padded, true, 7), b = run(*backend, exact, true, 7);
    for (const auto& [name, tensor] : b) {
      const bool keys = name == "dk" || name == "dv";
      BOOST_TEST(equal(tensor, keys ? a.at(name).view().narrow(2, 0, 133) : a.at(name).view()), name);
    }
    for (const char* name : {"dk", "dv"})
      for (const double value : values_of(a.at(name).view().narrow(2, 133, 67))) BOOST_TEST(value == 0);
  }
}

BOOST_AUTO_TEST_CASE(packs_equal_their_sequences) {
  const auto backend = cpu_backend(2);
  Setup setup = rich(0, 0, 20);
  setup.pack_q = {70, 0, 1, 130};
  setup.pack_k = {90, 5, 64, 100};
  setup.slack = 3;
  setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 100); };
  const Call call = draw(setup);
  const Results whole = run(*backend, call, true, 7);
  std::int64_t q0 = 0, k0 = 0;
  for (std::int64_t s = 0; s < 4; ++s) {
    const std::int64_t nq = setup.pack_q[static_cast<std::size_t>(s)], nk = setup.pack_k[static_cast<std::size_t>(s)];
    const auto rows = [&](const TensorView& view, std::int64_t first, std::int64_t count) {  // [R,H,...] -> [1,H,N,...]
      TensorView one = view.narrow(0, first, count).transpose(0, 1);
      TensorView batch = one;
      batch.rank = one.rank + 1;
      batch.shape = {1, one.shape[0], one.shape[1], one.shape[2]};
      batch.strides = {0, one.strides[0], one.strides[1], one.strides[2]};
      return batch;
    };
    Call one = call;
    AttentionInputs& in = one.inputs;
    in.cu_seqlens_q = in.cu_seqlens_k = {};
    in.q = rows(in.q, q0, nq);
    in.window = rows(in.window, q0, nq);
    in.k = rows(in.k, k0, nk);
    in.v = rows(in.v, k0, nk);
    one.arriving.dout = rows(call.arriving.dout, q0, nq);
    one.arriving.dlse = rows(call.arriving.dlse, q0, nq);
    const std::int64_t lists = (nq + 19) / 20;
    in.landmarks = in.landmarks.narrow(0, s, 1).narrow(2, 0, lists);
    in.landmark_log_weight = in.landmark_log_weight.narrow(0, s, 1).narrow(2, 0, lists);
    for (const auto& [name, tensor] : run(*backend, one, true)) {
      if (name == "dlandmark_log_weight")
        BOOST_TEST(equal(tensor, whole.at(name).view().narrow(0, s, 1).narrow(2, 0, lists)), name);
      else if (name == "dk" || name == "dv")
        BOOST_TEST(equal(tensor, rows(whole.at(name), k0, nk)), name << " of sequence " << s);
      else
        BOOST_TEST(equal(tensor, rows(whole.at(name), q0, nq)), name << " of sequence " << s);
    }
    q0 += nq;
    k0 += nk;
  }
  for (const char* name : {"out", "lse", "dq", "dk", "dv", "dwindow"}) {  // rows past the last sequence
    const TensorView& view = whole.at(name).view();
    for (const double value : values_of(view.narrow(0, view.shape[0] - 3, 3))) BOOST_TEST(value == 7);
  }
}

BOOST_AUTO_TEST_CASE(decode_and_chunked_prefill_equal_the_full_forward) {
  const auto backend = cpu_backend(2);
  for (Setup setup : {rich(150, 190, 1), rich(150, 150, 33), rich(200, 200, 128), dense(Mask::causal, 150, 190)})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      setup.dtype = dtype;
      const Call call = draw(setup);
      const Results whole = run(*backend, call, false);
      std::vector<std::pair<std::int64_t, std::int64_t>> parts = {{0, 64}, {64, 50}, {114, setup.nq - 114}};
      for (std::int64_t i = 0; i < setup.nq; ++i) parts.emplace_back(i, 1);
      for (const auto& [begin, count] : parts) {
        const Results some = run(*backend, part(call, begin, count), false);
        for (const char* name : {"out", "lse"})
          BOOST_TEST(equal(some.at(name), whole.at(name).view().narrow(2, begin, count)),
                     name << " of queries " << begin << " + " << count);
      }
    }
}

BOOST_AUTO_TEST_CASE(keys_that_are_not_admitted_are_not_seen) {
  const auto backend = cpu_backend(2);
  for (const Setup& setup : {rich(150, 150, 150), dense(Mask::causal, 150, 150)}) {
    const Call call = draw(setup);
    const Results before = run(*backend, call, false);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const TensorView* view : {&call.inputs.k, &call.inputs.v}) {
      const TensorView future = view->narrow(2, 100, 50);
      internal::for_each_element([&](std::int64_t at) { internal::store_double(future, at, nan); }, future);
    }
    const Results after = run(*backend, call, false);
    for (const char* name : {"out", "lse"}) {
      BOOST_TEST(equal(before.at(name).view().narrow(2, 0, 100), after.at(name).view().narrow(2, 0, 100)), name);
      BOOST_TEST(!equal(before.at(name), after.at(name)), name);
    }
  }
}

BOOST_AUTO_TEST_CASE(all_keys_as_landmarks_equal_causal) {
  // So many that the backward pass folds their gradients in several rounds.
  Setup setup = dense(Mask::causal, 4480, 4480);
  setup.b = setup.hq = setup.hkv = 1;
  setup.d = setup.dv = 4;
  setup.slots = 4480;
  setup.landmark = [](auto, auto, auto slot) { return static_cast<std::int32_t>(4479 - slot); };
  Call listed = draw(setup), causal = listed;
  listed.problem.mask = Mask::sparse;
  causal.inputs.landmarks = {};
  const Results a = run(*cpu_backend(2), listed, true), b = run(*cpu_backend(2), causal, true);
  for (const auto& [name, tensor] : b) {
    const std::vector<double> expected = values_of(tensor), actual = values_of(a.at(name));
    double worst = 0;
    for (std::size_t n = 0; n < expected.size(); ++n)
      worst = std::max(worst, std::fabs(actual[n] - expected[n]) / (1 + std::fabs(expected[n])));
    BOOST_TEST(worst < 2e-5, name << " differs by " << worst);
  }
  check_same_bytes(a, run(*cpu_backend(1), listed, true), "rounds of another size");
}

BOOST_AUTO_TEST_CASE(strides_change_nothing) {
  const auto backend = cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Setup setup = rich(100, 110, 40);
    setup.dtype = dtype;
    setup.strided = true;
    Call strided = draw(setup);
    strided.arriving.dout.strides[2] = 0;  // one row of dout for all queries
    Call plain = strided;
    std::vector<Tensor> keep;
    for (TensorView* view : {&plain.inputs.q, &plain.inputs.k, &plain.inputs.v, &plain.arriving.dout}) {
      keep.push_back(copied(*view));
      *view = keep.back();
    }
    check_same_bytes(run(*backend, strided, true), run(*backend, plain, true), "strided views");
  }
}

// What a row may not see does not reach it, whatever it is: the products of bfloat16 treat tiny, infinite and NaN
// values apart, and that must not show in rows that do not admit them.
BOOST_AUTO_TEST_CASE(values_out_of_sight) {
  const auto backend = cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Setup setup = dense(Mask::causal, 150, 150);
    setup.dtype = dtype;
    setup.backward = false;
    const Call call = draw(setup);
    const Results before = run(*backend, call, false);
    const std::int64_t seen = 100, width = setup.dv;
    std::vector<double> values = values_of(call.inputs.v);
    for (std::int64_t j = seen; j < setup.nk; ++j)
      for (std::int64_t c = 0; c < width; ++c) {
        const double odd[] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e-39};
        values[static_cast<std::size_t>(j * width + c)] = odd[(j + c) % 3];
      }
    Call changed = call;
    const Tensor wide = Tensor::empty(std::span(call.inputs.v.shape.data(), 4), DType::f64);
    for (std::size_t n = 0; n < values.size(); ++n) wide.view().at<double>(0)[n] = values[n];
    const Tensor v = Tensor::empty(std::span(call.inputs.v.shape.data(), 4), dtype);
    copy_elements(wide, v);
    changed.inputs.v = v;
    const Results after = run(*backend, changed, false);
    const std::vector<double> a = values_of(before.at("out")), b = values_of(after.at("out"));
    for (std::size_t n = 0; n < static_cast<std::size_t>(seen * width); ++n) BOOST_REQUIRE_EQUAL(a[n], b[n]);
  }
}

// Lists past the last query of a sequence are never read, so what they hold changes no bit, not the sign of a zero
// either.
BOOST_AUTO_TEST_CASE(lists_out_of_reach) {
  for (const int threads : {1, 3}) {
    const auto backend = cpu_backend(threads);
    Setup setup;
    setup.name = "lists out of reach";
    setup.problem.mask = Mask::sparse;
    setup.problem.landmark_chunk = 2;
    setup.problem.scale = -1;
    setup.pack_q = setup.pack_k = {2, 4};
    setup.window = [](auto, auto) { return 1.0; };
    setup.slots = 1;
    setup.landmark = [](auto, auto t, auto) { return t == 0 ? 1 : 0; };
    setup.dlse = false;
    const Call named = draw(setup);
    for (std::int64_t n = 0; n < named.arriving.dout.size(); ++n) named.arriving.dout.at<float>(0)[n] = 0;
    Call unnamed = named;
    const Tensor lists = copied(named.inputs.landmarks);  // [2,1,2,1]: the first sequence reads list 0 only
    lists.view().at<std::int32_t>(0)[1] = -1;
    unnamed.inputs.landmarks = lists;
    check_same_bytes(run(*backend, named, true), run(*backend, unnamed, true), setup.name);
  }
}

// Row tiles that reach differently far, in one head on many threads: the order in which they add to keys holds.
BOOST_AUTO_TEST_CASE(uneven_reach_on_many_threads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Setup setup;
    setup.name = "uneven reach";
    setup.dtype = dtype;
    setup.problem.mask = Mask::sparse;
    setup.nq = setup.nk = 1100;
    setup.hq = setup.hw = 2;
    setup.window = [](auto h, auto i) { return i / 64 % 3 == h ? 5000.0 : i % 7 == 0 ? 150.0 : 3.0; };
    for (const bool bidirectional : {false, true}) {
      setup.problem.bidirectional = bidirectional;
      const Call call = draw(setup);
      check_same_bytes(run(*cpu_backend(1), call, true), run(*cpu_backend(6), call, true), setup.name);
    }
  }
}

// Heads that one thread walks store a key tile when no later row admits its keys, and use its place again; with more
// threads than heads the tiles of a head run side by side instead. Both give the same bytes, and the right ones.
BOOST_AUTO_TEST_CASE(keys_that_are_stored_early) {
  for (const std::int64_t chunk : {0, 16, 128}) {  // 0: no landmarks
    Setup setup;
    setup.name = "stored early, chunk " + std::to_string(chunk);
    setup.problem.mask = Mask::sparse;
    setup.b = 2;
    setup.hq = setup.hw = 2;
    setup.nq = setup.nk = 700;
    setup.d = 40;
    setup.dv = 24;
    setup.k_lengths = {650, 300};
    setup.window = [](auto h, auto i) { return i == 400 + 100 * h ? 390.0 : i % 5 == 0 ? 90.0 : 10.0; };
    if (chunk > 0) {
      setup.problem.landmark_chunk = chunk;
      setup.hl = 2;
      setup.slots = 9;
      setup.weights = true;
      setup.landmark = [](auto h, auto t, auto slot) {
        return static_cast<std::int32_t>((31 * h + 17 * t + 53 * slot) % 700);
      };
    }
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      setup.dtype = dtype;
      check_against_reference(setup, *cpu_backend(1));
      const Call call = draw(setup);
      check_same_bytes(run(*cpu_backend(1), call, true), run(*cpu_backend(7), call, true), setup.name);
    }
  }
}

// Values far below what bfloat16 products keep.
BOOST_AUTO_TEST_CASE(tiny_values) {
  const auto backend = cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Setup setup = dense(Mask::causal, 90, 90);
    setup.dtype = dtype;
    setup.backward = false;
    const Call call = draw(setup);
    const std::vector<double> right = values_of(run(*backend, call, false).at("out"));
    Call scaled = call;
    const Tensor wide = Tensor::empty(std::span(call.inputs.v.shape.data(), 4), DType::f64);
    const std::vector<double> values = values_of(call.inputs.v);
    for (std::size_t n = 0; n < values.size(); ++n) wide.view().at<double>(0)[n] = std::ldexp(values[n], -110);
    const Tensor v = Tensor::empty(std::span(call.inputs.v.shape.data(), 4), dtype);
    copy_elements(wide, v);
    scaled.inputs.v = v;
    const std::vector<double> out = values_of(run(*backend, scaled, false).at("out"));
    for (std::size_t n = 0; n < out.size(); ++n)
      BOOST_REQUIRE_LE(std::fabs(std::ldexp(out[n], 110) - right[n]),
                       (dtype == DType::bf16 ? 0x1p-8 : 0x1p-12) * (std::fabs(right[n]) + 1));
  }
}

BOOST_AUTO_TEST_CASE(every_instruction_set) {
  int tried = 0;
  for (const auto& [isa, name] : {std::pair{"scalar", "scalar"},
                                  {"avx2", "AVX2"},
                                  {"avx512", "AVX-512"},
                                  {"avx512bf16", "AVX-512-BF16"},
                                  {"amxbf16", "AMX-BF16"}}) {
    ::setenv("DSALT_CPU_ISA", isa, 1);
    std::unique_ptr<Backend> backend;
    try {
      backend = cpu_backend(2);
    } catch (const InvalidArgument& error) {
      BOOST_TEST_MESSAGE(error.what());
      BOOST_TEST(std::string(error.what()).find("scalar") != std::string::npos);
      continue;
    }
    ++tried;
    BOOST_TEST(backend->description().starts_with("OpenMP, " + std::string(name) + ", 2 threads; "));
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (Setup setup : {rich(150, 170, 50), dense(Mask::causal, 137, 137), dense(Mask::full, 1, 70)}) {
        setup.dtype = dtype;
        check_against_reference(setup, *backend);
        const Call call = draw(setup);
        check_same_bytes(run(*backend, call, true), run(*cpu_backend(7), call, true), isa);
      }
  }
  ::setenv("DSALT_CPU_ISA", "avx1024", 1);
  BOOST_CHECK_EXCEPTION(cpu_backend(1), InvalidArgument, [](const InvalidArgument& error) {
    return std::string(error.what()).find("avx1024") != std::string::npos;
  });
  ::unsetenv("DSALT_CPU_ISA");
  BOOST_TEST(tried > 0);
}

BOOST_AUTO_TEST_SUITE_END()
