// Attention: scales, extreme logits, long rows, gradients of lse, dropout.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

const AttentionSpec small{.hq = 2, .nq = 24, .nk = 24, .d = 16, .dv = 16};

void add_scales(FamilyList& list) {
  list.begin("attention/scale", Operation::attention,
             "An explicit scale is taken as it is, also 0, negative, tiny and large; absent means 1/sqrt(D).");
  struct Scale {
    const char* name;
    double value;
  };
  for (const Scale scale :
       {Scale{"zero", 0}, {"minus_one", -1}, {"one", 1}, {"large", 40}, {"tiny", 1e-20}, {"odd", 0.3173}})
    list.add(scale.name, every_dtype, golden, [scale](CaseBuilder& c) {
      add_qkv(c, small);
      c.set("scale", scale.value);
      add_gradients(c, small, true);
    });
  list.add("whole_number", every_dtype, quick, [](CaseBuilder& c) {  // an int64 attribute where a float64 is expected
    add_qkv(c, small);
    c.set("scale", -2);
    add_gradients(c, small);
  });
}

void add_extreme_logits(FamilyList& list) {
  list.begin("attention/extreme_logits", Operation::attention,
             "Logits far beyond the exponent's range, all equal, or tiny: softmax must shift before it exponentiates.");
  for (const double sign : {1.0, -1.0})
    list.add(sign > 0 ? "plus_60000" : "minus_60000", every_dtype, golden, [sign](CaseBuilder& c) {
      const AttentionSpec spec{.hq = 1, .nq = 12, .nk = 12, .d = 1, .dv = 8};
      add_qkv(c, spec);
      c.fill("q", {1, 1, 12, 1}, c.dtype(), [&](std::int64_t i) { return i % 3 == 2 ? 0 : sign * 60000; });
      c.fill("k", {1, 1, 12, 1}, c.dtype(), [](std::int64_t j) { return j % 2 == 0 ? 1 : 0; });
      c.set("scale", 1.0);
      add_gradients(c, spec, true);
    });
  for (const double factor : {5.0, 30.0})
    list.add("times_" + std::to_string(static_cast<int>(factor)), every_dtype, golden, [factor](CaseBuilder& c) {
      add_qkv(c, small, factor);
      add_gradients(c, small);
    });
  list.add("all_equal", every_dtype, golden, [](CaseBuilder& c) {
    add_qkv(c, small);
    c.constant("k", {1, 1, 24, 16}, c.dtype(), 0.75);
    add_gradients(c, small, true);
  });
  list.add("all_zero", every_dtype, quick, [](CaseBuilder& c) {
    add_qkv(c, small, 0);
    add_gradients(c, small);
  });
  list.add("tiny", every_dtype, golden, [](CaseBuilder& c) {
    add_qkv(c, small, c.dtype() == DType::f16 ? 0x1p-20 : 1e-30);
    add_gradients(c, small);
  });
  list.add("tiny_values", every_dtype, quick, [](CaseBuilder& c) {  // subnormal in float32 and float16
    add_qkv(c, small);
    const double unit = c.dtype() == DType::f16 ? 0x1p-22 : c.dtype() == DType::f64 ? 1e-310 : 1e-40;
    c.normal("v", {1, 1, 24, 16}, unit);
    add_gradients(c, small);
  });
}

void add_long_rows(FamilyList& list) {
  list.begin(
      "attention/long_rows", Operation::attention,
      "Rows of a thousand and more keys: sums must not stall in low precision, a constant value must come back.");
  const AttentionSpec spec{.hq = 1, .nq = 4, .nk = 1000, .d = 8, .dv = 4, .mask = "full"};
  for (const double value : {1.0, 3.140625})
    list.add(value == 1 ? "constant_one" : "constant_other", every_dtype, value == 1 ? golden : quick,
             [spec, value](CaseBuilder& c) {
               add_qkv(c, spec, value == 1 ? 0 : 1);
               c.constant("v", {1, 1, 1000, 4}, c.dtype(), value);
               add_gradients(c, spec, true);
             });
  list.add("random_4099", every_dtype, quick, [](CaseBuilder& c) {
    const AttentionSpec longer{.hq = 2, .nq = 3, .nk = 4099, .d = 16, .dv = 16};
    add_qkv(c, longer);
    add_gradients(c, longer);
  });
  list.add("square_1000", every_dtype, slow, [](CaseBuilder& c) {
    const AttentionSpec square{.hq = 2, .nq = 1000, .nk = 1000, .d = 64, .dv = 64};
    add_qkv(c, square);
    add_gradients(c, square);
  });
}

void add_lse_gradient(FamilyList& list) {
  list.begin("attention/lse_gradient", Operation::attention,
             "A gradient arrives at lse beside the one at out, or alone.");
  list.add("both", every_dtype, golden, [](CaseBuilder& c) {
    add_qkv(c, small);
    add_gradients(c, small, true);
  });
  list.add("alone", every_dtype, golden, [](CaseBuilder& c) {
    add_qkv(c, small);
    add_gradients(c, small, true);
    c.constant("dout", small.q_shape(2, 16), c.dtype(), 0);
  });
  list.add("forward_only", every_dtype, golden, [](CaseBuilder& c) { add_qkv(c, small); });
}

void add_dropout_family(FamilyList& list) {
  list.begin("attention/dropout", Operation::attention,
             "Counter-based dropout: nothing, some or everything dropped, same bits in both passes, 64-bit seeds.");
  struct Setting {
    const char* name;
    double p;
    std::uint64_t seed;
    std::int64_t offset;
  };
  for (const Setting s : {Setting{"none", 0, 1, 0},
                          {"third", 0.3, 0x9e3779b97f4a7c15u, 7},
                          {"half", 0.5, 0xffffffffffffffffu, 0xffffffff},
                          {"nearly_all", 0.999, 42, 1},
                          {"all", 1, 3, 2}})
    list.add(s.name, every_dtype, golden, [s](CaseBuilder& c) {
      const AttentionSpec spec{.b = 2, .hq = 3, .hkv = 1, .nq = 17, .nk = 22, .d = 8, .dv = 8};
      add_qkv(c, spec);
      add_dropout(c, s.p, s.seed, s.offset);
      add_gradients(c, spec, true);
    });
  list.add("packed_third", every_dtype, golden, [](CaseBuilder& c) {  // b counts sequences, i and j are local
    const AttentionSpec spec{.hq = 2, .d = 8, .dv = 8, .mask = "full", .q_lengths = {5, 0, 9}, .k_lengths = {6, 3, 9}};
    add_qkv(c, spec);
    add_dropout(c, 0.3, 77, 5);
    add_gradients(c, spec);
  });
  list.add("sparse_third", every_dtype, golden, [](CaseBuilder& c) {
    const AttentionSpec spec{.hq = 2, .nq = 30, .nk = 30, .d = 8, .dv = 8, .mask = "sparse"};
    add_qkv(c, spec);
    add_window(c, spec, WindowKind::uniform, 2);
    add_landmarks(c, spec, {.k = 4, .weights = true});
    add_soft_edge(c, 2, 1);
    add_dropout(c, 0.3, 123456789, 0);
    add_gradients(c, spec, true);
  });
  list.add("identity_values", every_dtype, quick, [](CaseBuilder& c) {  // out shows the kept weights themselves
    const AttentionSpec spec{.hq = 1, .nq = 64, .nk = 64, .d = 8, .dv = 64, .mask = "full"};
    add_qkv(c, spec, 0);
    c.fill("v", {1, 1, 64, 64}, c.dtype(), [](std::int64_t index) { return index / 64 == index % 64 ? 1 : 0; });
    add_dropout(c, 0.5, 2024, 9);
    add_gradients(c, spec);
  });
}

}  // namespace

void add_attention_numeric(FamilyList& list) {
  add_scales(list);
  add_extreme_logits(list);
  add_long_rows(list);
  add_lse_gradient(list);
  add_dropout_family(list);
}

}  // namespace dsalt::verification
