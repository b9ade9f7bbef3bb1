// Landmark lists that few queries read, down to one list for each query and head, on the sizes for which backends have
// kernels of their own: heads of 64 and 128, numbers of slots around what such a kernel takes at a time.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

AttentionSpec square(std::int64_t n, std::int64_t d, std::int64_t hq = 2, std::int64_t hkv = 1) {
  return {.hq = hq, .hkv = hkv, .nq = n, .nk = n, .d = d, .dv = d, .mask = "sparse"};
}

std::string head(std::int64_t d) { return "_d" + std::to_string(d); }

void add_slots(FamilyList& list) {
  struct Lists {
    const char* name;
    LandmarkSpec landmarks;
    std::int64_t n, hq, hkv;
    unsigned flags;
  };
  const Lists lists[] = {
      {"1", {.k = 1, .heads = 2, .chunk = 1}, 70, 2, 2, quick},
      {"16", {.k = 16, .heads = 4, .chunk = 1, .weights = true}, 70, 4, 2, quick},
      {"17_shared", {.k = 17, .chunk = 1, .weights = true}, 70, 4, 1, quick},
      {"32_messy", {.k = 32, .heads = 2, .chunk = 1, .weights = true, .messy = true}, 50, 2, 1, slow},
      {"33_messy", {.k = 33, .heads = 2, .chunk = 1, .weights = true, .messy = true}, 50, 2, 1, quick},
      {"100_shared_by_16", {.k = 100, .chunk = 1, .messy = true}, 40, 16, 1, quick},
      {"100_shared_by_24", {.k = 100, .chunk = 1, .weights = true}, 40, 24, 1, slow},
      {"255_shared_messy", {.k = 255, .chunk = 1, .weights = true, .messy = true}, 40, 2, 2, slow},
      {"256", {.k = 256, .heads = 2, .chunk = 1, .weights = true}, 130, 2, 1, slow},
      {"300_shared_by_8", {.k = 300, .chunk = 1, .weights = true, .messy = true}, 150, 8, 1, quick},
      {"300_shared_by_64", {.k = 300, .chunk = 1, .weights = true}, 12, 64, 1, quick},
      {"2048", {.k = 2048, .chunk = 1, .weights = true}, 20, 4, 1, slow},
      {"5000_messy", {.k = 5000, .chunk = 1, .weights = true, .messy = true}, 9, 2, 1, slow},
      {"chunk_3", {.k = 20, .heads = 2, .chunk = 3, .weights = true}, 100, 2, 1, quick},
      {"chunk_3_offset_2", {.k = 20, .chunk = 3, .offset = 2, .messy = true}, 100, 8, 2, quick},
      {"chunk_9_shared", {.k = 40, .chunk = 9, .offset = 4, .weights = true, .messy = true}, 100, 4, 1, slow},
      {"chunk_31", {.k = 50, .heads = 2, .chunk = 31, .offset = 30, .weights = true}, 100, 2, 1, quick},
      {"chunk_31_of_300", {.k = 300, .chunk = 31, .weights = true, .messy = true}, 100, 2, 1, slow},
      {"overwhelming", {.k = 6, .heads = 2, .chunk = 1, .weights = true, .weight_scale = 1e4}, 70, 2, 1, quick},
      {"one_with_huge_weight", {.k = 1, .heads = 2, .chunk = 1, .weights = true, .weight_scale = 1e9}, 70, 2, 1, quick},
      {"huge_weights", {.k = 6, .heads = 2, .chunk = 1, .weights = true, .weight_scale = 1e7}, 70, 2, 1, quick},
      {"huge_weights_chunk_31", {.k = 50, .chunk = 31, .weights = true, .weight_scale = 1e9}, 100, 2, 1, slow}};
  for (const Lists& entry : lists)
    for (const std::int64_t d : {64, 128})
      for (const bool window : {false, true})
        list.add(std::string(entry.name) + (window ? "_and_window" : "") + head(d), half_dtypes,
                 (d == 64) == window ? entry.flags : slow, [entry, window, d](CaseBuilder& c) {
                   const AttentionSpec spec = square(entry.n, d, entry.hq, entry.hkv);
                   add_qkv(c, spec);
                   if (window) add_window(c, spec, WindowKind::fractional, entry.hq);
                   add_landmarks(c, spec, entry.landmarks);
                   add_gradients(c, spec, entry.landmarks.weights);
                 });
  // Nothing is left of any list.
  for (const bool window : {false, true})
    list.add(std::string("all_unused") + (window ? "_and_window" : ""), half_dtypes, quick, [window](CaseBuilder& c) {
      const AttentionSpec spec = square(40, 64);
      add_qkv(c, spec);
      if (window) add_window(c, spec, WindowKind::fractional, 1);
      c.fill_i32("landmarks", {1, 2, 40, 20}, [](std::int64_t n) { return n % 2 == 0 ? -1 : 40; });
      c.set("landmark_chunk", 1);
      add_gradients(c, spec);
    });
}

/// One list for each query, with everything else that a call may have.
void fill(CaseBuilder& c, const AttentionSpec& spec, const LandmarkSpec& landmarks) {
  add_qkv(c, spec);
  add_window(c, spec, WindowKind::uniform, spec.hq);
  add_landmarks(c, spec, landmarks);
  add_gradients(c, spec, true);
}
const LandmarkSpec per_query = {.k = 20, .chunk = 1, .weights = true, .messy = true};

void add_forms(FamilyList& list) {
  struct Pack {
    const char* name;
    std::vector<std::int64_t> q, k;
    std::int64_t hq, tail;
  };
  const Pack packs[] = {{"equal", {65, 0, 1, 13}, {65, 0, 1, 13}, 2, 0},
                        {"fewer_keys", {70, 5, 34}, {1, 0, 33}, 1, 3},
                        {"more_keys", {3, 0, 34, 1}, {43, 7, 129, 58}, 4, 30}};
  for (const std::int64_t d : {64, 128}) {
    const unsigned flags = d == 64 ? quick : slow;
    for (const Pack& pack : packs)
      for (const std::int64_t chunk : {1, 5})
        list.add(
            "pack_" + std::string(pack.name) + "_chunk_" + std::to_string(chunk) + head(d), half_dtypes, flags,
            [pack, chunk, d](CaseBuilder& c) {
              const AttentionSpec spec{.hq = pack.hq,
                                       .hkv = 1,
                                       .d = d,
                                       .dv = d,
                                       .mask = "sparse",
                                       .q_lengths = pack.q,
                                       .k_lengths = pack.k,
                                       .tail = pack.tail};
              fill(c, spec,
                   {.k = 20, .heads = pack.hq, .chunk = chunk, .offset = chunk - 1, .weights = true, .messy = true});
            });
    for (const std::int64_t nq : {1, 34})
      list.add("k_lengths_" + std::to_string(nq) + head(d), half_dtypes, flags, [nq, d](CaseBuilder& c) {
        const AttentionSpec spec{.b = 5, .hq = 2, .hkv = 1, .nq = nq, .nk = 130, .d = d, .dv = d, .mask = "sparse"};
        fill(c, spec, per_query);
        add_k_lengths(c, spec, {0, 1, 33, 129, spec.nk});
      });
    for (const bool bidirectional : {false, true}) {
      list.add(std::string("soft_edge") + (bidirectional ? "_both_sides" : "") + head(d), half_dtypes, flags,
               [bidirectional, d](CaseBuilder& c) {
                 fill(c, square(70, d), per_query);
                 add_soft_edge(c, 5, 2);
                 if (bidirectional) c.set("bidirectional", true);
               });
      list.add(std::string("fewer_keys_than_queries") + (bidirectional ? "_both_sides" : "") + head(d), half_dtypes,
               slow, [bidirectional, d](CaseBuilder& c) {
                 fill(c, {.b = 2, .hq = 4, .hkv = 2, .nq = 50, .nk = 33, .d = d, .dv = d, .mask = "sparse"}, per_query);
                 if (bidirectional) c.set("bidirectional", true);
               });
    }
  }
}

void add_views(FamilyList& list) {
  const AttentionSpec spec{.b = 2, .hq = 2, .hkv = 1, .nq = 40, .nk = 40, .d = 64, .dv = 64, .mask = "sparse"};
  const LandmarkSpec own = {.k = 20, .heads = 2, .chunk = 1, .weights = true};
  list.add("view_permuted", half_dtypes, quick, [=](CaseBuilder& c) {
    fill(c, spec, own);
    for (const char* name : {"q", "k", "v", "dout"}) c.permute_storage(name, {0, 2, 1, 3});
    for (const char* name : {"window", "dlse"}) c.permute_storage(name, {2, 0, 1});
    for (const char* name : {"landmarks", "landmark_log_weight"}) c.permute_storage(name, {3, 2, 0, 1});
  });
  list.add("view_reversed", half_dtypes, slow, [=](CaseBuilder& c) {
    fill(c, spec, own);
    for (const char* name : {"q", "k", "v", "dout", "window", "dlse"}) c.reverse_storage(name, 2);
    for (const char* name : {"landmarks", "landmark_log_weight"}) c.reverse_storage(name, 3);
  });
  list.add("view_unaligned", half_dtypes, slow, [=](CaseBuilder& c) {
    fill(c, spec, own);
    for (const char* name : {"q", "k", "v", "dout", "window", "landmarks", "landmark_log_weight"}) c.unalign(name);
  });
  list.add("large_logits", half_dtypes, quick, [](CaseBuilder& c) {
    const AttentionSpec loud = square(60, 64);
    add_qkv(c, loud, 5);
    add_window(c, loud, WindowKind::uniform, 1);
    add_landmarks(c, loud, per_query);
    add_gradients(c, loud, true);
  });
  for (const double scale : {0.0, -0.7})
    list.add(scale == 0 ? "scale_zero" : "scale_minus", half_dtypes, slow, [spec, scale](CaseBuilder& c) {
      fill(c, spec, per_query);
      c.set("scale", scale);
    });
}

}  // namespace

void add_attention_lists(FamilyList& list) {
  list.begin(
      "attention/lists", Operation::attention,
      "Landmark lists of one to 31 queries, for which backends have kernels of their own: 1 to 5000 slots, shared "
      "by heads and not, beside windows and alone, caches, packs, views, large logits.");
  add_slots(list);
  add_forms(list);
  add_views(list);
}

}  // namespace dsalt::verification
