// Numbers at the edge: each check either compares with the double definition or demands exact bits, where the contract
// makes the result exact (a constant row, a subnormal value, a window of one token, padding that is never read).
#include <cmath>

#include "condition/units.hpp"
#include "internal/elements.hpp"
#include "suites/suite_cases.hpp"

namespace dsalt::verification {
namespace {

class StabilityChecks {
 public:
  /// A case that is compared with the definition.
  void compare(const std::string& name, Operation op, std::initializer_list<DType> dtypes, const CaseMaker& maker) {
    for (const DType dtype : dtypes)
      list.push_back({in_dtype(name, dtype), true, [=](Context& context, Verdict& verdict) {
                        const Case c = make_case(name, op, dtype, maker);
                        verdict.compare_with_definition(c, evaluate(context.backend(), c));
                      }});
  }
  void add(const std::string& name, std::initializer_list<DType> dtypes,
           const std::function<void(const std::string&, DType, Context&, Verdict&)>& run) {
    for (const DType dtype : dtypes)
      list.push_back({in_dtype(name, dtype), true,
                      [=](Context& context, Verdict& verdict) { run(name, dtype, context, verdict); }});
  }
  std::vector<Check> list;
};

/// Largest finite power of two whose square, summed a few hundred times, the accumulator still holds.
double large_for(DType dtype) { return dtype == DType::f16 ? 0x1p14 : dtype == DType::f64 ? 0x1p300 : 0x1p58; }
double small_for(DType dtype) { return dtype == DType::f16 ? 0x1p-20 : dtype == DType::f64 ? 0x1p-300 : 0x1p-58; }

void add_logits(StabilityChecks& checks) {
  using enum Operation;
  const AttentionSpec spec{.hq = 2, .nq = 33, .nk = 70, .d = 16, .dv = 8};
  for (const double factor : {4.0, 20.0})
    checks.compare("attention/large_logits_" + std::to_string(static_cast<int>(factor)), attention, every_dtype,
                   [=](CaseBuilder& c) {
                     add_qkv(c, spec, factor);
                     add_gradients(c, spec, true);
                   });
  checks.compare("attention/tiny_logits", attention, every_dtype, [=](CaseBuilder& c) {
    add_qkv(c, spec, c.dtype() == DType::f16 ? 0x1p-18 : 1e-25);
    add_gradients(c, spec, true);
  });
  checks.compare("attention/all_equal", attention, every_dtype, [=](CaseBuilder& c) {
    add_qkv(c, spec);
    c.constant("q", spec.q_shape(2, 16), c.dtype(), 0);
    add_gradients(c, spec, true);
  });
  checks.compare("attention/very_negative", attention, every_dtype, [](CaseBuilder& c) {
    c.set("mask", "causal");
    c.set("scale", 1.0);
    c.fill("q", {1, 1, 2, 1}, c.dtype(), [](std::int64_t i) { return i == 0 ? -60000 : 0; });
    c.fill("k", {1, 1, 2, 1}, c.dtype(), [](std::int64_t j) { return j == 0 ? 1 : 0; });
    c.fill("v", {1, 1, 2, 1}, c.dtype(), [](std::int64_t j) { return j == 0 ? 1 : 100; });
  });
  checks.compare("attention/one_dominant_key", attention, every_dtype, [](CaseBuilder& c) {
    const AttentionSpec one{.hq = 1, .nq = 5, .nk = 40, .d = 8, .dv = 4, .mask = "full"};
    add_qkv(c, one, 0.1);
    c.constant("q", one.q_shape(1, 8), c.dtype(), 1);
    for (std::int64_t t = 0; t < 8; ++t) c.overwrite("k", 17 * 8 + t, 40);
    add_gradients(c, one, true);
  });
  checks.compare("attention/steep_soft_edge", attention, every_dtype, [](CaseBuilder& c) {
    const AttentionSpec sparse{.hq = 2, .nq = 40, .nk = 40, .d = 8, .dv = 8, .mask = "sparse"};
    add_qkv(c, sparse);
    c.constant("window", sparse.row_shape(2), c.statistics(), 20.5);
    add_soft_edge(c, 16, 0.25);
    add_gradients(c, sparse, true);
  });
}

void add_long_rows(StabilityChecks& checks) {
  for (const double value : {1.0, 0.1, -7.3, 1000.0})
    checks.add("attention/constant_row_" + std::to_string(value).substr(0, 4), every_dtype,
               [value](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
                 const AttentionSpec spec{.hq = 2, .nq = 3, .nk = 1000, .d = 16, .dv = 5, .mask = "full"};
                 const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                   add_qkv(builder, spec);
                   builder.constant("v", spec.k_shape(1, 5), dtype, value);
                 });
                 const Tensors actual = evaluate(context.backend(), c);
                 const double constant = internal::load_double(c.inputs.at("v"), 0);
                 const double ulp = std::ldexp(2 * unit_roundoff(dtype), std::ilogb(constant));
                 const TensorView out = actual.at("out");
                 internal::for_each_element(
                     [&](std::int64_t at) {
                       const double got = internal::load_double(out, at);
                       // 16-bit results are rounded once from an accumulator that is far finer: at most one place off.
                       // In the accumulator's own type the thousand additions themselves round.
                       const double allowed = statistics_dtype(dtype) == dtype ? 32 * ulp : ulp;
                       verdict.require(
                           std::fabs(got - constant) <= allowed,
                           "a row of constant values " + std::to_string(constant) + " gives " + std::to_string(got));
                     },
                     out);
                 verdict.compare_with_definition(c, actual);
               });
  checks.compare("attention/long_random_row", Operation::attention, every_dtype, [](CaseBuilder& c) {
    const AttentionSpec spec{.hq = 1, .nq = 2, .nk = 5000, .d = 8, .dv = 8};
    add_qkv(c, spec);
    add_gradients(c, spec, true);
  });
}

/// Evaluates the case as it is and after `poison` has overwritten what is never read: no bit may differ.
void same_after(const std::function<void(Case&)>& poison, const Case& c, Context& context, Verdict& verdict) {
  const Tensors clean = evaluate(context.backend(), c);
  Case poisoned = deep_copy(c);
  poison(poisoned);
  verdict.equal_bits("poisoned", evaluate(context.backend(), poisoned), clean);
  verdict.compare_with_definition(c, clean);
}

void add_poison(StabilityChecks& checks) {
  checks.add("attention/keys_past_k_lengths", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const AttentionSpec spec{.b = 3, .hq = 4, .hkv = 2, .nq = 7, .nk = 70, .d = 8, .dv = 8, .mask = "full"};
               const std::vector<std::int64_t> lengths = {70, 33, 0};
               const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                 add_qkv(builder, spec);
                 builder.list_i32("k_lengths", lengths);
                 add_gradients(builder, spec, true);
               });
               for (const double value : {not_a_number, infinity})
                 same_after(
                     [&](Case& poisoned) {
                       for (const char* input : {"k", "v"})
                         for (std::size_t b = 0; b < lengths.size(); ++b)
                           poison_rows(poisoned.inputs.at(input).view().select(0, static_cast<std::int64_t>(b)), 1,
                                       lengths[b], value);
                     },
                     c, context, verdict);
             });
  checks.add("attention/outside_of_pages", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const AttentionSpec spec{.b = 3, .hq = 4, .hkv = 2, .nq = 7, .nk = 70, .d = 8, .dv = 8, .mask = "full"};
               const std::vector<std::int64_t> lengths = {70, 33, 0};
               const auto paged = [&](bool clean) {
                 return make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                   add_qkv(builder, spec);
                   add_pages(builder, spec, lengths, {.page = 8, .shared = true, .clean = clean});
                 });
               };
               same_after([&](Case& poisoned) { poisoned = paged(false); }, paged(true), context, verdict);
             });
  checks.add("attention/rows_past_the_pack", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               AttentionSpec spec{.hq = 4,
                                  .hkv = 2,
                                  .d = 8,
                                  .dv = 8,
                                  .mask = "sparse",
                                  .q_lengths = {5, 0, 66, 1},
                                  .k_lengths = {9, 3, 66, 0}};
               spec.tail = 5;
               const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                 add_qkv(builder, spec);
                 add_window(builder, spec, WindowKind::uniform, 4);
                 add_landmarks(builder, spec, {.k = 3, .heads = 4, .chunk = 16, .weights = true, .messy = true});
                 add_soft_edge(builder, 2, 0.5);
                 add_gradients(builder, spec, true);
                 for (auto& [input, tensor] : builder.get().inputs) {  // the clean case has numbers there
                   const TensorView view = tensor;
                   if (input.starts_with("cu_") || input.starts_with("landmark")) continue;
                   const bool keys = input == "k" || input == "v";
                   poison_rows(view, 0, keys ? spec.used_k_rows() : spec.used_q_rows(), 1);
                 }
               });
               same_after(
                   [&](Case& poisoned) {
                     for (const char* input : {"q", "window", "dout", "dlse"})
                       poison_rows(poisoned.inputs.at(input), 0, spec.used_q_rows());
                     for (const char* input : {"k", "v"}) poison_rows(poisoned.inputs.at(input), 0, spec.used_k_rows());
                   },
                   c, context, verdict);
             });
  checks.add("attention/unused_slots", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const AttentionSpec spec{.hq = 2, .nq = 20, .nk = 20, .d = 8, .dv = 8, .mask = "sparse"};
               const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                 add_qkv(builder, spec);
                 add_window(builder, spec, WindowKind::constant, 1);
                 add_landmarks(builder, spec, {.k = 6, .heads = 2, .chunk = 8, .weights = true});
                 const TensorView lists = builder.input("landmarks");
                 for (std::int64_t n = 0; n < lists.size(); n += 2) lists.at<std::int32_t>(0)[n] = -1;
                 add_gradients(builder, spec, true);
               });
               same_after(
                   [&](Case& poisoned) {
                     auto* index = poisoned.inputs.at("landmarks").view().at<std::int32_t>(0);
                     const TensorView weight = poisoned.inputs.at("landmark_log_weight");
                     const std::int32_t outside[] = {20, -2, 0x7fffffff, -0x7fffffff - 1};
                     for (std::int64_t n = 0; n < weight.size(); n += 2) {
                       index[n] = outside[(n / 2) % 4];
                       internal::store_double(weight, n, not_a_number);
                     }
                   },
                   c, context, verdict);
             });
  checks.add("rope/rows_past_the_pack", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = make_case(name, Operation::rope, dtype, [&](CaseBuilder& builder) {
                 builder.normal("x", {12, 2, 8});
                 builder.normal("dy", {12, 2, 8});
                 builder.list_i32("cu_seqlens", {0, 4, 4, 9});
               });
               same_after(
                   [](Case& poisoned) {
                     for (const char* input : {"x", "dy"}) poison_rows(poisoned.inputs.at(input), 0, 9);
                   },
                   c, context, verdict);
             });
  checks.add("select_landmarks/rows_past_the_pack", wide_dtypes,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = make_case(name, Operation::select_landmarks, dtype, [&](CaseBuilder& builder) {
                 builder.set("policy", "causal");
                 builder.set("chunk", 4);
                 builder.set("k", 3);
                 builder.set("tau", 1.0);
                 const RandomValues x = builder.random("nx"), v = builder.random("nv");
                 builder.fill("nx", {20}, dtype, [&](std::int64_t n) { return 1 + x.uniform(n); });
                 builder.fill("nv", {20, 2}, dtype, [&](std::int64_t n) { return 1 + v.uniform(n); });
                 builder.normal("alpha_raw", {4});
                 builder.list_i32("cu_seqlens", {0, 11, 11, 17});
                 builder.normal("dlandmark_log_weight", {3, 4, 3, 3});
               });
               same_after(
                   [](Case& poisoned) {
                     for (const char* input : {"nx", "nv"}) poison_rows(poisoned.inputs.at(input), 0, 17, infinity);
                   },
                   c, context, verdict);
             });
}

void add_exact(StabilityChecks& checks) {
  // one key for each sequence, with a logit of about 144 d: its weight is 1 exactly
  for (const std::int64_t d : {64, 128})
    for (const bool packed : {false, true})
      checks.add("attention/one_key_large_logit_" + std::to_string(d) + (packed ? "_packed" : ""), every_dtype,
                 [=](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
                   AttentionSpec spec{.b = 3, .hq = 2, .hkv = 2, .nq = 66, .nk = 200, .d = d, .dv = d, .mask = "full"};
                   if (packed) spec.q_lengths = {66, 1, 129}, spec.k_lengths = {1, 1, 1};
                   const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                     add_qkv(builder, spec);
                     builder.constant("q", spec.q_shape(2, d), dtype, 12);
                     const RandomValues random = builder.random("k");
                     builder.fill("k", spec.k_shape(2, d), dtype,
                                  [&](std::int64_t n) { return 12 * random.uniform(n, 0.9, 1.1); });
                     builder.set("scale", 1.0);
                     if (!packed) add_k_lengths(builder, spec, {1, 1, 1});
                   });
                   const Tensors actual = evaluate(context.backend(), c);
                   const TensorView out = actual.at("out"), v = c.inputs.at("v");
                   for (std::int64_t b = 0, start = 0; b < 3; ++b) {
                     const std::int64_t rows = packed ? spec.q_lengths[static_cast<std::size_t>(b)] : spec.nq;
                     TensorView key = packed ? v.narrow(0, b, 1) : v.narrow(0, b, 1).narrow(2, 0, 1);
                     key.shape[packed ? 0 : 2] = rows, key.strides[packed ? 0 : 2] = 0;  // the key for every row
                     verdict.equal_bits("out = v of sequence " + std::to_string(b),
                                        packed ? out.narrow(0, start, rows) : out.narrow(0, b, 1), key);
                     start += rows;
                   }
                 });
  checks.add("attention/window_of_one_token", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const AttentionSpec spec{.hq = 4, .hkv = 4, .nq = 130, .nk = 130, .d = 16, .dv = 16, .mask = "sparse"};
               const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
                 add_qkv(builder, spec, 3);
                 builder.constant("window", spec.row_shape(1), builder.statistics(), 0);
               });
               verdict.equal_bits("out = v", evaluate(context.backend(), c).at("out"), c.inputs.at("v"));
             });
  checks.add(
      "attention/subnormal_value", every_dtype,
      [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        const double tiny = dtype == DType::f64 ? 1e-310 : dtype == DType::f16 ? 0x1p-23 : 1e-40;
        const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
          const AttentionSpec spec{.hq = 1, .nq = 1, .nk = 1, .d = 8, .dv = 8};
          add_qkv(builder, spec);
          builder.fill("v", {1, 1, 1, 8}, dtype, [&](std::int64_t t) { return tiny * static_cast<double>(t + 1); });
        });
        const Tensors actual = evaluate(context.backend(), c);
        verdict.require(internal::load_double(c.inputs.at("v"), 0) != 0, "the value itself became 0");
        verdict.equal_bits("out = v", actual.at("out"), c.inputs.at("v"));
      });
  checks.add("merge/part_without_keys", every_dtype,
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               Case c = make_case(name, Operation::merge, dtype, [&](CaseBuilder& builder) {
                 builder.normal("out1", {2, 7, 5});
                 builder.normal_statistics("lse1", {2, 7}, 9);
                 builder.constant("out2", {2, 7, 5}, dtype, not_a_number);
                 builder.constant("lse2", {2, 7}, builder.statistics(), -infinity);
               });
               for (const char* order : {"second", "first"}) {
                 const Tensors actual = evaluate(context.backend(), c);
                 const bool second = std::string_view(order) == "second";
                 verdict.equal_bits(std::string(order) + " empty: out", actual.at("out"),
                                    c.inputs.at(second ? "out1" : "out2"));
                 verdict.equal_bits(std::string(order) + " empty: lse", actual.at("lse"),
                                    c.inputs.at(second ? "lse1" : "lse2"));
                 std::swap(c.inputs.at("out1"), c.inputs.at("out2"));
                 std::swap(c.inputs.at("lse1"), c.inputs.at("lse2"));
               }
             });
  checks.compare("merge/far_apart", Operation::merge, every_dtype, [](CaseBuilder& c) {
    c.normal("out1", {64, 5});
    c.normal("out2", {64, 5});
    c.fill("lse1", {64}, c.statistics(), [](std::int64_t n) { return static_cast<double>(n * n) - 1000; });
    c.fill("lse2", {64}, c.statistics(), [](std::int64_t n) { return 40.5 * static_cast<double>(n) - 900; });
  });
}

void add_selectors(StabilityChecks& checks) {
  using enum Operation;
  for (const double z : {200.0, -200.0})
    checks.compare(z > 0 ? "window_sizes/saturated_high" : "window_sizes/saturated_low", window_sizes, every_dtype,
                   [z](CaseBuilder& c) {
                     c.set("n_min", 1.0);
                     c.set("n_max", 512.0);
                     c.normal("x", {2, 9, 16});
                     c.normal("weight", {3, 16}, 0.1);
                     c.constant("bias", {3}, c.dtype(), z);
                     c.normal_statistics("dwindow", {2, 3, 9});
                   });
  for (const bool large : {true, false})
    checks.compare(large ? "energies/large" : "energies/small", energies, every_dtype, [large](CaseBuilder& c) {
      const double scale = large ? large_for(c.dtype()) / 4 : small_for(c.dtype()) * 4;
      c.normal("x", {2, 5, 48}, scale);
      c.normal("v", {2, 2, 5, 16}, scale);
      c.normal_statistics("dnx", {2, 5});
      c.normal_statistics("dnv", {2, 2, 5});
    });
  checks.compare("energies/zero_rows", energies, every_dtype, [](CaseBuilder& c) {
    c.normal("x", {1, 4, 8});
    c.constant("v", {1, 2, 4, 8}, c.dtype(), 0);
    for (std::int64_t t = 0; t < 8; ++t) c.overwrite("x", 8 + t, 0);
    c.normal_statistics("dnx", {1, 4});
    c.normal_statistics("dnv", {1, 2, 4});
  });
  const auto selection = [](const std::function<double(std::int64_t)>& x,
                            const std::function<double(std::int64_t)>& v) {
    return [x, v](CaseBuilder& c) {
      c.set("policy", "causal");
      c.set("chunk", 8);
      c.set("k", 4);
      c.set("tau", 0.5);
      c.fill("nx", {1, 40}, c.dtype(), x);
      c.fill("nv", {1, 2, 40}, c.dtype(), v);
      c.normal("alpha_raw", {2});
      c.normal("dlandmark_log_weight", {1, 2, 5, 4});
    };
  };
  checks.compare("select_landmarks/all_equal", select_landmarks, wide_dtypes,
                 selection([](std::int64_t) { return 5.0; }, [](std::int64_t) { return 3.25; }));
  checks.compare("select_landmarks/far_from_zero", select_landmarks, wide_dtypes,
                 selection([](std::int64_t n) { return 10000.0 + static_cast<double>(n % 11); },
                           [](std::int64_t n) { return 20000.0 + static_cast<double>((n * 7) % 13); }));
  checks.compare(
      "select_landmarks/nan_energies", select_landmarks, wide_dtypes,
      selection(
          [](std::int64_t n) { return n % 5 == 2 ? not_a_number : 1 + 0.1 * static_cast<double>((n * 13) % 17); },
          [](std::int64_t n) { return n % 7 == 3 ? not_a_number : 2 + 0.1 * static_cast<double>((n * 5) % 23); }));
  checks.compare("select_landmarks/one_outlier", select_landmarks, wide_dtypes,
                 selection([](std::int64_t n) { return n == 3 ? 1e6 : 1 + 0.001 * static_cast<double>((n * 13) % 37); },
                           [](std::int64_t n) { return 2 + 0.1 * static_cast<double>((n * 5) % 31); }));
}

void add_network(StabilityChecks& checks) {
  using enum Operation;
  for (const bool large : {true, false})
    checks.compare(large ? "rmsnorm/large" : "rmsnorm/small", rmsnorm, every_dtype, [large](CaseBuilder& c) {
      c.normal("x", {6, 96}, large ? large_for(c.dtype()) / 16 : small_for(c.dtype()) * 16);
      c.normal("gamma", {96});
      c.normal("dy", {6, 96});
    });
  checks.compare("rmsnorm/zero_rows", rmsnorm, every_dtype, [](CaseBuilder& c) {
    c.constant("x", {3, 16}, c.dtype(), 0);
    c.normal("gamma", {16});
    c.normal("dy", {3, 16});
  });
  checks.compare("swiglu/saturated", swiglu, every_dtype, [](CaseBuilder& c) {
    const double gates[] = {0, -0.0, 1e-30, 20, -20, 88, -88, 89, -89, 104, -104, 700, -700, 6e4, -6e4, 1};
    c.fill("gate", {4, 16}, c.dtype(), [&](std::int64_t n) { return gates[n % 16]; });
    c.normal("up", {4, 16});
    c.normal("dy", {4, 16});
  });
  for (const double factor : {100.0, 0.0})
    checks.compare(factor > 0 ? "cross_entropy/large_logits" : "cross_entropy/zero_logits", cross_entropy, every_dtype,
                   [factor](CaseBuilder& c) {
                     c.normal("hidden", {7, 16}, factor);
                     c.normal("weight", {33, 16});
                     c.fill_i32("labels", {7}, [](std::int64_t r) { return r == 2 ? -100 : (r * 9) % 33; });
                     c.set("label_smoothing", 0.1);
                     c.constant("dloss", {}, c.statistics(), 1);
                   });
  checks.compare("cross_entropy/all_ignored", cross_entropy, every_dtype, [](CaseBuilder& c) {
    c.normal("hidden", {3, 4});
    c.normal("weight", {5, 4});
    c.fill_i32("labels", {3}, [](std::int64_t) { return -100; });
    c.constant("dloss", {}, c.statistics(), 1);
  });
  checks.compare("rope/far_position", rope, every_dtype, [](CaseBuilder& c) {
    c.set("position", 1000003);
    c.normal("x", {1, 2, 5, 32});
    c.normal("dy", {1, 2, 5, 32});
  });
  checks.compare("adamw/from_nothing", adamw, every_dtype, [](CaseBuilder& c) {
    c.set("lr", 1e-3);
    c.set("beta1", 0.9);
    c.set("beta2", 0.95);
    c.set("eps", 1e-8);
    c.set("weight_decay", 0.1);
    c.set("step", 1);
    const double gradients[] = {0, 1, -1, 1e-4, -0x1p-14, 100, -30000, 3e-3};
    c.normal("param", {64});
    c.fill("grad", {64}, c.dtype(), [&](std::int64_t n) { return gradients[n % 8]; });
    c.constant("m", {64}, c.statistics(), 0);
    c.constant("v", {64}, c.statistics(), 0);
  });
}

}  // namespace

std::vector<Check> stability_checks() {
  StabilityChecks checks;
  add_logits(checks);
  add_long_rows(checks);
  add_poison(checks);
  add_exact(checks);
  add_selectors(checks);
  add_network(checks);
  return std::move(checks.list);
}

}  // namespace dsalt::verification
