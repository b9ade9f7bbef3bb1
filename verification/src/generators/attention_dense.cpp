// Attention: tiles, lengths, heads and layouts.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

void add_partial_tiles(FamilyList& list) {
  list.begin("attention/partial_tiles", Operation::attention,
             "Sequence lengths just below, at and above multiples of common tile sizes, full and causal.");
  for (const char* mask : {"full", "causal"})
    for (const std::int64_t n : {1, 15, 17, 63, 65, 127, 129, 137, 192}) {
      const unsigned flags = n == 1 || n == 17 || n == 65 ? golden : quick;
      list.add(std::string(mask) + "_" + std::to_string(n), every_dtype, flags, [mask, n](CaseBuilder& c) {
        const AttentionSpec spec{.nq = n, .nk = n, .mask = mask};
        add_qkv(c, spec);
        add_gradients(c, spec);
      });
    }
}

void add_cross_lengths(FamilyList& list) {
  list.begin(
      "attention/cross_lengths", Operation::attention,
      "More keys than queries and the reverse; positions align bottom-right, so the first rows may see nothing.");
  struct Lengths {
    std::int64_t nq, nk;
  };
  for (const char* mask : {"full", "causal"})
    for (const Lengths n : {Lengths{3, 7}, {7, 3}, {5, 2}, {2, 5}, {1, 33}, {40, 9}, {65, 1}, {70, 129}})
      list.add(std::string(mask) + "_" + std::to_string(n.nq) + "x" + std::to_string(n.nk), every_dtype,
               n.nk < 100 ? golden : quick, [mask, n](CaseBuilder& c) {
                 const AttentionSpec spec{.b = 2, .nq = n.nq, .nk = n.nk, .d = 8, .dv = 8, .mask = mask};
                 add_qkv(c, spec);
                 add_gradients(c, spec, true);
               });
  list.add("means_3x7", every_dtype, quick, [](CaseBuilder& c) {
    const AttentionSpec spec{.hq = 1, .nq = 3, .nk = 7, .d = 8, .dv = 1, .mask = "full"};
    add_qkv(c, spec, 0);
    c.fill("v", {1, 1, 7, 1}, c.dtype(), [](std::int64_t j) { return static_cast<double>(j); });
    add_gradients(c, spec);
  });
}

void add_empty(FamilyList& list) {
  list.begin("attention/empty", Operation::attention,
             "No queries, no keys, no sequences, no landmarks: outputs of length 0, or rows that see nothing.");
  struct Sizes {
    const char* name;
    std::int64_t b, nq, nk;
  };
  for (const Sizes n :
       {Sizes{"no_keys", 2, 5, 0}, {"no_queries", 2, 0, 5}, {"no_tokens", 2, 0, 0}, {"no_sequences", 0, 5, 5}})
    for (const char* mask : {"full", "causal", "sparse"})
      list.add(std::string(n.name) + "_" + mask, every_dtype, golden, [mask, n](CaseBuilder& c) {
        const AttentionSpec spec{.b = n.b, .nq = n.nq, .nk = n.nk, .d = 8, .dv = 8, .mask = mask};
        add_qkv(c, spec);
        if (std::string_view(mask) == "sparse") {
          add_window(c, spec, WindowKind::uniform, 2);
          add_landmarks(c, spec, {.k = 3, .chunk = 4});
        }
        add_gradients(c, spec, true);
      });
  list.add("no_admission", every_dtype, golden, [](CaseBuilder& c) {  // sparse with neither window nor landmarks
    const AttentionSpec spec{.nq = 6, .nk = 6, .mask = "sparse"};
    add_qkv(c, spec);
    add_gradients(c, spec, true);
  });
  list.add("no_slots", every_dtype, golden, [](CaseBuilder& c) {
    const AttentionSpec spec{.nq = 9, .nk = 9, .mask = "sparse"};
    add_qkv(c, spec);
    add_window(c, spec, WindowKind::constant, 1);
    add_landmarks(c, spec, {.k = 0, .heads = 2, .chunk = 4, .weights = true});
    add_gradients(c, spec);
  });
}

void add_head_sizes(FamilyList& list) {
  list.begin("attention/head_sizes", Operation::attention,
             "Head sizes of published models and odd ones; the default scale is 1/sqrt(D).");
  for (const std::int64_t d : {1, 3, 8, 40, 64, 80, 96, 128, 192, 256, 320})
    list.add(std::to_string(d), every_dtype, d == 8 || d == 40 ? golden : quick, [d](CaseBuilder& c) {
      const AttentionSpec spec{.nq = 21, .nk = 21, .d = d, .dv = d};
      add_qkv(c, spec);
      add_gradients(c, spec);
    });
  struct Sizes {
    std::int64_t d, dv;
  };
  for (const Sizes n : {Sizes{16, 32}, {32, 16}, {1, 40}, {192, 128}, {8, 1}})
    list.add(std::to_string(n.d) + "_values_" + std::to_string(n.dv), every_dtype, n.d < 100 ? golden : quick,
             [n](CaseBuilder& c) {
               const AttentionSpec spec{.nq = 19, .nk = 23, .d = n.d, .dv = n.dv, .mask = "full"};
               add_qkv(c, spec);
               add_gradients(c, spec);
             });
}

void add_grouped_heads(FamilyList& list) {
  list.begin(
      "attention/grouped_heads", Operation::attention,
      "Query heads share key heads: equal numbers, groups of two to four, one key head for all; several batches.");
  struct Heads {
    std::int64_t hq, hkv;
  };
  for (const Heads n : {Heads{1, 1}, {4, 4}, {4, 2}, {9, 3}, {8, 2}, {6, 1}, {12, 1}})
    list.add(std::to_string(n.hq) + "_over_" + std::to_string(n.hkv), every_dtype, n.hq < 8 ? golden : quick,
             [n](CaseBuilder& c) {
               const AttentionSpec spec{.b = 3, .hq = n.hq, .hkv = n.hkv, .nq = 18, .nk = 18, .d = 8, .dv = 8};
               add_qkv(c, spec);
               add_gradients(c, spec);
             });
}

void add_strided_views(FamilyList& list) {
  list.begin("attention/strided_views", Operation::attention,
             "The same call through permuted buffers, slices of a larger poisoned buffer and broadcast gradients.");
  const AttentionSpec spec{.b = 2, .hq = 4, .hkv = 2, .nq = 21, .nk = 21, .d = 16, .dv = 16, .mask = "sparse"};
  const auto base = [spec](CaseBuilder& c) {
    add_qkv(c, spec);
    add_window(c, spec, WindowKind::uniform, 4);
    add_landmarks(c, spec, {.k = 5, .heads = 4, .chunk = 8, .weights = true});
    add_soft_edge(c, 2, 0.5);
    add_gradients(c, spec, true);
  };
  list.add("contiguous", every_dtype, quick, base);
  list.add("tokens_outermost", every_dtype, quick, [base](CaseBuilder& c) {  // [B,N,H,D] buffers
    base(c);
    for (const char* name : {"q", "k", "v", "dout"}) c.permute_storage(name, {0, 2, 1, 3});
    for (const char* name : {"window", "dlse"}) c.permute_storage(name, {0, 2, 1});
    for (const char* name : {"landmarks", "landmark_log_weight"}) c.permute_storage(name, {2, 0, 1, 3});
  });
  list.add("features_outermost", every_dtype, quick, [base](CaseBuilder& c) {  // no unit stride along D
    base(c);
    for (const char* name : {"q", "k", "v", "dout"}) c.permute_storage(name, {3, 1, 0, 2});
    for (const char* name : {"landmarks", "landmark_log_weight"}) c.permute_storage(name, {3, 2, 1, 0});
  });
  list.add("slices", every_dtype, quick, [base](CaseBuilder& c) {
    base(c);
    for (const char* name : {"q", "k", "v", "dout", "window", "dlse", "landmarks", "landmark_log_weight"})
      c.embed(name);
  });
  list.add("reversed", every_dtype, quick, [base](CaseBuilder& c) {  // negative strides
    base(c);
    for (const char* name : {"q", "k", "v", "dout"}) c.reverse_storage(name, 2);
    for (const char* name : {"window", "dlse", "landmark_log_weight"}) c.reverse_storage(name, 1);
    c.reverse_storage("landmarks", 3);
  });
  list.add("one_buffer", every_dtype, quick, [](CaseBuilder& c) {  // q, k, v as slices of one projection [B,N,3,H,D]
    const AttentionSpec equal{.b = 2, .hq = 3, .hkv = 3, .nq = 14, .nk = 14, .d = 16, .dv = 16};
    add_qkv(c, equal);
    add_gradients(c, equal);
    const Tensor buffer = Tensor::empty({2, 14, 3, 3, 16}, c.dtype());
    std::int64_t which = 0;
    for (const char* name : {"q", "k", "v"}) {
      const TensorView slice = buffer.view().select(2, which++).transpose(1, 2);
      copy_elements(c.input(name), slice);
      c.get().inputs[name] = Tensor(buffer.storage(), slice);
    }
  });
  list.add("broadcast", every_dtype, quick, [](CaseBuilder& c) {  // stride 0: one key head and one gradient for all
    const AttentionSpec all{.b = 2, .hq = 4, .hkv = 4, .nq = 13, .nk = 13, .d = 16, .dv = 16};
    add_qkv(c, all);
    c.normal("dout", {1, 1, 1, 16});
    for (const char* name : {"k", "v", "dout"}) {
      const Tensor source = c.input(name);
      TensorView view = source.view();
      view.shape = {2, 4, 13, 16};
      view.strides = {0, 0, name == std::string_view("dout") ? 0 : 16, 1};
      c.get().inputs[name] = Tensor(source.storage(), view);
    }
  });
  list.add("packed_slices", every_dtype, quick, [](CaseBuilder& c) {
    const AttentionSpec pack{.hq = 4, .hkv = 2, .mask = "sparse", .q_lengths = {7, 0, 12}, .k_lengths = {9, 4, 12}};
    add_qkv(c, pack);
    add_window(c, pack, WindowKind::uniform, 4);
    add_gradients(c, pack);
    for (const char* name : {"q", "k", "v", "dout"}) c.permute_storage(name, {1, 0, 2});
    c.embed("window");
  });
}

}  // namespace

void add_attention_dense(FamilyList& list) {
  add_partial_tiles(list);
  add_cross_lengths(list);
  add_empty(list);
  add_head_sizes(list);
  add_grouped_heads(list);
  add_strided_views(list);
}

}  // namespace dsalt::verification
