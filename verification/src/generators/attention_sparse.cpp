// Attention: adaptive windows, soft edges, landmarks and their weights, both sides.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

struct NamedWindow {
  const char* name;
  WindowKind kind;
};
constexpr NamedWindow every_window[] = {{"constant", WindowKind::constant},     {"uniform", WindowKind::uniform},
                                        {"bimodal", WindowKind::bimodal},       {"integers", WindowKind::integers},
                                        {"fractional", WindowKind::fractional}, {"negative", WindowKind::negative},
                                        {"poisoned", WindowKind::poisoned},     {"unbounded", WindowKind::unbounded}};

constexpr std::int64_t most_chunk = std::int64_t{1} << 62;
const AttentionSpec sparse{.hq = 4, .hkv = 2, .nq = 25, .nk = 25, .d = 8, .dv = 8, .mask = "sparse"};

void add_windows(FamilyList& list) {
  list.begin("attention/window", Operation::attention,
             "Windows of every kind, one for all heads or one per head: constant, random, bimodal, int32, fractional, "
             "negative, NaN, unbounded.");
  for (const NamedWindow window : every_window)
    for (const std::int64_t heads : {1, 4})
      list.add(std::string(window.name) + "_" + std::to_string(heads) + "_heads", every_dtype,
               heads == 4 ? golden : quick, [window, heads](CaseBuilder& c) {
                 add_qkv(c, sparse);
                 add_window(c, sparse, window.kind, heads);
                 add_gradients(c, sparse);
               });
  for (const std::int64_t n : {65, 137, 192})
    list.add("uniform_length_" + std::to_string(n), every_dtype, quick, [n](CaseBuilder& c) {
      const AttentionSpec spec{.nq = n, .nk = n, .d = 8, .dv = 8, .mask = "sparse"};
      add_qkv(c, spec);
      add_window(c, spec, WindowKind::uniform, 2);
      add_gradients(c, spec);
    });
  struct Lengths {
    std::int64_t nq, nk;
  };
  for (const Lengths n : {Lengths{11, 40}, {40, 11}, {1, 29}})
    list.add("uniform_" + std::to_string(n.nq) + "x" + std::to_string(n.nk), every_dtype, golden, [n](CaseBuilder& c) {
      const AttentionSpec spec{.b = 2, .nq = n.nq, .nk = n.nk, .d = 8, .dv = 8, .mask = "sparse"};
      add_qkv(c, spec);
      add_window(c, spec, WindowKind::uniform, 2);
      add_gradients(c, spec);
    });
}

void add_soft_edges(FamilyList& list) {
  list.begin("attention/soft_edge", Operation::attention,
             "The differentiable window edge: narrow and wide edges, sharp and flat, also wider than the window.");
  struct Edge {
    const char* name;
    double edge, tau;
  };
  for (const Edge soft : {Edge{"zero", 0, 1},
                          {"one", 1, 0.25},
                          {"wide", 6, 2},
                          {"whole_window", 1000, 3},
                          {"sharp", 2.5, 0.01},
                          {"flat", 3, 50}})
    for (const NamedWindow window : {every_window[1], every_window[4]})
      list.add(std::string(soft.name) + "_" + window.name, every_dtype,
               window.kind == WindowKind::uniform ? golden : quick, [soft, window](CaseBuilder& c) {
                 add_qkv(c, sparse);
                 add_window(c, sparse, window.kind, 4);
                 add_soft_edge(c, soft.edge, soft.tau);
                 add_gradients(c, sparse, true);
               });
  // Edges that windows past the 32-bit numbers end before, cross and lie inside of.
  for (const Edge soft : {Edge{"near", 100, 30}, {"far", 0x1p31 + 260, 0x1p28}, {"everywhere", 1e30, 0x1p30}})
    for (const bool bidirectional : {false, true})
      list.add(std::string("past_int32_") + soft.name + (bidirectional ? "_both_sides" : ""), every_dtype, quick,
               [soft, bidirectional](CaseBuilder& c) {
                 add_qkv(c, sparse);
                 add_window(c, sparse, WindowKind::past_int32, 4);
                 add_soft_edge(c, soft.edge, soft.tau);
                 if (bidirectional) c.set("bidirectional", true);
                 add_gradients(c, sparse, true);
               });
  // tau is below float32's normal numbers, and so 1 / tau above them: log sigma is 0 inside the window, and log 1/2 at
  // its very end, where the window's gradient would be beyond them too.
  list.add("tiny_tau", every_dtype, quick, [](CaseBuilder& c) {
    add_qkv(c, sparse);
    c.constant("window", sparse.row_shape(1), c.statistics(), 4.5);
    add_soft_edge(c, 2, 1e-40);
    add_gradients(c, sparse);
  });
  list.add("tiny_tau_at_the_end", every_dtype, quick, [](CaseBuilder& c) {
    add_qkv(c, sparse);
    add_window(c, sparse, WindowKind::constant, 1);
    add_soft_edge(c, 2, 1e-40);
  });
  for (const NamedWindow window : {every_window[5], every_window[6], every_window[7]})
    list.add(std::string("one_") + window.name, every_dtype, golden, [window](CaseBuilder& c) {
      add_qkv(c, sparse);
      add_window(c, sparse, window.kind, 1);
      add_soft_edge(c, 2, 0.5);
      add_gradients(c, sparse);
    });
}

void add_landmark_lists(FamilyList& list) {
  list.begin("attention/landmarks", Operation::attention,
             "Landmark lists: shared, per head, per chunk, with repeats, future and unused slots, longer than the "
             "sequence, with and without a window.");
  struct Lists {
    const char* name;
    LandmarkSpec landmarks;
  };
  const Lists lists[] = {{"shared", {.k = 5}},
                         {"per_head", {.k = 5, .heads = 4}},
                         {"chunk_1", {.k = 3, .chunk = 1}},
                         {"chunk_8", {.k = 4, .heads = 4, .chunk = 8}},
                         {"chunk_8_offset_5", {.k = 4, .heads = 1, .chunk = 8, .offset = 5}},
                         {"chunk_longer", {.k = 4, .chunk = 64, .offset = 63}},
                         {"messy", {.k = 13, .heads = 4, .messy = true}},
                         {"messy_chunks", {.k = 9, .heads = 4, .chunk = 5, .offset = 2, .messy = true}},
                         {"more_than_tokens", {.k = 90, .heads = 1, .chunk = 16}},
                         {"one_slot", {.k = 1, .heads = 4}},
                         {"chunk_2_to_62", {.k = 4, .chunk = most_chunk, .offset = most_chunk - 1}}};
  for (const Lists& entry : lists)
    for (const bool window : {false, true})
      list.add(std::string(entry.name) + (window ? "_and_window" : ""), every_dtype, window ? golden : quick,
               [landmarks = entry.landmarks, window](CaseBuilder& c) {
                 add_qkv(c, sparse);
                 if (window) add_window(c, sparse, WindowKind::uniform, 4);
                 add_landmarks(c, sparse, landmarks);
                 add_gradients(c, sparse);
               });
  for (const std::int64_t chunk : {std::int64_t{4}, most_chunk})
    list.add(
        chunk == 4 ? "pack_surplus_lists" : "pack_surplus_lists_chunk_2_to_62", every_dtype, quick,
        [chunk](CaseBuilder& c) {
          const AttentionSpec spec{.hq = 2,
                                   .d = 8,
                                   .dv = 8,
                                   .mask = "sparse",
                                   .q_lengths = {5, 0, 11, 1},
                                   .k_lengths = {7, 3, 11, 0},
                                   .tail = 2};
          add_qkv(c, spec);
          add_landmarks(
              c, spec,
              {.k = 6, .heads = 2, .chunk = chunk, .offset = chunk - 1, .weights = true, .messy = true, .surplus = 3});
          add_gradients(c, spec);
        });
  list.add("all_keys", every_dtype, quick, [](CaseBuilder& c) {  // equals causal
    add_qkv(c, sparse);
    c.fill_i32("landmarks", {1, 1, 1, 25}, [](std::int64_t index) { return (index * 7) % 25; });
    add_gradients(c, sparse);
  });
  list.add("one_key_repeated", every_dtype, golden, [](CaseBuilder& c) {
    add_qkv(c, sparse);
    c.fill_i32("landmarks", {1, 4, 1, 6}, [](std::int64_t) { return 11; });
    c.normal_statistics("landmark_log_weight", {1, 4, 1, 6});
    add_gradients(c, sparse);
  });
}

void add_landmark_weights(FamilyList& list) {
  list.begin("attention/landmark_weights", Operation::attention,
             "Log-weights of landmarks, small and large, NaN where a slot is unused, with gradients.");
  for (const double scale : {1.0, 30.0})
    for (const std::int64_t heads : {1, 4})
      for (const bool messy : {false, true})
        list.add(std::string(scale == 1 ? "moderate_" : "large_") + std::to_string(heads) + "_heads" +
                     (messy ? "_messy" : ""),
                 every_dtype, golden, [scale, heads, messy](CaseBuilder& c) {
                   add_qkv(c, sparse);
                   add_window(c, sparse, WindowKind::uniform, 4);
                   add_landmarks(
                       c, sparse,
                       {.k = 9, .heads = heads, .chunk = 10, .weights = true, .weight_scale = scale, .messy = messy});
                   add_gradients(c, sparse, true);
                 });
  list.add("without_window", every_dtype, golden, [](CaseBuilder& c) {
    add_qkv(c, sparse);
    add_landmarks(c, sparse, {.k = 9, .heads = 1, .weights = true});
    add_gradients(c, sparse);
  });
  list.add("overwhelming", every_dtype, quick, [](CaseBuilder& c) {  // lambda of +-1e4
    add_qkv(c, sparse);
    add_window(c, sparse, WindowKind::constant, 1);
    add_landmarks(c, sparse, {.k = 4, .heads = 4, .weights = true, .weight_scale = 1e4});
    add_gradients(c, sparse);
  });
}

void add_bidirectional(FamilyList& list) {
  list.begin("attention/bidirectional", Operation::attention,
             "Windows on both sides and landmarks anywhere, for encoders.");
  for (const NamedWindow window : every_window)
    list.add(window.name, every_dtype, golden, [window](CaseBuilder& c) {
      add_qkv(c, sparse);
      c.set("bidirectional", true);
      add_window(c, sparse, window.kind, 4);
      add_landmarks(c, sparse, {.k = 5, .heads = 1, .chunk = 9, .weights = true, .messy = true});
      if (window.kind != WindowKind::integers) add_soft_edge(c, 1.5, 0.7);
      add_gradients(c, sparse);
    });
  struct Lengths {
    std::int64_t nq, nk;
  };
  for (const Lengths n : {Lengths{9, 31}, {31, 9}})
    list.add(std::to_string(n.nq) + "x" + std::to_string(n.nk), every_dtype, golden, [n](CaseBuilder& c) {
      const AttentionSpec spec{.b = 2, .nq = n.nq, .nk = n.nk, .d = 8, .dv = 8, .mask = "sparse"};
      add_qkv(c, spec);
      c.set("bidirectional", true);
      add_window(c, spec, WindowKind::uniform, 1);
      add_landmarks(c, spec, {.k = 3});
      add_gradients(c, spec, true);
    });
}

}  // namespace

void add_attention_sparse(FamilyList& list) {
  add_windows(list);
  add_soft_edges(list);
  add_landmark_lists(list);
  add_landmark_weights(list);
  add_bidirectional(list);
}

}  // namespace dsalt::verification
