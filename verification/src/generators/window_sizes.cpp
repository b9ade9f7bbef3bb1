// Cases of `window_sizes`: w = n_min + sigma(<x, a> + c)(n_max - n_min).
#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

struct Sizes {
  Shape tokens;  // [B,N] or [R]
  std::int64_t d, heads;
  bool wide_weights = false;  // weight and bias in the statistics dtype
};

void predictor(CaseBuilder& c, const Sizes& n, double n_min, double n_max, double scale, bool gradient) {
  Shape x = n.tokens;
  x.push_back(n.d);
  c.set("n_min", n_min);
  c.set("n_max", n_max);
  c.normal("x", x, scale);
  if (n.wide_weights) {
    c.normal_statistics("weight", {n.heads, n.d}, 0.3);
    c.normal_statistics("bias", {n.heads}, 0.5);
  } else {
    c.normal("weight", {n.heads, n.d}, 0.3);
    c.normal("bias", {n.heads}, 0.5);
  }
  if (!gradient) return;
  c.normal_statistics("dwindow",
                      n.tokens.size() == 1 ? Shape{n.tokens[0], n.heads} : Shape{n.tokens[0], n.heads, n.tokens[1]});
}

}  // namespace

void add_window_sizes(FamilyList& list) {
  list.begin("window_sizes/shapes", Operation::window_sizes,
             "Padded and packed tokens, one or many heads, odd widths, weights in either dtype, no tokens.");
  struct Named {
    const char* name;
    Sizes sizes;
  };
  for (const Named& n : {Named{"padded", {{2, 19}, 24, 4}},
                         {"packed", {{31}, 16, 3}},
                         {"one_head", {{1, 7}, 33, 1}},
                         {"wide", {{1, 5}, 515, 2}},
                         {"one_feature", {{3, 4}, 1, 2}},
                         {"no_tokens", {{2, 0}, 8, 2}},
                         {"no_batch", {{0, 3}, 8, 2}},
                         {"wide_weights", {{2, 9}, 16, 4, true}}}) {
    list.add(n.name, every_dtype, golden, [sizes = n.sizes](CaseBuilder& c) { predictor(c, sizes, 8, 96, 1, true); });
    list.add(std::string(n.name) + "_forward", every_dtype, quick,
             [sizes = n.sizes](CaseBuilder& c) { predictor(c, sizes, 8, 96, 1, false); });
  }
  list.begin("window_sizes/ranges", Operation::window_sizes,
             "Equal bounds, huge bounds, saturated sigmoids, floored windows without gradient.");
  const Sizes usual{{2, 13}, 16, 3};
  list.add("equal_bounds", every_dtype, golden, [usual](CaseBuilder& c) { predictor(c, usual, 5, 5, 1, true); });
  list.add("smallest", every_dtype, golden, [usual](CaseBuilder& c) { predictor(c, usual, 1, 1.5, 1, true); });
  list.add("huge", every_dtype, golden, [usual](CaseBuilder& c) { predictor(c, usual, 1, 1e7, 1, true); });
  list.add("saturated", every_dtype, golden, [usual](CaseBuilder& c) { predictor(c, usual, 4, 64, 100, true); });
  list.add("at_start", every_dtype, golden, [usual](CaseBuilder& c) {  // a = c = 0: the middle of the range
    predictor(c, usual, 4, 64, 1, true);
    c.constant("weight", {3, 16}, c.dtype(), 0);
    c.constant("bias", {3}, c.dtype(), 0);
  });
  list.add("floor", every_dtype, golden, [usual](CaseBuilder& c) {
    predictor(c, usual, 4, 64, 1, true);
    c.set("floor", true);
  });
  list.add("floor_whole", every_dtype, golden, [usual](CaseBuilder& c) {  // exactly on a whole number
    predictor(c, usual, 4, 64, 1, true);
    c.constant("weight", {3, 16}, c.dtype(), 0);
    c.constant("bias", {3}, c.dtype(), 0);
    c.set("floor", true);
  });
  list.begin("window_sizes/strided", Operation::window_sizes, "Tokens, weights and gradients in other layouts.");
  list.add("permuted", every_dtype, quick, [usual](CaseBuilder& c) {
    predictor(c, usual, 2, 40, 1, true);
    c.permute_storage("x", {1, 2, 0});
    c.permute_storage("weight", {1, 0});
    c.permute_storage("dwindow", {2, 0, 1});
    c.embed("bias");
  });
}

}  // namespace dsalt::verification
