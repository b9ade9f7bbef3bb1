// Sparse attention on the sizes for which backends have their fastest kernels: heads of 64 and 128, rows and keys
// around multiples of 64, 128 and 192, lists around multiples of 64 landmarks.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

AttentionSpec square(std::int64_t n, std::int64_t d) {
  return {.hq = 2, .hkv = 1, .nq = n, .nk = n, .d = d, .dv = d, .mask = "sparse"};
}

constexpr std::int64_t most_chunk = std::int64_t{1} << 62;

std::string head(std::int64_t d) { return "_d" + std::to_string(d); }

void add_windows(FamilyList& list) {
  struct Window {
    const char* name;
    WindowKind kind;
  };
  for (const Window window : {Window{"constant", WindowKind::constant},
                              {"uniform", WindowKind::uniform},
                              {"bimodal", WindowKind::bimodal},
                              {"integers", WindowKind::integers},
                              {"fractional", WindowKind::fractional},
                              {"negative", WindowKind::negative},
                              {"poisoned", WindowKind::poisoned},
                              {"unbounded", WindowKind::unbounded}})
    for (const std::int64_t d : {64, 128}) {
      const std::int64_t heads = window.kind == WindowKind::bimodal || window.kind == WindowKind::poisoned ? 1 : 2;
      list.add("window_" + std::string(window.name) + head(d), half_dtypes, d == 64 ? quick : slow,
               [window, heads, d](CaseBuilder& c) {
                 add_qkv(c, square(193, d));
                 add_window(c, square(193, d), window.kind, heads);
                 add_gradients(c, square(193, d));
               });
    }
}

void add_lists(FamilyList& list) {
  struct Lists {
    const char* name;
    LandmarkSpec landmarks;
    unsigned flags;
  };
  const Lists lists[] = {{"one_slot", {.k = 1, .heads = 2}, quick},
                         {"64", {.k = 64}, slow},
                         {"65_per_head", {.k = 65, .heads = 2, .weights = true}, quick},
                         {"messy_129", {.k = 129, .heads = 2, .weights = true, .messy = true}, quick},
                         {"more_than_tokens", {.k = 400}, slow},
                         {"chunk_8", {.k = 9, .chunk = 8}, slow},
                         {"chunk_32", {.k = 5, .heads = 2, .chunk = 32, .weights = true}, quick},
                         {"chunk_64_offset_63", {.k = 70, .chunk = 64, .offset = 63, .weights = true}, quick},
                         {"messy_chunks_100", {.k = 130, .heads = 2, .chunk = 100, .offset = 7, .messy = true}, slow},
                         {"chunk_longer", {.k = 20, .chunk = 1000, .offset = 900}, slow},
                         {"chunk_2_to_62", {.k = 20, .chunk = most_chunk, .offset = most_chunk - 1}, quick},
                         {"overwhelming", {.k = 6, .heads = 2, .weights = true, .weight_scale = 1e4}, quick},
                         {"one_with_huge_weight", {.k = 1, .heads = 2, .weights = true, .weight_scale = 1e8}, quick}};
  for (const Lists& entry : lists)
    for (const std::int64_t d : {64, 128})
      for (const bool window : {false, true})
        list.add("landmarks_" + std::string(entry.name) + (window ? "_and_window" : "") + head(d), half_dtypes,
                 (d == 64) == window ? entry.flags : slow, [landmarks = entry.landmarks, window, d](CaseBuilder& c) {
                   const AttentionSpec spec = square(200, d);
                   add_qkv(c, spec);
                   if (window) add_window(c, spec, WindowKind::fractional, 2);
                   add_landmarks(c, spec, landmarks);
                   add_gradients(c, spec, landmarks.weights);
                 });
}

/// Log-weights near float32's range: of the landmarks that a row admits, those of the largest share all of its weight.
void add_huge_weights(FamilyList& list) {
  for (const std::int64_t d : {64, 128})
    for (const bool window : {false, true})
      list.add(std::string("landmarks_huge_weights") + (window ? "_and_window" : "") + head(d), half_dtypes,
               (d == 64) == window ? quick : slow, [window, d](CaseBuilder& c) {
                 const AttentionSpec spec = square(200, d);
                 add_qkv(c, spec);
                 if (window) add_window(c, spec, WindowKind::fractional, 2);
                 add_landmarks(c, spec, {.k = 70, .heads = 2});
                 c.fill("landmark_log_weight", {1, 2, 1, 70}, c.statistics(), [](std::int64_t index) {
                   const double weights[] = {-8e36, 1, 5e36, -1e20, 8e36, 0, -3};
                   return weights[index % 7] * (1 - static_cast<double>(index) / 512);
                 });
                 add_gradients(c, spec);
               });
}

/// A window of every width and two blocks of landmarks, with both upstream gradients.
void fill(CaseBuilder& c, const AttentionSpec& spec, const LandmarkSpec& landmarks) {
  add_qkv(c, spec);
  add_window(c, spec, WindowKind::uniform, spec.hq);
  add_landmarks(c, spec, landmarks);
  add_gradients(c, spec, true);
}
const LandmarkSpec weighted = {.k = 70, .weights = true};

void add_sizes(FamilyList& list) {
  struct Sizes {
    std::int64_t nq, nk, hq, hkv, d;
    unsigned flags;
  };
  for (const Sizes n : {Sizes{1, 200, 4, 1, 64, quick},
                        {1, 129, 2, 2, 128, slow},
                        {5, 1000, 2, 1, 64, quick},
                        {64, 64, 1, 1, 128, quick},
                        {65, 63, 2, 2, 64, quick},
                        {128, 300, 2, 1, 128, slow},
                        {129, 257, 1, 1, 64, slow},
                        {192, 193, 4, 1, 64, quick},
                        {300, 65, 2, 1, 128, quick},
                        {400, 400, 4, 2, 64, slow},
                        {400, 400, 2, 1, 128, slow}})
    for (const bool bidirectional : {false, true})
      list.add((bidirectional ? "both_sides_" : "") + std::to_string(n.nq) + "x" + std::to_string(n.nk) + head(n.d),
               half_dtypes, n.flags, [n, bidirectional](CaseBuilder& c) {
                 fill(c,
                      {.b = 2, .hq = n.hq, .hkv = n.hkv, .nq = n.nq, .nk = n.nk, .d = n.d, .dv = n.d, .mask = "sparse"},
                      weighted);
                 if (bidirectional) c.set("bidirectional", true);
               });
  // More tiles than any device has multiprocessors.
  for (const std::int64_t d : {64, 128})
    list.add("many_heads" + head(d), half_dtypes, slow, [d](CaseBuilder& c) {
      fill(c, {.b = 2, .hq = 80, .hkv = 2, .nq = 260, .nk = 130, .d = d, .dv = d, .mask = "sparse"},
           {.k = 70, .chunk = 64, .weights = true});
    });
}

void add_soft_edges(FamilyList& list) {
  struct Edge {
    const char* name;
    double edge, tau;
    unsigned flags;
  };
  // Edges that windows past the 32-bit numbers end before, cross and lie inside of.
  for (const Edge soft :
       {Edge{"near", 100, 30, slow}, {"far", 0x1p31 + 260, 0x1p28, quick}, {"everywhere", 1e30, 0x1p30, slow}})
    for (const std::int64_t d : {64, 128})
      list.add("soft_edge_past_int32_" + std::string(soft.name) + head(d), half_dtypes, d == 64 ? soft.flags : slow,
               [soft, d](CaseBuilder& c) {
                 const AttentionSpec spec = square(200, d);
                 add_qkv(c, spec);
                 add_window(c, spec, WindowKind::past_int32, 2);
                 add_landmarks(c, spec, weighted);
                 add_soft_edge(c, soft.edge, soft.tau);
                 add_gradients(c, spec, true);
               });
  for (const std::int64_t d : {64, 128})  // 1 / tau is beyond float32
    list.add("soft_edge_tiny_tau" + head(d), half_dtypes, d == 64 ? quick : slow, [d](CaseBuilder& c) {
      const AttentionSpec spec = square(130, d);
      add_qkv(c, spec);
      c.constant("window", spec.row_shape(1), c.statistics(), 20.5);
      add_landmarks(c, spec, weighted);
      add_soft_edge(c, 2, 1e-40);
      add_gradients(c, spec);
    });
  for (const Edge soft : {Edge{"zero", 0, 1, slow},
                          {"wide", 60, 7, quick},
                          {"whole_window", 1000, 30, slow},
                          {"sharp", 2.5, 0.01, quick},
                          {"flat", 3, 50, slow}})
    for (const std::int64_t d : {64, 128})
      for (const bool bidirectional : {false, true})
        list.add("soft_edge_" + std::string(soft.name) + (bidirectional ? "_both_sides" : "") + head(d), half_dtypes,
                 (d == 64) != bidirectional ? soft.flags : slow, [soft, d, bidirectional](CaseBuilder& c) {
                   fill(c, square(200, d), weighted);
                   add_soft_edge(c, soft.edge, soft.tau);
                   if (bidirectional) c.set("bidirectional", true);
                 });
}

void add_batches(FamilyList& list) {
  struct Pack {
    const char* name;
    std::vector<std::int64_t> q, k;
    std::int64_t hq, tail;
  };
  const Pack packs[] = {{"equal", {65, 0, 1, 193, 63}, {65, 0, 1, 193, 63}, 2, 0},
                        {"fewer_keys", {130, 70, 5, 64}, {64, 1, 0, 63}, 1, 3},
                        {"more_keys", {3, 0, 64, 1}, {193, 7, 129, 128}, 4, 130}};
  const LandmarkSpec chunks{.k = 40, .chunk = 64, .offset = 10, .weights = true, .messy = true};
  for (const std::int64_t d : {64, 128}) {
    const unsigned flags = d == 64 ? quick : slow;
    for (const Pack& pack : packs)
      list.add("pack_" + std::string(pack.name) + head(d), half_dtypes, flags, [pack, chunks, d](CaseBuilder& c) {
        const AttentionSpec spec{.hq = pack.hq,
                                 .hkv = 1,
                                 .d = d,
                                 .dv = d,
                                 .mask = "sparse",
                                 .q_lengths = pack.q,
                                 .k_lengths = pack.k,
                                 .tail = pack.tail};
        LandmarkSpec landmarks = chunks;
        landmarks.heads = pack.hq;
        fill(c, spec, landmarks);
      });
    list.add("pack_surplus_lists" + head(d), half_dtypes, flags, [chunks, d](CaseBuilder& c) {
      LandmarkSpec landmarks = chunks;
      landmarks.surplus = 5;
      fill(c, {.d = d, .dv = d, .mask = "sparse", .q_lengths = {70, 0, 130}, .k_lengths = {70, 5, 140}}, landmarks);
    });
    for (const std::int64_t nq : {1, 66})
      list.add("k_lengths_" + std::to_string(nq) + head(d), half_dtypes, flags, [nq, d](CaseBuilder& c) {
        const AttentionSpec spec{.b = 6, .hq = 2, .hkv = 1, .nq = nq, .nk = 200, .d = d, .dv = d, .mask = "sparse"};
        fill(c, spec, weighted);
        add_k_lengths(c, spec, {0, 1, 127, 128, 129, spec.nk});
      });
  }
}

void add_views(FamilyList& list) {
  for (const std::int64_t d : {64, 128}) {
    const AttentionSpec spec{.b = 2, .hq = 2, .hkv = 1, .nq = 130, .nk = 130, .d = d, .dv = d, .mask = "sparse"};
    const LandmarkSpec landmarks{.k = 30, .heads = 2, .chunk = 64, .weights = true};
    const unsigned flags = d == 64 ? quick : slow;
    list.add("view_permuted" + head(d), half_dtypes, flags, [spec, landmarks](CaseBuilder& c) {
      fill(c, spec, landmarks);
      for (const char* name : {"q", "k", "v", "dout"}) c.permute_storage(name, {0, 2, 1, 3});
      for (const char* name : {"window", "dlse"}) c.permute_storage(name, {2, 0, 1});
      for (const char* name : {"landmarks", "landmark_log_weight"}) c.permute_storage(name, {3, 2, 0, 1});
    });
    list.add("view_reversed" + head(d), half_dtypes, slow, [spec, landmarks](CaseBuilder& c) {
      fill(c, spec, landmarks);
      for (const char* name : {"q", "k", "v", "dout", "window", "dlse"}) c.reverse_storage(name, 2);
      for (const char* name : {"landmarks", "landmark_log_weight"}) c.reverse_storage(name, 3);
    });
    list.add("view_broadcast" + head(d), half_dtypes, flags, [spec, landmarks](CaseBuilder& c) {
      fill(c, spec, landmarks);
      for (const char* name : {"k", "v", "dlse", "window", "landmarks"}) c.repeat_first(name, 0);
      c.repeat_first("landmark_log_weight", 1);
    });
    list.add("view_unaligned" + head(d), half_dtypes, slow, [spec, landmarks](CaseBuilder& c) {
      fill(c, spec, landmarks);
      for (const char* name : {"q", "k", "v", "dout", "window", "landmarks", "landmark_log_weight"}) c.unalign(name);
    });
  }
}

void add_logits(FamilyList& list) {
  struct Scale {
    const char* name;
    double value;
  };
  for (const std::int64_t d : {64, 128}) {
    const AttentionSpec spec = square(130, d);
    for (const Scale scale : {Scale{"half", 0.5}, {"minus", -0.7}, {"zero", 0}, {"large", 40}})
      list.add("scale_" + std::string(scale.name) + head(d), half_dtypes, scale.value == 40 && d == 64 ? quick : slow,
               [=](CaseBuilder& c) {
                 fill(c, spec, weighted);
                 c.set("scale", scale.value);
               });
    list.add("large_logits" + head(d), half_dtypes, slow, [spec](CaseBuilder& c) {
      add_qkv(c, spec, 5);
      add_window(c, spec, WindowKind::uniform, 1);
      add_landmarks(c, spec, weighted);
      add_gradients(c, spec, true);
    });
  }
}

}  // namespace

void add_attention_sparse_tiles(FamilyList& list) {
  list.begin(
      "attention/sparse_tiles", Operation::attention,
      "Windows, soft edges and landmarks with heads of 64 and 128, for which backends have kernels of their own: "
      "rows and keys around multiples of 64, 128 and 192, lists around 64, caches, packs, views, large logits.");
  add_windows(list);
  add_lists(list);
  add_huge_weights(list);
  add_sizes(list);
  add_soft_edges(list);
  add_batches(list);
  add_views(list);
  add_logits(list);
}

}  // namespace dsalt::verification
