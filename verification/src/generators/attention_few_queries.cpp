// Attention of few queries on many keys, as in decoding: for backends that share out the keys of a sequence there. One
// to 16 queries, so that the rows of a kv head are fewer than a tile's, just as many, and more; keys around multiples
// of 16 and 64, of few heads and of so many that nobody needs to share out theirs. Forward only.
#include <string>
#include <vector>

#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

std::string head(std::int64_t d) { return "_d" + std::to_string(d); }

AttentionSpec few(std::int64_t nq, std::int64_t nk, std::int64_t hq, std::int64_t hkv, std::int64_t d,
                  const char* mask = "sparse") {
  return {.b = 2, .hq = hq, .hkv = hkv, .nq = nq, .nk = nk, .d = d, .dv = d, .mask = mask};
}

void add_sizes(FamilyList& list) {
  struct Sizes {
    std::int64_t nq, nk, hq, hkv, d;
  };
  const Sizes sizes[] = {{1, 1, 1, 1, 64},    {1, 16, 8, 1, 128},  {1, 17, 9, 1, 64},    {1, 63, 16, 1, 64},
                         {1, 64, 17, 1, 128}, {1, 129, 40, 2, 64}, {1, 1000, 2, 2, 64},  {1, 2000, 6, 2, 128},
                         {2, 65, 4, 1, 64},   {3, 200, 6, 2, 128}, {5, 3, 3, 1, 64},     {7, 150, 5, 5, 64},
                         {15, 15, 1, 1, 128}, {16, 77, 1, 1, 64},  {16, 130, 8, 1, 128}, {17, 90, 1, 1, 64}};
  for (const Sizes& n : sizes) {
    const std::string name = std::to_string(n.nq) + "x" + std::to_string(n.nk) + "_" + std::to_string(n.hq) + "_over_" +
                             std::to_string(n.hkv) + head(n.d);
    for (const char* mask : {"full", "causal"})
      list.add(std::string(mask) + "_" + name, half_dtypes, quick,
               [=](CaseBuilder& c) { add_qkv(c, few(n.nq, n.nk, n.hq, n.hkv, n.d, mask)); });
    for (const bool bidirectional : {false, true})
      list.add((bidirectional ? "both_sides_" : "sparse_") + name, half_dtypes, quick, [=](CaseBuilder& c) {
        const AttentionSpec spec = few(n.nq, n.nk, n.hq, n.hkv, n.d);
        add_qkv(c, spec);
        add_window(c, spec, WindowKind::uniform, n.hq);
        add_landmarks(c, spec, {.k = 20, .heads = n.hq, .chunk = 2, .offset = 1, .weights = true, .messy = true});
        if (bidirectional) c.set("bidirectional", true);
      });
  }
  // More kv heads than any device has multiprocessors.
  for (const std::int64_t d : {64, 128})
    for (const char* mask : {"causal", "sparse"})
      list.add(std::string(mask) + "_many_heads" + head(d), half_dtypes, d == 64 ? quick : slow, [=](CaseBuilder& c) {
        const AttentionSpec spec = few(1, 150, 150, 150, d, mask);
        add_qkv(c, spec);
        if (mask == std::string_view("causal")) return;
        add_window(c, spec, WindowKind::uniform, spec.hq);
        add_landmarks(c, spec, {.k = 20, .weights = true});
      });
}

void add_windows(FamilyList& list) {
  struct Window {
    const char* name;
    WindowKind kind;
  };
  for (const Window window : {Window{"constant", WindowKind::constant},
                              {"bimodal", WindowKind::bimodal},
                              {"integers", WindowKind::integers},
                              {"fractional", WindowKind::fractional},
                              {"negative", WindowKind::negative},
                              {"poisoned", WindowKind::poisoned},
                              {"unbounded", WindowKind::unbounded}})
    for (const std::int64_t nq : {1, 4})
      list.add("window_" + std::string(window.name) + "_" + std::to_string(nq), half_dtypes, quick,
               [=](CaseBuilder& c) {
                 const AttentionSpec spec = few(nq, 200, 4, 1, 64);
                 add_qkv(c, spec);
                 add_window(c, spec, window.kind, nq == 1 ? 4 : 1);
               });
  // One head sees a few keys, another one nearly all.
  list.add("window_far_apart", half_dtypes, quick, [](CaseBuilder& c) {
    const AttentionSpec spec = few(1, 1500, 4, 1, 64);
    add_qkv(c, spec);
    c.fill("window", spec.row_shape(4), c.statistics(),
           [](std::int64_t index) { return index % 4 == 0 ? 1400.5 : 3.0 * static_cast<double>(index % 4); });
    add_landmarks(c, spec, {.k = 33, .weights = true});
  });
  for (const double tau : {0.01, 7.0})
    for (const bool bidirectional : {false, true})
      list.add("soft_edge_" + std::string(tau < 1 ? "sharp" : "wide") + (bidirectional ? "_both_sides" : ""),
               half_dtypes, quick, [=](CaseBuilder& c) {
                 const AttentionSpec spec = few(3, 200, 4, 2, 64);
                 add_qkv(c, spec);
                 add_window(c, spec, WindowKind::uniform, 4);
                 add_landmarks(c, spec, {.k = 9, .heads = 4, .weights = true});
                 add_soft_edge(c, tau < 1 ? 2.5 : 60, tau);
                 if (bidirectional) c.set("bidirectional", true);
               });
}

void add_lists(FamilyList& list) {
  struct Lists {
    const char* name;
    LandmarkSpec landmarks;
  };
  const Lists lists[] = {{"one_slot", {.k = 1}},
                         {"64", {.k = 64}},
                         {"messy_300", {.k = 300, .weights = true, .messy = true}},
                         {"messy_65_per_head", {.k = 65, .heads = 8, .weights = true, .messy = true}},
                         {"more_than_fit", {.k = 300, .heads = 8}},
                         {"chunk_1", {.k = 7, .heads = 8, .chunk = 1, .weights = true}},
                         {"chunk_3_offset_2", {.k = 30, .chunk = 3, .offset = 2, .weights = true}},
                         {"overwhelming", {.k = 6, .heads = 8, .weights = true, .weight_scale = 1e4}},
                         {"huge_weights", {.k = 6, .heads = 8, .weights = true, .weight_scale = 1e9}}};
  for (const Lists& entry : lists)
    for (const std::int64_t nq : {1, 6})
      for (const bool window : {false, true})
        list.add("landmarks_" + std::string(entry.name) + (window ? "_and_window_" : "_") + std::to_string(nq),
                 half_dtypes, window ? quick : slow, [landmarks = entry.landmarks, nq, window](CaseBuilder& c) {
                   const AttentionSpec spec = few(nq, 250, 8, 2, 64);
                   add_qkv(c, spec);
                   if (window) add_window(c, spec, WindowKind::fractional, 8);
                   add_landmarks(c, spec, landmarks);
                 });
}

void add_batches(FamilyList& list) {
  struct Pack {
    const char* name;
    std::vector<std::int64_t> q, k;
    std::int64_t tail;
  };
  const Pack packs[] = {{"one_each", {1, 1, 1, 1, 1}, {300, 1, 77, 0, 16}, 0},
                        {"uneven", {0, 1, 7, 0, 2, 1}, {40, 200, 7, 0, 150, 1}, 5},
                        {"one_has_all", {0, 0, 0, 0, 0, 0, 0, 25, 0}, {1, 0, 3, 0, 9, 0, 0, 100, 2}, 3}};
  for (const Pack& pack : packs)
    for (const std::int64_t group : {1, 3, 8})
      for (const char* mask : {"causal", "full", "sparse"})
        list.add("pack_" + std::string(pack.name) + "_" + std::to_string(group) + "_" + mask, half_dtypes, quick,
                 [pack, group, mask](CaseBuilder& c) {
                   const AttentionSpec spec{.hq = 2 * group,
                                            .hkv = 2,
                                            .d = 64,
                                            .dv = 64,
                                            .mask = mask,
                                            .q_lengths = pack.q,
                                            .k_lengths = pack.k,
                                            .tail = pack.tail};
                   add_qkv(c, spec);
                   if (mask != std::string_view("sparse")) return;
                   add_window(c, spec, WindowKind::uniform, spec.hq);
                   add_landmarks(c, spec, {.k = 10, .heads = spec.hq, .chunk = 5, .offset = 3, .weights = true});
                 });
  for (const std::int64_t d : {64, 128})
    for (const std::int64_t nq : {1, 9})
      for (const char* mask : {"causal", "full", "sparse"})
        list.add("k_lengths_" + std::to_string(nq) + "_" + mask + head(d), half_dtypes, d == 64 ? quick : slow,
                 [=](CaseBuilder& c) {
                   AttentionSpec spec = few(nq, 200, 4, 2, d, mask);
                   spec.b = 6;
                   add_qkv(c, spec);
                   if (mask == std::string_view("sparse")) {
                     add_window(c, spec, WindowKind::uniform, 4);
                     add_landmarks(c, spec, {.k = 40, .heads = 4, .weights = true});
                   }
                   add_k_lengths(c, spec, {0, 1, 127, 128, 129, spec.nk});
                 });
}

/// More tiles of rows than any of the above, and more than a thousand keys of each to share out.
void add_many(FamilyList& list) {
  for (const std::int64_t b : {8, 26})
    for (const std::int64_t d : {64, 128})
      list.add("many_" + std::to_string(b) + head(d), half_dtypes, b == 8 && d == 64 ? quick : slow,
               [=](CaseBuilder& c) {
                 AttentionSpec spec = few(1, 2300, b == 8 ? 2 : 128, 2, d, "causal");
                 spec.b = b;
                 add_qkv(c, spec);
               });
}

void add_views(FamilyList& list) {
  const AttentionSpec spec = few(2, 130, 4, 2, 64);
  const auto fill = [spec](CaseBuilder& c) {
    add_qkv(c, spec);
    add_window(c, spec, WindowKind::uniform, 4);
    add_landmarks(c, spec, {.k = 30, .heads = 4, .weights = true});
  };
  list.add("view_permuted", half_dtypes, quick, [fill](CaseBuilder& c) {
    fill(c);
    for (const char* name : {"q", "k", "v"}) c.permute_storage(name, {0, 2, 1, 3});
    c.permute_storage("window", {2, 0, 1});
    for (const char* name : {"landmarks", "landmark_log_weight"}) c.permute_storage(name, {3, 2, 0, 1});
  });
  list.add("view_reversed", half_dtypes, quick, [fill](CaseBuilder& c) {
    fill(c);
    for (const char* name : {"q", "k", "v", "window"}) c.reverse_storage(name, 2);
    for (const char* name : {"landmarks", "landmark_log_weight"}) c.reverse_storage(name, 3);
  });
  list.add("view_broadcast", half_dtypes, quick, [fill](CaseBuilder& c) {  // a batch on one cache
    fill(c);
    for (const char* name : {"k", "v", "window", "landmarks"}) c.repeat_first(name, 0);
    c.repeat_first("landmark_log_weight", 1);
  });
  list.add("view_unaligned", half_dtypes, quick, [fill](CaseBuilder& c) {
    fill(c);
    for (const char* name : {"q", "k", "v", "window", "landmarks", "landmark_log_weight"}) c.unalign(name);
  });
}

void add_logits(FamilyList& list) {
  struct Scale {
    const char* name;
    double value;
  };
  const AttentionSpec spec = few(3, 130, 2, 1, 64);
  for (const Scale scale : {Scale{"minus", -0.7}, {"zero", 0}, {"large", 40}, {"tiny", 1e-20}})
    list.add("scale_" + std::string(scale.name), half_dtypes, quick, [=](CaseBuilder& c) {
      add_qkv(c, spec);
      add_window(c, spec, WindowKind::uniform, 2);
      add_landmarks(c, spec, {.k = 20, .weights = true});
      c.set("scale", scale.value);
    });
  list.add("large_logits", half_dtypes, quick, [spec](CaseBuilder& c) {
    add_qkv(c, spec, 5);
    add_window(c, spec, WindowKind::uniform, 1);
  });
}

}  // namespace

void add_attention_few_queries(FamilyList& list) {
  list.begin("attention/few_queries", Operation::attention,
             "One to 17 queries of each sequence, forward: all masks, groups of heads, caches, packs, lists, views, "
             "scales, and keys around multiples of 16 and 64.");
  add_sizes(list);
  add_windows(list);
  add_lists(list);
  add_batches(list);
  add_many(list);
  add_views(list);
  add_logits(list);
}

}  // namespace dsalt::verification
