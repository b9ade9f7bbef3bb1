// Attention: KV caches that lie in pages.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

bool is_sparse(const AttentionSpec& spec) { return std::string_view(spec.mask) == "sparse"; }

void add_small(FamilyList& list) {
  for (const char* mask : {"full", "causal", "sparse"})
    for (const std::int64_t nq : {1, 6})
      for (const bool shared : {false, true})
        list.add(
            std::string(shared ? "shared_" : "") + mask + "_" + std::to_string(nq), every_dtype, golden,
            [=](CaseBuilder& c) {
              const AttentionSpec spec{.b = 4, .hq = 4, .hkv = 2, .nq = nq, .nk = 19, .d = 8, .dv = 8, .mask = mask};
              add_qkv(c, spec);
              if (is_sparse(spec)) {
                add_window(c, spec, WindowKind::uniform, 4);
                add_landmarks(c, spec, {.k = 5, .heads = 1, .chunk = 8, .offset = 3, .weights = true, .messy = true});
              }
              add_pages(c, spec, {0, 1, 12, 19}, {.shared = shared});
            });
  for (const std::int64_t page : {1, 3, 64, 200})
    list.add("pages_of_" + std::to_string(page), every_dtype, quick, [page](CaseBuilder& c) {
      const AttentionSpec spec{.b = 3, .hq = 4, .hkv = 2, .nq = 9, .nk = 150, .d = 24, .dv = 16};
      add_qkv(c, spec);
      add_pages(c, spec, {150, 64, 65}, {.page = page, .shared = true});
    });
  list.add("bidirectional", every_dtype, golden, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 3, .nq = 7, .nk = 25, .d = 8, .dv = 8, .mask = "sparse"};
    add_qkv(c, spec);
    c.set("bidirectional", true);
    add_window(c, spec, WindowKind::uniform, 2);
    add_soft_edge(c, 2, 1);
    add_pages(c, spec, {3, 7, 20}, {});
  });
  list.add("dropout", every_dtype, quick, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 2, .hq = 3, .nq = 20, .nk = 70, .d = 16, .dv = 16};
    add_qkv(c, spec);
    add_dropout(c, 0.4, 12345, 7);
    add_pages(c, spec, {70, 41}, {.page = 16});
  });
  list.add("no_pages", every_dtype, golden, [](CaseBuilder& c) {  // P = M = 0
    const AttentionSpec spec{.b = 2, .nq = 3, .nk = 0, .d = 8, .dv = 8, .mask = "full"};
    add_qkv(c, spec);
    c.normal("k", {0, 1, 4, 8});
    c.normal("v", {0, 1, 4, 8});
    c.list_i32("k_lengths", {0, 0});
    c.fill_i32("page_table", {2, 0}, [](std::int64_t) { return 0; });
  });
}

/// Head sizes and lengths for which backends keep kernels of their own.
void add_large(FamilyList& list) {
  for (const char* mask : {"full", "causal", "sparse"})
    for (const std::int64_t d : {64, 128})
      for (const std::int64_t nq : {1, 66})
        list.add(std::string(mask) + "_" + std::to_string(nq) + "_d" + std::to_string(d), every_dtype,
                 d == 64 ? quick : slow, [=](CaseBuilder& c) {
                   const AttentionSpec spec{
                       .b = 3, .hq = 4, .hkv = 2, .nq = nq, .nk = 400, .d = d, .dv = d, .mask = mask};
                   add_qkv(c, spec);
                   if (is_sparse(spec)) {
                     add_window(c, spec, WindowKind::uniform, 4);
                     add_landmarks(c, spec, {.k = 9, .heads = 4, .chunk = 64, .weights = true, .messy = true});
                     add_soft_edge(c, 2, 0.7);
                   }
                   add_pages(c, spec, {400, 129, 64}, {.page = 16, .shared = true});
                 });
}

/// Most keys are out of reach of every window, and some of them landmarks.
void add_far_landmarks(FamilyList& list) {
  for (const std::int64_t nq : {1, 66})
    for (const std::int64_t d : {16, 64, 128})
      for (const std::int64_t heads : {1, 4})
        list.add("far_landmarks_" + std::to_string(nq) + "_" + std::to_string(heads) + "_d" + std::to_string(d),
                 every_dtype, d == 128 ? slow : quick, [=](CaseBuilder& c) {
                   const AttentionSpec spec{
                       .b = 3, .hq = 4, .hkv = 2, .nq = nq, .nk = 700, .d = d, .dv = d, .mask = "sparse"};
                   add_qkv(c, spec);
                   add_window(c, spec, WindowKind::constant, heads);
                   add_landmarks(c, spec, {.k = 11, .heads = heads, .chunk = 64, .weights = true});
                   add_pages(c, spec, {700, 391, 70}, {.page = 16, .shared = true});
                 });
}

void add_layouts(FamilyList& list) {
  struct Layout {
    const char* name;
    void (*apply)(CaseBuilder& c);
  };
  const Layout layouts[] = {{"tokens_outermost",  // [P,page,Hkv,D] buffers
                             [](CaseBuilder& c) {
                               for (const char* pool : {"k", "v"}) c.permute_storage(pool, {0, 2, 1, 3});
                             }},
                            {"features_outermost",
                             [](CaseBuilder& c) {
                               for (const char* pool : {"k", "v"}) c.permute_storage(pool, {3, 2, 1, 0});
                               c.permute_storage("page_table", {1, 0});
                             }},
                            {"slices",
                             [](CaseBuilder& c) {
                               for (const char* name : {"k", "v", "page_table"}) c.embed(name);
                             }},
                            {"reversed",
                             [](CaseBuilder& c) {
                               for (const char* pool : {"k", "v"})
                                 for (const int dim : {0, 2}) c.reverse_storage(pool, dim);
                               c.reverse_storage("page_table", 1);
                               c.reverse_storage("k_lengths", 0);
                             }},
                            {"apart", [](CaseBuilder& c) {
                               c.space_out("page_table", 3);
                               c.space_out("k_lengths", 2);
                               c.unalign("k");
                             }}};
  for (const Layout& layout : layouts)
    for (const std::int64_t nq : {1, 20})
      list.add(std::string(layout.name) + "_" + std::to_string(nq), every_dtype, quick, [=](CaseBuilder& c) {
        const AttentionSpec spec{.b = 3, .hq = 4, .hkv = 2, .nq = nq, .nk = 90, .d = 64, .dv = 64};
        add_qkv(c, spec);
        add_pages(c, spec, {90, 31, 64}, {.page = 8});
        layout.apply(c);
      });
}

}  // namespace

void add_attention_paged(FamilyList& list) {
  list.begin(
      "attention/paged", Operation::attention,
      "KV caches in pages: in no order, shared by sequences, of one row, of more rows than a sequence has; NaN in "
      "pages and slots that no sequence has, no page in entries of the table that none needs.");
  add_small(list);
  add_large(list);
  add_far_landmarks(list);
  add_layouts(list);
}

}  // namespace dsalt::verification
