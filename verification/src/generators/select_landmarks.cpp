// Cases of `select_landmarks`: the K best-scored candidates of every list, with log-weights.
#include <cmath>

#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

struct Selection {
  const char* policy = "causal";
  std::int64_t b = 2, n = 33, hkv = 2, hq = 4, k = 4, chunk = 8, recent = 0;
  double tau = 0.7;
  bool gradient = true, detach = false;
  std::vector<std::int64_t> lengths = {};  // packed when not empty
  std::int64_t tail = 0;

  bool packed() const { return !lengths.empty(); }
  bool causal() const { return std::string_view(policy) == "causal"; }
  std::int64_t longest() const {
    std::int64_t most = packed() ? 0 : n;
    for (const std::int64_t length : lengths) most = std::max(most, length);
    return most;
  }
  std::int64_t rows() const {
    std::int64_t sum = tail;
    for (const std::int64_t length : lengths) sum += length;
    return sum;
  }
  std::int64_t lists() const { return causal() ? (longest() + chunk - 1) / chunk : 1; }
  Shape nx_shape() const { return packed() ? Shape{rows()} : Shape{b, n}; }
  Shape nv_shape() const { return packed() ? Shape{rows(), hkv} : Shape{b, hkv, n}; }
};

void select(CaseBuilder& c, const Selection& s) {
  c.set("policy", s.policy);
  c.set("k", s.k);
  c.set("tau", s.tau);
  if (s.causal()) c.set("chunk", s.chunk);
  if (s.recent > 0) c.set("recent", s.recent);
  if (s.detach) c.set("detach_energies", true);
  // Norms are positive: distances of a normal deviate from -4.
  const RandomValues x = c.random("nx"), v = c.random("nv");
  c.fill("nx", s.nx_shape(), c.statistics(), [&](std::int64_t index) { return 4 + x.normal(index); });
  c.fill("nv", s.nv_shape(), c.statistics(), [&](std::int64_t index) { return 9 + 2 * v.normal(index); });
  const RandomValues alpha = c.random("alpha_raw");
  c.fill("alpha_raw", {s.hq}, c.statistics(),
         [&](std::int64_t index) { return 0.4054651081081644 + 0.5 * alpha.normal(index); });  // about sigma^-1(0.6)
  if (s.packed()) {
    std::vector<std::int64_t> starts = {0};
    for (const std::int64_t length : s.lengths) starts.push_back(starts.back() + length);
    c.list_i32("cu_seqlens", starts);
    for (std::int64_t row = starts.back(); row < s.rows(); ++row) {
      c.overwrite("nx", row, not_a_number);
      for (std::int64_t h = 0; h < s.hkv; ++h) c.overwrite("nv", row * s.hkv + h, not_a_number);
    }
  }
  if (!s.gradient) return;
  const std::int64_t batch = s.packed() ? static_cast<std::int64_t>(s.lengths.size()) : s.b;
  c.normal_statistics("dlandmark_log_weight", {batch, s.hq, s.lists(), s.k});
}

void add_policies(FamilyList& list) {
  list.begin("select_landmarks/policies", Operation::select_landmarks,
             "Both policies, several chunks, list lengths and head groups, newest candidates left out.");
  for (const char* policy : {"global", "causal"}) {
    const std::string p = policy;
    list.add(p + "_usual", wide_dtypes, golden, [policy](CaseBuilder& c) { select(c, {.policy = policy}); });
    list.add(p + "_recent", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .recent = 5}); });
    list.add(p + "_recent_all", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .recent = 100}); });
    list.add(p + "_more_than_candidates", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .n = 9, .k = 20, .chunk = 4}); });
    list.add(p + "_one_slot", wide_dtypes, golden, [policy](CaseBuilder& c) { select(c, {.policy = policy, .k = 1}); });
    list.add(p + "_one_token", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .n = 1}); });
    list.add(p + "_no_tokens", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .n = 0}); });
    list.add(p + "_no_batch", wide_dtypes, golden, [policy](CaseBuilder& c) { select(c, {.policy = policy, .b = 0}); });
    list.add(p + "_shared_values", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .hkv = 1, .hq = 6}); });
    list.add(p + "_detached", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .detach = true}); });
    list.add(p + "_forward", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .gradient = false}); });
    list.add(p + "_sharp", wide_dtypes, golden,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .tau = 0.01}); });
    list.add(p + "_flat", wide_dtypes, quick, [policy](CaseBuilder& c) { select(c, {.policy = policy, .tau = 100}); });
    list.add(p + "_length_1000", wide_dtypes, quick,
             [policy](CaseBuilder& c) { select(c, {.policy = policy, .b = 1, .n = 1000, .k = 32, .chunk = 64}); });
  }
  for (const std::int64_t chunk : {1, 3, 32, 33, 34, 1000})
    list.add("causal_chunk_" + std::to_string(chunk), wide_dtypes, golden,
             [chunk](CaseBuilder& c) { select(c, {.chunk = chunk}); });
}

void add_packs(FamilyList& list) {
  list.begin("select_landmarks/packed", Operation::select_landmarks,
             "Packs: statistics per sequence, local indices, empty and one-token sequences, a NaN tail.");
  for (const char* policy : {"global", "causal"}) {
    const std::string p = policy;
    list.add(p + "_plain", wide_dtypes, golden, [policy](CaseBuilder& c) {
      select(c, {.policy = policy, .lengths = {12, 30, 7}});
    });
    list.add(p + "_empty_sequences", wide_dtypes, golden, [policy](CaseBuilder& c) {
      select(c, {.policy = policy, .lengths = {0, 1, 0, 18, 0}});
    });
    list.add(p + "_all_empty", wide_dtypes, golden, [policy](CaseBuilder& c) {
      select(c, {.policy = policy, .lengths = {0, 0}, .tail = 3});
    });
    list.add(p + "_tail", wide_dtypes, golden, [policy](CaseBuilder& c) {
      select(c, {.policy = policy, .recent = 2, .lengths = {9, 25}, .tail = 4});
    });
    list.add(p + "_many", wide_dtypes, slow, [policy](CaseBuilder& c) {
      Selection s{.policy = policy, .hkv = 1, .hq = 1, .k = 1, .chunk = 1};
      for (std::int64_t n = 0; n < 65537; ++n) s.lengths.push_back(n % 5 == 2 ? 0 : 2);
      select(c, s);
    });
  }
}

void add_degenerate(FamilyList& list) {
  list.begin("select_landmarks/degenerate", Operation::select_landmarks,
             "Equal energies, ties, NaN energies, and a large offset that E[x^2] - E[x]^2 would not survive.");
  for (const char* policy : {"global", "causal"}) {
    const std::string p = policy;
    list.add(p + "_constant", wide_dtypes, golden, [policy](CaseBuilder& c) {
      const Selection s{.policy = policy};
      select(c, s);
      c.constant("nx", s.nx_shape(), c.statistics(), 5);
      c.constant("nv", s.nv_shape(), c.statistics(), 5);
    });
    list.add(p + "_constant_values", wide_dtypes, golden, [policy](CaseBuilder& c) {
      const Selection s{.policy = policy};
      select(c, s);
      c.constant("nv", s.nv_shape(), c.statistics(), 7);
    });
    list.add(p + "_nearly_constant", wide_dtypes, golden, [policy](CaseBuilder& c) {  // std below and above 1e-6
      const Selection s{.policy = policy};
      select(c, s);
      const RandomValues random = c.random("step");
      c.fill("nx", s.nx_shape(), c.statistics(),
             [&](std::int64_t index) { return 0x1p-24 * random.integer(index, 0, 3); });
      c.fill("nv", s.nv_shape(), c.statistics(),
             [&](std::int64_t index) { return 0x1p-12 * random.integer(index, 0, 3); });
    });
    list.add(p + "_ties", wide_dtypes, golden, [policy](CaseBuilder& c) {
      const Selection s{.policy = policy, .k = 6};
      select(c, s);
      c.fill("nx", s.nx_shape(), c.statistics(), [](std::int64_t index) { return 1 + index % 3; });
      c.fill("nv", s.nv_shape(), c.statistics(), [](std::int64_t) { return 2; });
    });
    list.add(p + "_not_a_number", wide_dtypes, golden, [policy](CaseBuilder& c) {
      const Selection s{.policy = policy, .k = 6};
      select(c, s);
      for (std::int64_t index = 0; index < s.b * s.n; index += 4) c.overwrite("nx", index, not_a_number);
      for (std::int64_t index = 1; index < s.b * s.hkv * s.n; index += 5) c.overwrite("nv", index, not_a_number);
    });
    list.add(p + "_all_not_a_number", wide_dtypes, golden, [policy](CaseBuilder& c) {
      const Selection s{.policy = policy};
      select(c, s);
      c.constant("nx", s.nx_shape(), c.statistics(), not_a_number);
    });
    list.add(p + "_large_offset", wide_dtypes, golden, [policy](CaseBuilder& c) {
      const Selection s{.policy = policy, .n = 12};
      select(c, s);
      c.fill("nx", s.nx_shape(), c.statistics(), [](std::int64_t index) { return 10000 + (index * 5) % 12; });
      c.fill("nv", s.nv_shape(), c.statistics(), [](std::int64_t index) { return 30000 + (index * 7) % 12; });
    });
    list.add(p + "_extreme_alpha", wide_dtypes, golden, [policy](CaseBuilder& c) {
      select(c, {.policy = policy});
      c.fill("alpha_raw", {4}, c.statistics(), [](std::int64_t h) {
        return h == 0 ? 80 : h == 1 ? -80 : h == 2 ? 0 : 3;
      });
    });
  }
}

/// Lists of more candidates than a backend may hold at a time, and what makes them hard to narrow down.
void add_long(FamilyList& list) {
  list.begin("select_landmarks/long", Operation::select_landmarks,
             "Thousands of candidates a list, at uneven sizes: more than a block holds, long lists, many ties, one "
             "trend, one outlier, hundreds close to the best, extreme energies.");
  const auto few_heads = [](Selection s) {
    s.b = s.hkv = 1;
    s.hq = 2;
    return s;
  };
  const auto add = [&](const std::string& name, Selection s, unsigned flags = quick) {
    list.add(name, wide_dtypes, flags, [s = few_heads(s)](CaseBuilder& c) { select(c, s); });
  };
  add("causal_4097", {.n = 4097, .k = 40, .chunk = 700});
  add("causal_17003", {.n = 17003, .k = 65, .chunk = 1024, .recent = 3, .gradient = false});
  add("global_70001", {.policy = "global", .n = 70001, .k = 64, .gradient = false}, slow);
  add("global_long_list", {.policy = "global", .n = 3001, .k = 300, .gradient = false});
  add("global_longest_list", {.policy = "global", .n = 3001, .k = 700, .gradient = false});
  add("global_list_of_a_quarter", {.policy = "global", .n = 2003, .k = 500, .gradient = false});
  add("causal_every_candidate", {.n = 2049, .k = 2100, .chunk = 1000, .gradient = false});
  for (const std::int64_t k : {127, 128, 129, 255, 256, 257}) {  // where one way of narrowing down ends, another begins
    add("global_list_of_" + std::to_string(k), {.policy = "global", .n = 5003, .k = k, .gradient = false});
    add("causal_list_of_" + std::to_string(k), {.n = 5003, .k = k, .chunk = 1250, .gradient = false});
  }
  add("packed_one_long", {.policy = "global", .k = 20, .gradient = false, .lengths = {3, 9001, 0, 1, 200}, .tail = 2});
  for (const char* policy : {"global", "causal"}) {
    const std::string p = policy;
    const Selection s = few_heads({.policy = policy, .n = 5003, .k = 30, .chunk = 1250, .gradient = false});
    list.add(p + "_ties", wide_dtypes, quick, [s](CaseBuilder& c) {
      select(c, s);
      c.fill("nx", s.nx_shape(), c.statistics(), [](std::int64_t index) { return 1 + (index * 7) % 3; });
      c.fill("nv", s.nv_shape(), c.statistics(), [](std::int64_t) { return 2; });
    });
    list.add(p + "_trend", wide_dtypes, quick, [s](CaseBuilder& c) {  // the best are neighbours
      select(c, s);
      c.fill("nx", s.nx_shape(), c.statistics(), [](std::int64_t index) { return 100 + 0.25 * index; });
    });
    list.add(p + "_crowded", wide_dtypes, quick, [s](CaseBuilder& c) {  // a seventh are close to the best
      select(c, s);
      const RandomValues random = c.random("crowd");
      for (std::int64_t index = 3; index < s.n; index += 7) c.overwrite("nx", index, 40 + 0.001 * random.normal(index));
      for (std::int64_t index = 3; index < s.n; index += 7) c.overwrite("nv", index, 90 + 0.001 * random.normal(index));
    });
    list.add(p + "_huge", wide_dtypes, quick, [s](CaseBuilder& c) {
      select(c, s);
      const RandomValues random = c.random("huge");
      c.fill("nx", s.nx_shape(), c.statistics(), [&](std::int64_t n) { return 0x1p110 * (1 + random.uniform(n)); });
    });
    list.add(p + "_outlier", wide_dtypes, quick, [s](CaseBuilder& c) {  // all others lie within a small part of the std
      select(c, s);
      c.overwrite("nx", 17, 2000);
      c.overwrite("nv", 170, 4000);
    });
    list.add(p + "_few_numbers", wide_dtypes, quick, [s](CaseBuilder& c) {
      select(c, s);
      c.fill("nv", s.nv_shape(), c.statistics(),
             [](std::int64_t index) { return index % 300 == 7 ? 1 + 0.01 * index : not_a_number; });
    });
  }
}

void add_strided(FamilyList& list) {
  list.begin("select_landmarks/strided", Operation::select_landmarks, "Energies and gradients in other layouts.");
  list.add("permuted", wide_dtypes, quick, [](CaseBuilder& c) {
    select(c, {});
    c.permute_storage("nx", {1, 0});
    c.permute_storage("nv", {2, 1, 0});
    c.permute_storage("dlandmark_log_weight", {3, 2, 1, 0});
    c.embed("alpha_raw");
  });
}

}  // namespace

void add_select_landmarks(FamilyList& list) {
  add_policies(list);
  add_packs(list);
  add_degenerate(list);
  add_long(list);
  add_strided(list);
}

}  // namespace dsalt::verification
