// Cases of `adamw`: one step of the optimiser.
#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

struct Step {
  std::int64_t step = 1;
  double lr = 6e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

void optimiser(CaseBuilder& c, const Shape& shape, const Step& s, double gradient_scale = 1) {
  c.set("lr", s.lr);
  c.set("beta1", s.beta1);
  c.set("beta2", s.beta2);
  c.set("eps", s.eps);
  c.set("weight_decay", s.weight_decay);
  c.set("step", s.step);
  c.normal("param", shape);
  c.normal("grad", shape, gradient_scale);
  const double history = s.step > 1 ? gradient_scale : 0;  // m and v are 0 before the first step
  c.normal("m", shape, 0.3 * history);
  const RandomValues random = c.random("v");
  c.fill("v", shape, c.dtype(), [&](std::int64_t index) { return random.uniform(index) * history * history; });
}

}  // namespace

void add_adamw(FamilyList& list) {
  const Shape usual = {7, 13};
  list.begin("adamw/steps", Operation::adamw, "First, second, later and very late steps, with and without decay.");
  for (const std::int64_t step : {1, 2, 10, 1000, 1000000})
    for (const double decay : {0.0, 0.1})
      list.add("step_" + std::to_string(step) + (decay == 0 ? "" : "_decay"), every_dtype, golden,
               [usual, step, decay](CaseBuilder& c) { optimiser(c, usual, {.step = step, .weight_decay = decay}); });
  list.begin("adamw/settings", Operation::adamw, "Other rates and betas, zero and large gradients, other shapes.");
  list.add("zero_rate", every_dtype, golden, [usual](CaseBuilder& c) { optimiser(c, usual, {.lr = 0}); });
  list.add("large_rate", every_dtype, golden, [usual](CaseBuilder& c) { optimiser(c, usual, {.step = 5, .lr = 0.5}); });
  list.add("zero_betas", every_dtype, golden,
           [usual](CaseBuilder& c) { optimiser(c, usual, {.step = 3, .beta1 = 0, .beta2 = 0}); });
  list.add("zero_gradient", every_dtype, golden, [usual](CaseBuilder& c) {  // only decay moves the parameter
    optimiser(c, usual, {.lr = 0.1, .weight_decay = 0.1}, 0);
  });
  list.add("large_eps", every_dtype, golden, [usual](CaseBuilder& c) { optimiser(c, usual, {.step = 4, .eps = 0.1}); });
  list.add("large_gradient", every_dtype, golden,
           [usual](CaseBuilder& c) { optimiser(c, usual, {.step = 4}, c.dtype() == DType::f16 ? 100 : 1e6); });
  list.add("small_gradient", every_dtype, golden, [usual](CaseBuilder& c) { optimiser(c, usual, {.step = 4}, 1e-4); });
  list.add("scalar", every_dtype, golden, [](CaseBuilder& c) { optimiser(c, {}, {.step = 4}); });
  list.add("nothing", every_dtype, golden, [](CaseBuilder& c) { optimiser(c, {0, 3}, {}); });
  list.add("long", every_dtype, golden, [](CaseBuilder& c) { optimiser(c, {1031}, {.step = 20}); });
  list.begin("adamw/mixed", Operation::adamw,
             "float32 moments and master weights beside 16-bit parameters or gradients.");
  list.add("wide_moments", {DType::bf16, DType::f16}, golden, [usual](CaseBuilder& c) {
    optimiser(c, usual, {.step = 7});
    c.normal_statistics("m", usual, 0.3);
    c.constant("v", usual, DType::f32, 0.25);
  });
  list.add("master_weights", {DType::f32}, golden, [usual](CaseBuilder& c) {
    optimiser(c, usual, {.step = 7});
    const RandomValues random = c.random("grad");
    c.fill("grad", usual, DType::bf16, [&](std::int64_t index) { return random.normal(index); });
  });
  list.begin("adamw/strided", Operation::adamw, "Parameters and moments in different layouts.");
  list.add("permuted", every_dtype, quick, [](CaseBuilder& c) {
    optimiser(c, {4, 9}, {.step = 3});
    c.permute_storage("param", {1, 0});
    c.embed("grad");
    c.permute_storage("v", {1, 0});
  });
}

}  // namespace dsalt::verification
