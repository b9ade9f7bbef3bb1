// Cases of `energies`: nx = ||x||, nv = ||v||.
#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

struct Sizes {
  Shape tokens;  // [B,N] or [R]
  std::int64_t d, heads, dv;
};

Shape value_shape(const Sizes& n, bool features) {
  Shape shape = n.tokens.size() == 1 ? Shape{n.tokens[0], n.heads} : Shape{n.tokens[0], n.heads, n.tokens[1]};
  if (features) shape.push_back(n.dv);
  return shape;
}

void norms(CaseBuilder& c, const Sizes& n, double scale, bool dnx, bool dnv) {
  Shape x = n.tokens;
  x.push_back(n.d);
  c.normal("x", x, scale);
  c.normal("v", value_shape(n, true), scale);
  if (dnx) c.normal_statistics("dnx", n.tokens);
  if (dnv) c.normal_statistics("dnv", value_shape(n, false));
}

}  // namespace

void add_energies(FamilyList& list) {
  list.begin("energies/shapes", Operation::energies,
             "Padded and packed tokens, widths of 1 to 600, with both, one or no gradient.");
  struct Named {
    const char* name;
    Sizes sizes;
  };
  for (const Named& n : {Named{"padded", {{2, 17}, 24, 3, 8}},
                         {"packed", {{29}, 16, 2, 16}},
                         {"narrow", {{2, 5}, 1, 1, 1}},
                         {"wide", {{1, 4}, 600, 2, 130}},
                         {"no_tokens", {{2, 0}, 8, 2, 8}},
                         {"no_batch", {{0, 4}, 8, 2, 8}}})
    list.add(n.name, every_dtype, golden, [sizes = n.sizes](CaseBuilder& c) { norms(c, sizes, 1, true, true); });
  const Sizes usual{{2, 11}, 16, 2, 8};
  list.add("forward", every_dtype, golden, [usual](CaseBuilder& c) { norms(c, usual, 1, false, false); });
  list.add("dnx_only", every_dtype, golden, [usual](CaseBuilder& c) { norms(c, usual, 1, true, false); });
  list.add("dnv_only", every_dtype, golden, [usual](CaseBuilder& c) { norms(c, usual, 1, false, true); });

  list.begin("energies/magnitudes", Operation::energies,
             "Zero vectors, whose norm has gradient 0, and vectors whose squares overflow or vanish.");
  list.add("zero_vectors", every_dtype, golden, [usual](CaseBuilder& c) {
    norms(c, usual, 1, true, true);
    for (std::int64_t index = 0; index < 3 * 16; ++index) c.overwrite("x", index, 0);
    for (std::int64_t index = 5 * 8; index < 9 * 8; ++index) c.overwrite("v", index, index % 2 == 0 ? 0.0 : -0.0);
  });
  list.add("large", every_dtype, golden,
           [usual](CaseBuilder& c) { norms(c, usual, c.dtype() == DType::f16 ? 1e4 : 1e18, true, true); });
  list.add("small", every_dtype, golden,
           [usual](CaseBuilder& c) { norms(c, usual, c.dtype() == DType::f16 ? 0x1p-18 : 1e-18, true, true); });
  list.add("overflowing_squares", every_dtype, golden, [usual](CaseBuilder& c) {
    norms(c, usual, c.dtype() == DType::f16 ? 2e4 : c.dtype() == DType::f64 ? 1e150 : 1e30, true, true);
  });
  list.add("vanishing_squares", every_dtype, golden, [usual](CaseBuilder& c) {
    norms(c, usual, c.dtype() == DType::f16 ? 0x1p-23 : c.dtype() == DType::f64 ? 1e-150 : 1e-30, true, true);
  });
  list.begin("energies/strided", Operation::energies,
             "Values as a view of a token-major buffer, tokens inside another.");
  list.add("permuted", every_dtype, quick, [usual](CaseBuilder& c) {
    norms(c, usual, 1, true, true);
    c.permute_storage("v", {0, 2, 1, 3});
    c.permute_storage("x", {2, 0, 1});
    c.embed("dnv");
  });
}

}  // namespace dsalt::verification
