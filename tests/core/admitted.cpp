// The admitted set A(i) of the shared internals against the definition, key by key: O(Nq Nk K) and nothing clever.
#include "internal/admitted.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <random>
#include <vector>

#include "internal/dropout.hpp"

namespace dsalt::internal {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Problem {
  AttentionProblem problem;
  std::int64_t nq = 0, nk = 0, hq = 1;
  std::vector<double> window;  // [Hw,nq], empty: none
  std::int64_t hw = 1;
  std::vector<std::int32_t> landmarks;  // [Hl,T,K], empty: none
  std::vector<double> weight;
  std::int64_t hl = 1, lists = 1, k = 0;
  bool with_landmarks = false, with_weight = false;
};

std::vector<AdmittedKey> by_definition(const Problem& c, std::int64_t h, std::int64_t i) {
  std::vector<AdmittedKey> window, listed;
  const std::int64_t p = i + (c.nk - c.nq);
  const double w = c.window.empty() ? -1 : c.window[static_cast<std::size_t>((c.hw == 1 ? 0 : h) * c.nq + i)];
  const std::int64_t chunk = c.problem.landmark_chunk.value_or(0);
  const std::int64_t t = chunk > 0 ? (i + c.problem.landmark_offset) / chunk : 0;
  const std::int64_t first = ((c.hl == 1 ? 0 : h) * c.lists + t) * c.k;
  for (std::int64_t j = 0; j < c.nk; ++j) {
    const std::int64_t d = p - j, e = c.problem.bidirectional && d < 0 ? -d : d;
    if (c.problem.mask == Mask::full || (c.problem.mask == Mask::causal && d >= 0)) window.push_back({j, 0, -1});
    if (c.problem.mask != Mask::sparse) continue;
    if (0 <= e && static_cast<double>(e) <= w) {
      double beta = 0;
      if (c.problem.soft_edge && !(static_cast<double>(e) <= w - c.problem.soft_edge->edge))
        beta = -std::log1p(std::exp(-(w - static_cast<double>(e)) / c.problem.soft_edge->tau));
      window.push_back({j, beta, -1});
    } else if (c.with_landmarks && (d >= 0 || c.problem.bidirectional)) {
      for (std::int64_t slot = 0; slot < c.k; ++slot)
        if (c.landmarks[static_cast<std::size_t>(first + slot)] == j) {
          listed.push_back({j, c.with_weight ? c.weight[static_cast<std::size_t>(first + slot)] : 0, slot});
          break;  // a repeated index counts once, by its lowest slot
        }
    }
  }
  std::sort(listed.begin(), listed.end(), [](const auto& a, const auto& b) { return a.slot < b.slot; });
  window.insert(window.end(), listed.begin(), listed.end());
  return window;
}

void compare_all_rows(const Problem& c) {
  AttentionSequence s;
  s.b = 0;
  s.nq = c.nq;
  s.nk = c.nk;
  s.extent = {0, c.nq, 0, c.nk};
  if (!c.window.empty()) s.window = TensorView::of(c.window.data(), {c.hw, c.nq});
  if (c.with_landmarks) s.landmarks = TensorView::of(c.landmarks.data(), {c.hl, c.lists, c.k});
  if (c.with_weight) s.landmark_log_weight = TensorView::of(c.weight.data(), {c.hl, c.lists, c.k});
  const RowMask mask{c.problem, s};
  std::vector<AdmittedKey> keys;
  for (std::int64_t h = 0; h < c.hq; ++h)
    for (std::int64_t i = 0; i < c.nq; ++i) {
      mask.admitted(h, i, keys);
      const std::vector<AdmittedKey> expected = by_definition(c, h, i);
      BOOST_REQUIRE_EQUAL(keys.size(), expected.size());
      for (std::size_t n = 0; n < keys.size(); ++n) {
        BOOST_REQUIRE_EQUAL(keys[n].j, expected[n].j);
        BOOST_REQUIRE_EQUAL(keys[n].slot, expected[n].slot);
        BOOST_REQUIRE_SMALL(keys[n].bias - expected[n].bias, 1e-12 * (1 + std::fabs(expected[n].bias)));
      }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(admitted)

BOOST_AUTO_TEST_CASE(dense_masks_of_all_lengths) {
  for (const Mask mask : {Mask::full, Mask::causal})
    for (std::int64_t nq = 0; nq <= 12; ++nq)
      for (std::int64_t nk = 0; nk <= 12; ++nk) {
        Problem c;
        c.problem.mask = mask;
        c.nq = nq;
        c.nk = nk;
        compare_all_rows(c);
      }
}

BOOST_AUTO_TEST_CASE(windows_of_all_kinds_and_lengths) {
  for (const double w : {-infinity, -1.0, -1e-300, -0.0, 0.0, 0.25, 1.0, 1.999999, 2.0, 3.5, 11.0, 12.0, 4e18, 9.3e18,
                         1e300, infinity, nan})
    for (const bool bidirectional : {false, true})
      for (std::int64_t nq = 0; nq <= 9; ++nq)
        for (std::int64_t nk = 0; nk <= 9; ++nk) {
          Problem c;
          c.problem.mask = Mask::sparse;
          c.problem.bidirectional = bidirectional;
          c.nq = nq;
          c.nk = nk;
          c.window.assign(static_cast<std::size_t>(nq), w);
          compare_all_rows(c);
          for (const double edge : {0.0, 0.5, 1.0, 2.75, 100.0}) {
            c.problem.soft_edge = SoftEdge{edge, 0.7};
            compare_all_rows(c);
          }
        }
}

BOOST_AUTO_TEST_CASE(random_windows_and_lists) {
  std::mt19937_64 generator(2);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int n = 0; n < 4000; ++n) {
    Problem c;
    c.problem.mask = Mask::sparse;
    c.problem.bidirectional = pick(0, 1);
    c.hq = pick(1, 3);
    c.nq = pick(0, 14);
    c.nk = pick(0, 14);
    if (pick(0, 3) > 0) {
      c.hw = pick(0, 1) ? c.hq : 1;
      for (std::int64_t m = 0; m < c.hw * c.nq; ++m) c.window.push_back(static_cast<double>(pick(-3, 40)) / 4);
      if (pick(0, 1) && !c.window.empty()) c.problem.soft_edge = SoftEdge{static_cast<double>(pick(0, 12)) / 4, 1.5};
    }
    c.with_landmarks = pick(0, 3) > 0;
    if (c.with_landmarks) {
      c.hl = pick(0, 1) ? c.hq : 1;
      c.k = pick(0, 6);
      if (pick(0, 2) > 0) {
        c.problem.landmark_chunk = pick(1, 6);
        c.problem.landmark_offset = pick(0, *c.problem.landmark_chunk - 1);
        c.lists = (c.nq + c.problem.landmark_offset + *c.problem.landmark_chunk - 1) / *c.problem.landmark_chunk;
      }
      c.with_weight = pick(0, 1);
      for (std::int64_t m = 0; m < c.hl * c.lists * c.k; ++m) {
        const bool wild = pick(0, 9) == 0;
        const std::int64_t index = wild ? (pick(0, 1) ? INT32_MIN : INT32_MAX) : pick(-2, c.nk + 1);
        c.landmarks.push_back(static_cast<std::int32_t>(index));
        c.weight.push_back(index < 0 || index >= c.nk ? nan : static_cast<double>(pick(-9, 9)) / 8);
      }
    }
    compare_all_rows(c);
  }
}

BOOST_AUTO_TEST_CASE(log_sigmoid_and_sigmoid_at_both_ends) {
  for (const double z : {-800.0, -50.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 50.0, 800.0}) {
    BOOST_TEST(std::isfinite(log_sigmoid(z)));
    if (std::fabs(z) < 700)
      BOOST_TEST(std::fabs(log_sigmoid(z) + std::log1p(std::exp(-z))) <= 1e-14 * (1 + std::fabs(z)));
    BOOST_TEST(std::fabs(sigmoid(z) + sigmoid(-z) - 1) <= 1e-15);
  }
  BOOST_TEST(log_sigmoid(-800) == -800);
  BOOST_TEST(log_sigmoid(0) == -std::log(2));
  BOOST_TEST(log_sigmoid(-infinity) == -infinity);
  BOOST_TEST(log_sigmoid(infinity) == 0);
}

BOOST_AUTO_TEST_CASE(one_sequence_of_a_pack) {
  // two sequences of 2 and 3 queries, 1 and 4 keys; one head, D = 1; the views of the second must start at its rows
  std::vector<float> q = {0, 1, 2, 3, 4}, k = {10, 11, 12, 13, 14}, v = {20, 21, 22, 23, 24}, window = {5, 6, 7, 8, 9};
  std::vector<std::int32_t> cu_q = {0, 2, 5}, cu_k = {0, 1, 5}, lists = {100, 101};
  AttentionInputs in;
  in.q = TensorView::of(q.data(), {5, 1, 1});
  in.k = TensorView::of(k.data(), {5, 1, 1});
  in.v = TensorView::of(v.data(), {5, 1, 1});
  in.window = TensorView::of(window.data(), {5, 1});
  in.landmarks = TensorView::of(lists.data(), {2, 1, 1, 1});
  in.cu_seqlens_q = TensorView::of(cu_q.data(), {3});
  in.cu_seqlens_k = TensorView::of(cu_k.data(), {3});
  const AttentionSequence s = attention_sequence(in, 1);
  BOOST_TEST(s.nq == 3);
  BOOST_TEST(s.nk == 4);
  for (std::int64_t i = 0; i < 3; ++i) {
    BOOST_TEST(load_double(s.q, i * s.q.strides[1]) == 2 + static_cast<double>(i));
    BOOST_TEST(load_double(s.window, i * s.window.strides[1]) == 7 + static_cast<double>(i));
  }
  for (std::int64_t j = 0; j < 4; ++j) {
    BOOST_TEST(load_double(s.k, j * s.k.strides[1]) == 11 + static_cast<double>(j));
    BOOST_TEST(load_double(s.v, j * s.v.strides[1]) == 21 + static_cast<double>(j));
  }
  BOOST_TEST(*s.landmarks.at<std::int32_t>(0) == 101);
  BOOST_TEST(longest_queries(in) == 3);
}

BOOST_AUTO_TEST_CASE(dropout_bits) {
  const auto words = dropout_words(Dropout{.5, 0, 0}, 0, 0, 0);
  BOOST_TEST(words[0] == 0x6627e8d5u);
  BOOST_TEST(words[1] == 0xe169c58du);
  BOOST_TEST(words[2] == 0xbc57ac4cu);
  BOOST_TEST(words[3] == 0x9b00dbd8u);
  BOOST_TEST(dropout_threshold(0) == 0u);
  BOOST_TEST(dropout_threshold(.5) == 0x80000000u);
  BOOST_TEST(dropout_threshold(1) == 0x100000000u);
  BOOST_TEST(dropout_threshold(0x1p-32) == 1u);
  BOOST_TEST(dropout_threshold(0x1.8p-33) == 1u);
  // word j & 3 of counter (j >> 2, ...): keys 4 apart use the same word of neighbouring counters
  for (std::int64_t j = 0; j < 64; ++j) {
    const auto group = dropout_words(Dropout{.25, 7, 1}, 3, 5, j & ~std::int64_t{3});
    const bool keep = group[static_cast<std::size_t>(j % 4)] >= 0x40000000u;
    BOOST_TEST(dropout_factor(Dropout{.25, 7, 1}, 3, 5, j) == (keep ? 1 / .75 : 0));
    BOOST_TEST(dropout_factor(Dropout{0, 7, 1}, 3, 5, j) == 1);
    BOOST_TEST(dropout_factor(Dropout{1, 7, 1}, 3, 5, j) == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::internal
