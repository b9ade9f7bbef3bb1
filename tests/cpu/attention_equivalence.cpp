// The CPU backend against the float64 reference on awkward shapes: partial tiles, every mask, empty rows, grouped
// heads, packs with empty sequences, caches with NaN beyond the valid keys, strides, soft edges, odd landmark lists,
// dropout.
#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "attention_support.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

struct Fixture {
  std::unique_ptr<Backend> cpu = cpu_backend(2);
  double worst = 0;
  void check(const Setup& setup) { worst = std::max(worst, check_against_reference(setup, *cpu)); }
  ~Fixture() { BOOST_TEST_MESSAGE("worst error " << worst << " units"); }
};

Setup base(std::string name, Mask mask, std::int64_t nq, std::int64_t nk) {
  Setup setup;
  setup.name = std::move(name);
  setup.problem.mask = mask;
  setup.nq = nq;
  setup.nk = nk;
  setup.seed = std::hash<std::string>()(setup.name);
  return setup;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cpu_attention_equivalence, Fixture)

BOOST_AUTO_TEST_CASE(partial_tiles_of_dense_masks) {
  for (const std::int64_t n : {1, 15, 17, 63, 65, 127, 129, 137, 192})
    for (const Mask mask : {Mask::full, Mask::causal}) {
      Setup setup = base("dense " + std::to_string(n), mask, n, n);
      setup.hq = 2;
      setup.hkv = 1;
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(cross_lengths_and_empty_rows) {
  for (const auto& [nq, nk] : {std::pair{5, 2}, {70, 3}, {3, 70}, {130, 65}, {65, 130}, {1, 200}, {64, 64}, {4, 0}})
    for (const Mask mask : {Mask::full, Mask::causal})
      check(base("lengths " + std::to_string(nq) + " " + std::to_string(nk), mask, nq, nk));
}

BOOST_AUTO_TEST_CASE(head_sizes) {
  for (const auto& [d, dv] :
       {std::pair{1, 1}, {8, 24}, {40, 17}, {64, 64}, {80, 1}, {128, 40}, {192, 256}, {256, 80}, {320, 320}, {1, 128}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Setup setup = base("head size " + std::to_string(d) + " " + std::to_string(dv), Mask::causal, 37, 75);
      setup.d = d;
      setup.dv = dv;
      setup.dtype = dtype;
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(windows_of_every_kind) {
  for (const bool bidirectional : {false, true})
    for (const auto& [nq, nk] : {std::pair{150, 150}, {70, 200}, {200, 70}})
      for (const bool per_head : {false, true}) {
        Setup setup = base("window", Mask::sparse, nq, nk);
        setup.problem.bidirectional = bidirectional;
        setup.hq = 4;
        setup.hkv = 2;
        setup.hw = per_head ? 4 : 1;
        setup.window = ragged;
        check(setup);
      }
}

BOOST_AUTO_TEST_CASE(int32_windows) {
  Setup setup = base("int32 window", Mask::sparse, 130, 130);
  setup.window_dtype = DType::i32;
  setup.window = [](std::int64_t, std::int64_t i) { return static_cast<double>(i % 90 - 1); };
  check(setup);
}

BOOST_AUTO_TEST_CASE(soft_edges) {
  for (const bool bidirectional : {false, true})
    for (const double edge : {0.0, 0.5, 7.25, 40.0, 1e9})
      for (const std::int64_t hw : {1, 3}) {
        Setup setup = base("soft edge " + std::to_string(edge), Mask::sparse, 140, 150);
        setup.problem.bidirectional = bidirectional;
        setup.problem.soft_edge = SoftEdge{edge, 3.5};
        setup.hq = setup.hkv = 3;
        setup.hw = hw;
        setup.window = ragged;
        check(setup);
      }
}

BOOST_AUTO_TEST_CASE(landmarks_one_list) {
  for (const bool bidirectional : {false, true})
    for (const std::int64_t slots : {1, 13, 70, 200})
      for (const std::int64_t hl : {1, 4}) {
        Setup setup = base("landmarks " + std::to_string(slots), Mask::sparse, 140, 150);
        setup.problem.bidirectional = bidirectional;
        setup.hq = 4;
        setup.hkv = 2;
        setup.hl = hl;
        setup.slots = slots;
        setup.weights = slots != 13;
        setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 150); };
        if (slots != 70) setup.window = ragged;
        check(setup);
      }
}

BOOST_AUTO_TEST_CASE(landmarks_by_chunk) {
  for (const std::int64_t chunk : {1, 2, 20, 64, 100, 128, 1000})
    for (const bool bidirectional : {false, true}) {
      Setup setup = base("chunk " + std::to_string(chunk), Mask::sparse, 150, 170);
      setup.problem.landmark_chunk = chunk;
      setup.problem.landmark_offset = chunk / 3;
      setup.problem.bidirectional = bidirectional;
      setup.problem.soft_edge = SoftEdge{4, 1.5};
      setup.hq = 2;
      setup.hkv = chunk % 3 == 0 ? 2 : 1;
      setup.hl = chunk == 20 ? 1 : 2;
      setup.slots = chunk == 1 ? 90 : 20;
      setup.weights = true;
      setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 170); };
      setup.window = ragged;
      setup.hw = 2;
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(grouped_heads) {
  for (const auto& [hq, hkv] : {std::pair{8, 1}, {6, 2}, {9, 3}, {4, 4}})
    for (const std::int64_t nq : {1, 7, 65, 100}) {
      Setup setup = base("groups " + std::to_string(hq) + " " + std::to_string(hkv), Mask::causal, nq, 100);
      setup.b = 2;
      setup.hq = hq;
      setup.hkv = hkv;
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(packs_with_empty_sequences) {
  for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse})
    for (const DType dtype : {DType::f32, DType::f16}) {
      Setup setup = base("pack", mask, 0, 0);
      setup.dtype = dtype;
      setup.pack_q = {0, 1, 70, 0, 5, 130, 0};
      setup.pack_k = {4, 0, 90, 0, 2, 130, 3};
      setup.slack = 5;
      setup.hq = 4;
      setup.hkv = 2;
      if (mask == Mask::sparse) {
        setup.problem.landmark_chunk = 16;
        setup.window = ragged;
        setup.hw = 4;
        setup.slots = 9;
        setup.hl = 4;
        setup.weights = true;
        setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 100); };
      }
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(caches) {
  for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse})
    for (const std::int64_t nq : {1, 3, 80}) {
      Setup setup = base("cache " + std::to_string(nq), mask, nq, 150);
      setup.b = 4;
      setup.k_lengths = {150, 0, 71, 64};
      setup.hq = 4;
      setup.hkv = 2;
      if (mask == Mask::sparse) {
        setup.window = ragged;
        setup.slots = 12;
        setup.weights = true;
        setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 150); };
      }
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(strided_views) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Setup setup = base("strided", Mask::sparse, 90, 110);
    setup.dtype = dtype;
    setup.strided = true;
    setup.b = 2;
    setup.hq = 4;
    setup.hkv = 2;
    setup.d = 24;
    setup.dv = 16;
    setup.window = ragged;
    setup.slots = 12;
    setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 110); };
    check(setup);
  }
}

BOOST_AUTO_TEST_CASE(dropout) {
  for (const double p : {0.0, 0.3, 0.999, 1.0})
    for (const Mask mask : {Mask::causal, Mask::sparse}) {
      Setup setup = base("dropout " + std::to_string(p), mask, 100, 130);
      setup.problem.dropout = Dropout{p, 0x123456789abcdef0u, 77};
      setup.b = 2;
      setup.hq = 2;
      setup.hkv = 1;
      if (mask == Mask::sparse) {
        setup.window = ragged;
        setup.slots = 12;
        setup.weights = true;
        setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 130); };
      }
      check(setup);
    }
}

BOOST_AUTO_TEST_CASE(dtypes_and_score_sizes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const double size : {0.01, 1.0, 5.0, 40.0})
      for (const double scale : {-1.0, 0.0, 0.125}) {
        Setup setup = base("scores " + std::to_string(size), Mask::causal, 130, 130);
        setup.dtype = dtype;
        setup.size = size;
        setup.problem.scale = scale;
        setup.d = 48;
        check(setup);
      }
}

BOOST_AUTO_TEST_CASE(long_rows) {
  Setup setup = base("long", Mask::full, 9, 20000);
  setup.d = 16;
  check(setup);
  setup = base("long sparse", Mask::sparse, 3000, 3000);
  setup.window = [](std::int64_t, std::int64_t i) { return i % 500 == 0 ? 3000.0 : 20 * noise(0, i); };
  setup.slots = 40;
  setup.weights = true;
  setup.problem.landmark_chunk = 256;
  setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 3000); };
  check(setup);
}

BOOST_AUTO_TEST_SUITE_END()
