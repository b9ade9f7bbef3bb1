// Attention: packs, KV caches, and very many sequences or heads.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

void add_packed(FamilyList& list) {
  list.begin("attention/packed", Operation::attention,
             "Packs: one-token and empty sequences, different query and key lengths, buffers longer than cu_seqlens "
             "with a NaN tail.");
  struct Pack {
    const char* name;
    std::vector<std::int64_t> q, k;
    std::int64_t tail;
  };
  const Pack packs[] = {{"plain", {5, 9, 3}, {5, 9, 3}, 0},
                        {"one_token_each", {1, 1, 1, 1}, {1, 1, 1, 1}, 0},
                        {"empty_in_the_middle", {1, 0, 1}, {3, 0, 5}, 0},
                        {"no_queries_first", {0, 1}, {2, 3}, 0},
                        {"no_keys_first", {4, 6}, {0, 6}, 0},
                        {"all_empty", {0, 0, 0}, {0, 0, 0}, 2},
                        {"fewer_keys", {12, 5}, {4, 2}, 0},
                        {"more_keys", {4, 2}, {30, 19}, 0},
                        {"tail", {14, 28, 1}, {14, 28, 1}, 3},
                        {"tail_different", {3, 17, 8}, {20, 17, 1}, 5}};
  for (const Pack& pack : packs)
    for (const char* mask : {"full", "causal", "sparse"})
      list.add(std::string(pack.name) + "_" + mask, every_dtype, golden, [pack, mask](CaseBuilder& c) {
        const AttentionSpec spec{.hq = 4,
                                 .hkv = 2,
                                 .d = 8,
                                 .dv = 8,
                                 .mask = mask,
                                 .q_lengths = pack.q,
                                 .k_lengths = pack.k,
                                 .tail = pack.tail};
        add_qkv(c, spec);
        if (std::string_view(mask) == "sparse") {
          add_window(c, spec, WindowKind::uniform, 4);
          add_landmarks(c, spec, {.k = 4, .heads = 4, .chunk = 4, .offset = 1, .weights = true, .messy = true});
          add_soft_edge(c, 1, 0.5);
        }
        add_gradients(c, spec, true);
      });
  list.add("no_sequences", every_dtype, golden, [](CaseBuilder& c) {  // cu_seqlens = [0]
    const AttentionSpec spec{.d = 8, .dv = 8, .tail = 2, .force_packed = true};
    add_qkv(c, spec);
    add_gradients(c, spec);
  });
  list.add("groups_of_three", every_dtype, quick, [](CaseBuilder& c) {
    const AttentionSpec spec{.hq = 9, .hkv = 3, .d = 64, .dv = 64, .q_lengths = {1, 0, 1}, .k_lengths = {3, 0, 5}};
    add_qkv(c, spec);
    add_gradients(c, spec);
  });
  list.add("long_tail", every_dtype, slow, [](CaseBuilder& c) {
    const AttentionSpec spec{.q_lengths = {144, 288, 512}, .k_lengths = {144, 288, 512}, .tail = 2};
    add_qkv(c, spec);
    add_gradients(c, spec);
  });
}

void add_many(FamilyList& list) {
  list.begin("attention/many", Operation::attention,
             "More sequences or heads than a 16-bit launch dimension holds: 65,537 tiny ones.");
  constexpr std::int64_t many = 65537;
  list.add("sequences", every_dtype, slow, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = many, .hq = 1, .nq = 2, .nk = 2, .d = 2, .dv = 2};
    add_qkv(c, spec);
    add_gradients(c, spec);
  });
  list.add("heads", every_dtype, slow, [](CaseBuilder& c) {
    const AttentionSpec spec{.hq = many, .hkv = 1, .nq = 2, .nk = 2, .d = 2, .dv = 2};
    add_qkv(c, spec);
    add_gradients(c, spec);
  });
  list.add("key_heads", every_dtype, slow, [](CaseBuilder& c) {
    const AttentionSpec spec{.hq = many, .hkv = many, .nq = 1, .nk = 2, .d = 2, .dv = 2, .mask = "sparse"};
    add_qkv(c, spec);
    add_window(c, spec, WindowKind::constant, many);
    add_landmarks(c, spec, {.k = 1, .heads = many});
    add_gradients(c, spec);
  });
  list.add("packed", every_dtype, slow, [](CaseBuilder& c) {  // every seventh sequence is empty
    AttentionSpec spec{.hq = 1, .d = 2, .dv = 2};
    for (std::int64_t s = 0; s < many; ++s) {
      spec.q_lengths.push_back(s % 7 == 3 ? 0 : 1);
      spec.k_lengths.push_back(s % 7 == 3 ? 0 : 1 + s % 2);
    }
    add_qkv(c, spec);
    add_gradients(c, spec);
  });
}

void add_cache_lengths(FamilyList& list) {
  list.begin("attention/k_lengths", Operation::attention,
             "KV caches: no, one, some or all keys valid; NaN beyond them must change nothing.");
  for (const char* mask : {"full", "causal", "sparse"})
    for (const std::int64_t nq : {1, 6})
      list.add(std::string(mask) + "_" + std::to_string(nq), every_dtype, golden, [mask, nq](CaseBuilder& c) {
        const AttentionSpec spec{.b = 4, .hq = 4, .hkv = 2, .nq = nq, .nk = 19, .d = 8, .dv = 8, .mask = mask};
        add_qkv(c, spec);
        if (std::string_view(mask) == "sparse") {
          add_window(c, spec, WindowKind::uniform, 4);
          add_landmarks(c, spec, {.k = 5, .heads = 1, .chunk = 8, .offset = 3, .weights = true, .messy = true});
        }
        add_k_lengths(c, spec, {0, 1, 12, 19});
        add_gradients(c, spec, true);
      });
  list.add("bidirectional", every_dtype, golden, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 3, .nq = 7, .nk = 25, .d = 8, .dv = 8, .mask = "sparse"};
    add_qkv(c, spec);
    c.set("bidirectional", true);
    add_window(c, spec, WindowKind::uniform, 2);
    add_soft_edge(c, 2, 1);
    add_k_lengths(c, spec, {3, 7, 20});
    add_gradients(c, spec);
  });
}

}  // namespace

void add_attention_batches(FamilyList& list) {
  add_packed(list);
  add_many(list);
  add_cache_lengths(list);
}

}  // namespace dsalt::verification
