// Cases of `rope`: half-split rotation by pos * base^(-2t/D) / rope_scale.
#include "generators/family_list.hpp"

namespace dsalt::verification {

void add_rope(FamilyList& list) {
  list.begin("rope/positions", Operation::rope,
             "First positions of zero, of a decode step, far out, per sequence, and restarting in packs.");
  const Shape usual = {2, 3, 19, 16};
  const auto rotate = [](CaseBuilder& c, const Shape& shape, bool gradient = true) {
    c.normal("x", shape);
    if (gradient) c.normal("dy", shape);
  };
  list.add("start", every_dtype, golden, [usual, rotate](CaseBuilder& c) { rotate(c, usual); });
  list.add("forward", every_dtype, golden, [usual, rotate](CaseBuilder& c) { rotate(c, usual, false); });
  for (const std::int64_t position : {1, 257, 15962, 1000003})
    list.add("position_" + std::to_string(position), every_dtype, golden, [position, rotate](CaseBuilder& c) {
      rotate(c, {1, 2, 3, 16});
      c.set("position", position);
    });
  list.add("per_sequence", every_dtype, golden, [rotate](CaseBuilder& c) {
    rotate(c, {4, 2, 5, 8});
    c.list_i32("positions", {0, 7, 100000, 3});
  });
  list.add("packed", every_dtype, golden, [rotate](CaseBuilder& c) {
    rotate(c, {17, 3, 8});
    c.list_i32("cu_seqlens", {0, 3, 3, 12, 17});
  });
  list.add("packed_positions", every_dtype, golden, [rotate](CaseBuilder& c) {
    rotate(c, {9, 2, 8});
    c.list_i32("cu_seqlens", {0, 2, 9});
    c.list_i32("positions", {40, 5});
  });
  list.add("packed_tail", every_dtype, golden, [rotate](CaseBuilder& c) {
    rotate(c, {8, 2, 8});
    c.list_i32("cu_seqlens", {0, 4, 6});
    for (const char* name : {"x", "dy"})
      for (std::int64_t index = 6 * 16; index < 8 * 16; ++index) c.overwrite(name, index, not_a_number);
  });
  list.add("no_tokens", every_dtype, golden, [rotate](CaseBuilder& c) { rotate(c, {2, 3, 0, 8}); });
  list.add("no_sequences", every_dtype, golden, [rotate](CaseBuilder& c) {
    rotate(c, {3, 2, 8});
    c.list_i32("cu_seqlens", {0});
  });

  list.begin("rope/parameters", Operation::rope, "Head sizes 2 to 320, other bases and scales.");
  for (const std::int64_t d : {2, 6, 64, 128, 320})
    list.add("head_size_" + std::to_string(d), every_dtype, d < 200 ? golden : quick, [d, rotate](CaseBuilder& c) {
      rotate(c, {1, 2, 9, d});
    });
  list.add("base_500000", every_dtype, golden, [usual, rotate](CaseBuilder& c) {
    rotate(c, usual);
    c.set("base", 500000.0);
  });
  list.add("base_1", every_dtype, golden, [usual, rotate](CaseBuilder& c) {
    rotate(c, usual);
    c.set("base", 1.0);
  });
  list.add("scale_4", every_dtype, golden, [usual, rotate](CaseBuilder& c) {
    rotate(c, usual);
    c.set("rope_scale", 4.0);
    c.set("position", 1000);
  });
  list.begin("rope/strided", Operation::rope, "Views of token-major and feature-major buffers.");
  list.add("permuted", every_dtype, quick, [usual, rotate](CaseBuilder& c) {
    rotate(c, usual);
    c.permute_storage("x", {0, 2, 1, 3});
    c.permute_storage("dy", {3, 0, 1, 2});
  });
  // More heads than a block of a GPU takes, which lie in several sequences.
  list.add("token_major", every_dtype, quick, [rotate](CaseBuilder& c) {
    rotate(c, {5, 9, 11, 64});
    for (const char* name : {"x", "dy"}) c.permute_storage(name, {0, 2, 1, 3});
  });
}

}  // namespace dsalt::verification
