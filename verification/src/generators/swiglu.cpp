// Cases of `swiglu`: y = silu(gate) * up.
#include "generators/family_list.hpp"

namespace dsalt::verification {

void add_swiglu(FamilyList& list) {
  const auto gated = [](CaseBuilder& c, const Shape& shape, double scale, bool gradient = true) {
    c.normal("gate", shape, scale);
    c.normal("up", shape);
    if (gradient) c.normal("dy", shape);
  };
  list.begin("swiglu/shapes", Operation::swiglu, "Ranks 0 to 4, odd sizes, nothing at all.");
  struct Named {
    const char* name;
    Shape shape;
  };
  for (const Named& n : {Named{"scalar", {}},
                         {"vector", {37}},
                         {"matrix", {9, 65}},
                         {"rank_4", {2, 3, 4, 5}},
                         {"nothing", {3, 0}},
                         {"long", {2, 4099}}}) {
    list.add(n.name, every_dtype, element_count(n.shape) < 1000 ? golden : quick,
             [shape = n.shape, gated](CaseBuilder& c) { gated(c, shape, 1); });
    list.add(std::string(n.name) + "_forward", every_dtype, quick,
             [shape = n.shape, gated](CaseBuilder& c) { gated(c, shape, 1, false); });
  }
  list.begin("swiglu/extremes", Operation::swiglu,
             "Gates where the sigmoid saturates, its exponential overflows, or everything vanishes.");
  for (const double scale : {20.0, 1000.0, 1e-6})
    list.add(scale == 20     ? "large"
             : scale == 1000 ? "overflowing"
                             : "small",
             every_dtype, golden, [scale, gated](CaseBuilder& c) {
               gated(c, {5, 33}, scale);
             });
  list.add("edges", every_dtype, golden, [](CaseBuilder& c) {
    constexpr double gates[] = {0, -0.0, 1e-30, -1e-30, 88, -88, 89, -89, 104, -104, 745, -745, 6e4, -6e4, 17, -17};
    c.fill("gate", {16}, c.dtype(), [&](std::int64_t index) { return gates[index]; });
    c.normal("up", {16});
    c.normal("dy", {16});
  });
  list.begin("swiglu/strided", Operation::swiglu, "Gate and up as the two halves of one buffer.");
  list.add("halves", every_dtype, quick, [gated](CaseBuilder& c) {
    gated(c, {7, 24}, 1);
    const Tensor buffer = Tensor::empty({7, 48}, c.dtype());
    for (const char* name : {"gate", "up"}) {
      const TensorView half = buffer.view().narrow(1, name == std::string_view("gate") ? 0 : 24, 24);
      copy_elements(c.input(name), half);
      c.get().inputs[name] = Tensor(buffer.storage(), half);
    }
    c.permute_storage("dy", {1, 0});
  });
}

}  // namespace dsalt::verification
