// Cases of `rmsnorm`: y = gamma x / sqrt(mean(x^2) + eps).
#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

void norm(CaseBuilder& c, const Shape& shape, double scale, bool gradient = true) {
  c.normal("x", shape, scale);
  const RandomValues random = c.random("gamma");
  c.fill("gamma", {shape.back()}, c.dtype(), [&](std::int64_t index) { return 1 + 0.3 * random.normal(index); });
  if (gradient) c.normal("dy", shape);
}

}  // namespace

void add_rmsnorm(FamilyList& list) {
  list.begin("rmsnorm/shapes", Operation::rmsnorm,
             "Ranks 1 to 4, odd widths, a width of 1, no rows; forward alone and with gradients.");
  struct Named {
    const char* name;
    Shape shape;
  };
  for (const Named& n : {Named{"vector", {37}},
                         {"matrix", {9, 64}},
                         {"batch", {2, 7, 33}},
                         {"rank_4", {2, 3, 5, 8}},
                         {"width_1", {5, 1}},
                         {"wide", {3, 1031}},
                         {"no_rows", {0, 16}},
                         {"one_row", {1, 129}}}) {
    list.add(n.name, every_dtype, golden, [shape = n.shape](CaseBuilder& c) { norm(c, shape, 1); });
    list.add(std::string(n.name) + "_forward", every_dtype, quick,
             [shape = n.shape](CaseBuilder& c) { norm(c, shape, 1, false); });
  }
  // A GPU has a row in a few vectors of each thread, in many, and twice from memory, depending on the type.
  for (const std::int64_t width : {520, 4136, 16390})
    list.add("width_" + std::to_string(width), every_dtype, quick, [width](CaseBuilder& c) { norm(c, {3, width}, 1); });
  list.begin("rmsnorm/magnitudes", Operation::rmsnorm,
             "Tiny and huge rows, zero rows, where eps decides, and other values of eps.");
  const Shape usual = {6, 48};
  list.add("large", every_dtype, golden,
           [usual](CaseBuilder& c) { norm(c, usual, c.dtype() == DType::f16 ? 1e4 : 1e15); });
  const auto huge = [](DType dtype) { return dtype == DType::f16 ? 1.8e4 : dtype == DType::f64 ? 1e140 : 1e30; };
  list.add("huge", every_dtype, golden, [=](CaseBuilder& c) {  // squares overflow float32
    norm(c, usual, huge(c.dtype()));
  });
  list.add("huge_wide", every_dtype, quick, [=](CaseBuilder& c) { norm(c, {3, 4136}, huge(c.dtype())); });
  list.add("small", every_dtype, golden, [usual](CaseBuilder& c) { norm(c, usual, 1e-3); });
  list.add("tiny", every_dtype, golden,
           [usual](CaseBuilder& c) { norm(c, usual, c.dtype() == DType::f16 ? 0x1p-20 : 1e-25); });
  list.add("zero_rows", every_dtype, golden, [usual](CaseBuilder& c) {
    norm(c, usual, 1);
    for (std::int64_t index = 48; index < 3 * 48; ++index) c.overwrite("x", index, 0);
  });
  for (const double eps : {1e-5, 0.5})
    list.add(eps < 0.1 ? "eps_small" : "eps_large", every_dtype, golden, [usual, eps](CaseBuilder& c) {
      norm(c, usual, 1);
      c.set("eps", eps);
    });
  list.add("eps_zero", every_dtype, quick, [usual](CaseBuilder& c) {
    norm(c, usual, 1);
    c.set("eps", 0);
  });
  list.add("subnormal", every_dtype, quick, [usual](CaseBuilder& c) {  // of float32, where 1 / rms overflows
    norm(c, usual, c.dtype() == DType::f16 ? 0x1p-21 : c.dtype() == DType::f64 ? 1e-150 : 1e-39, false);
    c.set("eps", 0);
  });
  list.add("wide_gamma", every_dtype, golden, [usual](CaseBuilder& c) {  // gamma in the statistics dtype
    norm(c, usual, 1);
    c.normal_statistics("gamma", {48});
  });
  list.begin("rmsnorm/strided", Operation::rmsnorm, "Rows that are not contiguous, and a broadcast gradient.");
  list.add("permuted", every_dtype, quick, [](CaseBuilder& c) {
    norm(c, {3, 5, 16}, 1);
    c.permute_storage("x", {2, 0, 1});
    c.permute_storage("dy", {1, 0, 2});
    c.embed("gamma");
  });
}

}  // namespace dsalt::verification
