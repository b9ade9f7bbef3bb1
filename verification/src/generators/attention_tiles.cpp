// Attention on the sizes for which backends have their fastest kernels: heads of 64 and 128, full and causal, rows and
// keys around multiples of 64, 128 and 192.
#include <algorithm>
#include <cmath>

#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

std::string heads_of(const AttentionSpec& spec) {
  return "d" + std::to_string(spec.d) + "_" + std::to_string(spec.hq) + "_over_" + std::to_string(spec.hkv);
}

void add_sizes(FamilyList& list) {
  struct Sizes {
    std::int64_t nq, nk, hq, hkv, d;
    const char* quick_mask;  // of the two: the one that is worth the time of the quick tests
  };
  // Every length of rows and of keys occurs, and so does every order of the two; few keys and few rows are kernels of
  // their own, which few rows of many keys and many rows of few keys lead more than once around their shared memory.
  for (const Sizes n : {Sizes{1, 1, 2, 2, 64, "causal"},
                        {1, 129, 4, 1, 128, "causal"},
                        {63, 64, 2, 1, 64, "full"},
                        {64, 193, 1, 1, 64, "causal"},
                        {65, 63, 2, 2, 128, "causal"},
                        {127, 128, 2, 1, 64, ""},
                        {128, 127, 1, 1, 128, "full"},
                        {129, 257, 1, 1, 64, "causal"},
                        {191, 65, 1, 1, 64, "causal"},
                        {192, 191, 4, 1, 64, ""},
                        {193, 192, 1, 1, 128, ""},
                        {193, 193, 1, 1, 64, "causal"},
                        {257, 300, 2, 1, 64, ""},
                        {300, 129, 1, 1, 64, "full"},
                        {300, 65, 2, 1, 128, "causal"},
                        {65, 1, 4, 2, 64, "full"},
                        {33, 1000, 2, 1, 64, "causal"},
                        {5, 600, 2, 1, 128, "full"},
                        {300, 300, 4, 2, 128, ""}})
    for (const char* mask : {"full", "causal"}) {
      const AttentionSpec spec{.hq = n.hq, .hkv = n.hkv, .nq = n.nq, .nk = n.nk, .d = n.d, .dv = n.d, .mask = mask};
      list.add(std::string(mask) + "_" + std::to_string(n.nq) + "x" + std::to_string(n.nk) + "_" + heads_of(spec),
               half_dtypes, n.quick_mask == std::string_view(mask) ? quick : slow, [spec](CaseBuilder& c) {
                 add_qkv(c, spec);
                 add_gradients(c, spec, spec.nq % 2 == 0);
               });
    }
}

/// So many heads that no backend needs to share out the keys of one, however few rows it has.
void add_many_heads(FamilyList& list) {
  struct Sizes {
    std::int64_t nq, nk, d;
  };
  for (const Sizes n :
       {Sizes{5, 129, 64}, {2, 193, 128}, {7, 257, 64}, {65, 300, 64}, {3, 1000, 64}, {3, 600, 128}, {193, 65, 128}})
    for (const char* mask : {"full", "causal"}) {
      const AttentionSpec spec{.b = 2, .hq = 80, .hkv = 2, .nq = n.nq, .nk = n.nk, .d = n.d, .dv = n.d, .mask = mask};
      list.add(std::string(mask) + "_" + std::to_string(n.nq) + "x" + std::to_string(n.nk) + "_" + heads_of(spec),
               half_dtypes, slow, [spec](CaseBuilder& c) {
                 add_qkv(c, spec);
                 add_k_lengths(c, spec, {spec.nk, spec.nk - 64});
                 add_gradients(c, spec);
               });
    }
}

void add_lengths(FamilyList& list) {
  for (const char* mask : {"full", "causal"})
    for (const std::int64_t d : {64, 128})
      for (const std::int64_t nq : {1, 66, 193}) {
        const AttentionSpec spec{
            .b = 6, .hq = nq == 1 ? 4 : 1, .hkv = 1, .nq = nq, .nk = 200, .d = d, .dv = d, .mask = mask};
        list.add("k_lengths_" + std::string(mask) + "_" + std::to_string(nq) + "_" + heads_of(spec), half_dtypes,
                 spec.mask == std::string_view("causal") && nq < 193 && d == 64 ? quick : slow, [spec](CaseBuilder& c) {
                   add_qkv(c, spec);
                   add_k_lengths(c, spec, {0, 1, 127, 128, 129, spec.nk});
                   add_gradients(c, spec, true);
                 });
      }
}

void add_packs(FamilyList& list) {
  struct Pack {
    const char* name;
    std::vector<std::int64_t> q, k;
    std::int64_t hq, hkv, tail;
    unsigned flags;
  };
  const Pack packs[] = {{"equal", {65, 0, 1, 129, 63}, {65, 0, 1, 129, 63}, 2, 1, 0, quick},
                        {"fewer_keys", {130, 70, 5, 64}, {64, 1, 0, 63}, 1, 1, 3, quick},
                        {"more_keys", {3, 0, 64, 1, 0}, {193, 7, 129, 128, 0}, 4, 2, 130, quick},
                        {"long", {193, 300, 0, 127, 2}, {300, 191, 3, 0, 257}, 4, 1, 67, slow}};
  for (const Pack& pack : packs)
    for (const char* mask : {"full", "causal"})
      for (const std::int64_t d : {64, 128})
        list.add("pack_" + std::string(pack.name) + "_" + mask + "_d" + std::to_string(d), half_dtypes,
                 d == 64 && mask == std::string_view("causal") ? pack.flags : slow, [pack, mask, d](CaseBuilder& c) {
                   const AttentionSpec spec{.hq = pack.hq,
                                            .hkv = pack.hkv,
                                            .d = d,
                                            .dv = d,
                                            .mask = mask,
                                            .q_lengths = pack.q,
                                            .k_lengths = pack.k,
                                            .tail = pack.tail};
                   add_qkv(c, spec);
                   add_gradients(c, spec, true);
                 });
}

/// A change of layout that leaves every value as it is.
struct Layout {
  const char* name;
  void (*apply)(CaseBuilder& c, const std::string& input);
};

void add_views(FamilyList& list) {
  constexpr const char* rows[] = {"q", "k", "v", "dout"};
  const Layout layouts[] = {{"tokens_outermost",
                             [](CaseBuilder& c, const std::string& name) {
                               c.permute_storage(name, {0, 2, 1, 3});
                             }},
                            {"slices", [](CaseBuilder& c, const std::string& name) { c.embed_rows(name); }},
                            {"unaligned", [](CaseBuilder& c, const std::string& name) { c.unalign(name); }},
                            {"reversed", [](CaseBuilder& c, const std::string& name) { c.reverse_storage(name, 2); }},
                            {"features_apart", [](CaseBuilder& c, const std::string& name) { c.space_out(name, 2); }}};
  struct Sizes {
    std::int64_t nq, d;
    unsigned flags;
  };
  for (const Sizes n : {Sizes{5, 64, quick}, {66, 64, slow}, {130, 128, slow}}) {
    const std::int64_t d = n.d;
    const unsigned flags = n.flags;
    const AttentionSpec spec{.b = 2, .hq = 2, .hkv = 1, .nq = n.nq, .nk = 130, .d = d, .dv = d};
    const auto name_of_view = [n](const char* layout) {
      return "view_" + std::string(layout) + "_" + std::to_string(n.nq) + "_d" + std::to_string(n.d);
    };
    for (const Layout& layout : layouts)
      list.add(name_of_view(layout.name), half_dtypes, flags, [=](CaseBuilder& c) {
        add_qkv(c, spec);
        add_gradients(c, spec, true);
        for (const char* name : rows) layout.apply(c, name);
        c.permute_storage("dlse", {2, 0, 1});
      });
    list.add(name_of_view("broadcast"), half_dtypes, flags, [=](CaseBuilder& c) {  // a batch on one cache
      add_qkv(c, spec);
      add_gradients(c, spec, true);
      for (const char* name : {"k", "v", "dlse"}) c.repeat_first(name, 0);
    });
    list.add(name_of_view("broadcast_heads"), half_dtypes, flags, [=](CaseBuilder& c) {
      AttentionSpec equal = spec;
      equal.hkv = equal.hq;
      add_qkv(c, equal);
      add_gradients(c, equal);
      for (const char* name : {"k", "v"}) c.repeat_first(name, 1);
      c.repeat_first("dout", 2);
    });
    list.add(name_of_view("one_buffer"), half_dtypes, flags, [=](CaseBuilder& c) {  // slices of [B,N,3,H,D]
      AttentionSpec equal = spec;
      equal.hkv = equal.hq;
      equal.nk = equal.nq = std::max<std::int64_t>(equal.nq, 65);
      add_qkv(c, equal);
      add_gradients(c, equal);
      const Tensor buffer = Tensor::empty({equal.b, equal.nq, 3, equal.hq, d}, c.dtype());
      std::int64_t which = 0;
      for (const char* name : {"q", "k", "v"}) {
        const TensorView slice = buffer.view().select(2, which++).transpose(1, 2);
        copy_elements(c.input(name), slice);
        c.get().inputs[name] = Tensor(buffer.storage(), slice);
      }
    });
    list.add(name_of_view("pack"), half_dtypes, flags, [=](CaseBuilder& c) {
      const AttentionSpec pack{
          .hq = 2, .hkv = 2, .d = d, .dv = d, .q_lengths = {n.nq, 0, 9}, .k_lengths = {129, 4, 12}, .tail = 2};
      add_qkv(c, pack);
      add_gradients(c, pack, true);
      c.permute_storage("q", {1, 0, 2});
      for (const char* name : {"k", "v", "dout"}) c.embed_rows(name);
    });
  }
}

/// Lengths and starts are tensors like any other.
void add_list_views(FamilyList& list) {
  const AttentionSpec cache{.b = 3, .hq = 2, .nq = 5, .nk = 130, .d = 64, .dv = 64};
  const AttentionSpec pack{.hq = 2, .d = 64, .dv = 64, .q_lengths = {5, 0, 66, 3}, .k_lengths = {129, 2, 66, 1}};
  list.add("k_lengths_repeated", every_dtype, quick, [cache](CaseBuilder& c) {
    add_qkv(c, cache);
    add_k_lengths(c, cache, {127, 127, 127});
    add_gradients(c, cache);
    c.list_i32("k_lengths", {127, -1, -1});
    c.repeat_first("k_lengths", 0);
  });
  list.add("k_lengths_reversed", every_dtype, quick, [cache](CaseBuilder& c) {
    add_qkv(c, cache);
    add_k_lengths(c, cache, {1, 130, 65});
    add_gradients(c, cache);
    c.reverse_storage("k_lengths", 0);
  });
  list.add("k_lengths_apart", every_dtype, quick, [cache](CaseBuilder& c) {
    add_qkv(c, cache);
    add_k_lengths(c, cache, {129, 0, 64});
    add_gradients(c, cache);
    c.space_out("k_lengths", 3);
  });
  list.add("cu_seqlens_apart", every_dtype, quick, [pack](CaseBuilder& c) {
    add_qkv(c, pack);
    add_gradients(c, pack);
    for (const char* name : {"cu_seqlens_q", "cu_seqlens_k"}) c.space_out(name, 2);
  });
  list.add("cu_seqlens_reversed", every_dtype, quick, [pack](CaseBuilder& c) {
    add_qkv(c, pack);
    add_gradients(c, pack);
    for (const char* name : {"cu_seqlens_q", "cu_seqlens_k"}) c.reverse_storage(name, 0);
  });
}

void add_logits(FamilyList& list) {
  struct Scale {
    const char* name;
    double value;
  };
  for (const std::int64_t d : {64, 128}) {
    const std::string head = "_d" + std::to_string(d);
    const unsigned flags = d == 64 ? quick : slow;
    const AttentionSpec spec{.hq = 2, .nq = 66, .nk = 130, .d = d, .dv = d};
    for (const Scale scale : {Scale{"half", 0.5}, {"minus", -0.7}, {"zero", 0}, {"large", 40}})
      list.add("scale_" + std::string(scale.name) + head, half_dtypes, scale.value == 40 ? flags : slow,
               [=](CaseBuilder& c) {
                 add_qkv(c, spec);
                 c.set("scale", scale.value);
                 add_gradients(c, spec, true);
               });
    list.add("large_logits" + head, half_dtypes, flags, [=](CaseBuilder& c) {
      add_qkv(c, spec, 5);
      add_gradients(c, spec, true);
    });
    // Weights from 1 down to nothing, past the smallest normal and subnormal numbers of float32.
    list.add("fading_weights" + head, half_dtypes, flags, [=](CaseBuilder& c) {
      const AttentionSpec fading{.hq = 1, .nq = 3, .nk = 200, .d = d, .dv = d, .mask = "full"};
      add_qkv(c, fading);
      c.constant("q", fading.q_shape(1, d), c.dtype(), 1);
      c.fill("k", fading.k_shape(1, d), c.dtype(),
             [&](std::int64_t n) { return -0.55 * static_cast<double>(n / d) / static_cast<double>(d); });
      c.set("scale", 1.0);
      c.normal("dout", fading.q_shape(1, d), 0.05);
    });
    // All logits of a row alike and large: what is lost in each tile adds up over the tiles.
    for (const double logit : {45.0, 180.0})
      for (const bool packed : {false, true})
        list.add(
            "long_rows_" + std::to_string(static_cast<int>(logit)) + (packed ? "_pack" : "") + head, half_dtypes,
            logit > 100 && packed ? flags : slow, [=](CaseBuilder& c) {
              AttentionSpec rows{.hq = 1, .nq = 3, .nk = 4096, .d = d, .dv = d, .mask = "full"};
              if (packed) rows.q_lengths = {3}, rows.k_lengths = {4096};
              add_qkv(c, rows);
              const RandomValues q = c.random("q"), k = c.random("k");
              const double side = std::sqrt(logit / static_cast<double>(d));
              c.fill("q", rows.q_shape(1, d), c.dtype(), [&](std::int64_t n) { return side * q.uniform(n, 1, 1.02); });
              c.fill("k", rows.k_shape(1, d), c.dtype(), [&](std::int64_t n) { return side * k.uniform(n, 0.98, 1); });
              c.set("scale", 1.0);
              add_gradients(c, rows, true);
            });
    // Row 0 sees one key, with a logit of 144 d.
    list.add("one_key_large_logit" + head, half_dtypes, flags, [=](CaseBuilder& c) {
      const AttentionSpec square{.hq = 1, .nq = 130, .nk = 130, .d = d, .dv = d};
      add_qkv(c, square);
      for (const char* name : {"q", "k"})
        for (std::int64_t t = 0; t < d; ++t) c.overwrite(name, t, 12);
      c.set("scale", 1.0);
      add_gradients(c, square, true);
    });
  }
}

}  // namespace

void add_attention_tiles(FamilyList& list) {
  list.begin("attention/dense_tiles", Operation::attention,
             "Full and causal with heads of 64 and 128, for which backends have kernels of their own: rows and keys "
             "around multiples of 64, 128 and 192, caches, packs, views, scales and large logits.");
  add_sizes(list);
  add_many_heads(list);
  add_lengths(list);
  add_packs(list);
  add_views(list);
  add_list_views(list);
  add_logits(list);
}

}  // namespace dsalt::verification
