// Selectors and network pieces computed in two ways that the definition makes equal.
#include <cmath>

#include "condition/units.hpp"
#include "internal/elements.hpp"
#include "suites/identities.hpp"

namespace dsalt::verification {
namespace {

/// The named inputs multiplied by a power of two: exact in every dtype.
Case times(const Case& c, const std::vector<std::string>& inputs, double power_of_two) {
  Case scaled = deep_copy(c);
  for (const std::string& name : inputs) {
    const TensorView view = scaled.inputs.at(name);
    internal::for_each_element(
        [&](std::int64_t at) { internal::store_double(view, at, power_of_two * internal::load_double(view, at)); },
        view);
  }
  return scaled;
}

Tensors times(const Tensors& outputs, double power_of_two) {
  Tensors scaled;
  for (const auto& [name, tensor] : outputs) {
    const Tensor copy = copy_of(tensor);
    internal::for_each_element(
        [&](std::int64_t at) { internal::store_double(copy, at, power_of_two * internal::load_double(copy, at)); },
        copy.view());
    scaled[name] = copy;
  }
  return scaled;
}

void require_all(Verdict& verdict, const TensorView& view, double value, std::string_view message) {
  bool all = true;
  internal::for_each_element([&](std::int64_t at) { all &= internal::load_double(view, at) == value; }, view);
  verdict.require(all && view.size() > 0, message);
}

void add_windows(IdentityChecks& checks) {
  const auto windows = [](const std::string& name, DType dtype, double low, double high, double weight) {
    return make_case(name, Operation::window_sizes, dtype, [&](CaseBuilder& b) {
      b.set("n_min", low);
      b.set("n_max", high);
      b.normal("x", {2, 9, 16});
      b.normal("weight", {3, 16}, weight);
      b.constant("bias", {3}, dtype, 0);
      b.normal_statistics("dwindow", {2, 3, 9});
    });
  };
  checks.add("window_sizes/no_range_is_constant",
             [windows](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Tensors actual = evaluate(context.backend(), windows(name, dtype, 24, 24, 0.3));
               require_all(verdict, actual.at("window"), 24, "n_min = n_max = 24 gives another window");
               for (const char* output : {"dx", "dweight", "dbias"})
                 require_all(verdict, actual.at(output), 0, "n_min = n_max gives a gradient that is not 0");
             });
  checks.add("window_sizes/zero_start_is_the_middle",
             [windows](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Tensors actual = evaluate(context.backend(), windows(name, dtype, 8, 40, 0));
               require_all(verdict, actual.at("window"), 24, "weights and biases of 0 do not give (n_min + n_max)/2");
             });
}

void add_energies_and_selection(IdentityChecks& checks) {
  checks.add("energies/homogeneous", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case c = make_case(name, Operation::energies, dtype, [](CaseBuilder& b) {
      b.normal("x", {2, 9, 20});
      b.normal("v", {2, 3, 9, 8});
    });
    judge_as(times(evaluate(context.backend(), times(c, {"x", "v"}, 4)), 0.25), c, verdict);
  });
  const auto selection = [](const std::string& name, DType dtype, const char* policy) {
    return make_case(name, Operation::select_landmarks, dtype, [&](CaseBuilder& b) {
      b.set("policy", policy);
      b.set("k", 4);
      b.set("tau", 0.6);
      if (std::string_view(policy) == "causal") b.set("chunk", 10);
      const RandomValues x = b.random("nx"), v = b.random("nv");
      b.fill("nx", {2, 44}, dtype, [&](std::int64_t n) { return 1 + x.uniform(n); });
      b.fill("nv", {2, 2, 44}, dtype, [&](std::int64_t n) { return 1 + v.uniform(n); });
      b.normal("alpha_raw", {4});
    });
  };
  checks.add(
      "select_landmarks/scale_of_energies",
      [selection](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        const Case c = selection(name, dtype, "causal");
        same_outputs(times(times(c, {"nx"}, 8), {"nv"}, 0.5), c, context, verdict);
      },
      wide_dtypes);
  checks.add(
      "select_landmarks/causal_list_is_global_prefix",
      [selection](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        const Case causal = selection(name, dtype, "causal");
        const Tensors actual = evaluate(context.backend(), causal);
        for (std::int64_t t = 1; t < 5; ++t) {
          Case prefix = without(causal, {"chunk"});
          prefix.attributes["policy"] = std::string("global");
          prefix = narrowed(narrowed(prefix, {"nx"}, 1, 0, 10 * t), {"nv"}, 2, 0, 10 * t);
          Tensors list;
          for (const auto& [output, tensor] : actual) list[output] = narrowed(tensor, 2, t, 1);
          judge_as(list, prefix, verdict, {}, "list " + std::to_string(t));
        }
      },
      wide_dtypes);
  checks.add(
      "select_landmarks/recent_is_a_shorter_sequence",
      [selection](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        Case c = selection(name, dtype, "global");
        const Case shorter = narrowed(narrowed(c, {"nx"}, 1, 0, 37), {"nv"}, 2, 0, 37);
        c.attributes["recent"] = std::int64_t{7};
        same_outputs(c, shorter, context, verdict);
      },
      wide_dtypes);
}

void add_rope(IdentityChecks& checks) {
  checks.add(
      "rope/position_zero_is_identity", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        const Case c = make_case(name, Operation::rope, dtype, [](CaseBuilder& b) { b.normal("x", {3, 2, 1, 10}); });
        verdict.equal_bits("y = x", evaluate(context.backend(), c).at("y"), c.inputs.at("x"));
      });
  checks.add("rope/backward_is_inverse", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    Case c = make_case(name, Operation::rope, dtype, [](CaseBuilder& b) {
      b.set("position", 100);
      b.normal("x", {2, 3, 30, 16});
    });
    c.inputs["dy"] = evaluate(context.backend(), c).at("y");
    const Tensor back = evaluate(context.backend(), c).at("dx");
    // y was rounded to the dtype once more, sin and cos were rounded twice: per element (|x1| + |x2|) of each
    Tensors wide = to_double(c).inputs;
    const TensorView x = wide.at("x");
    const Tensor condition = copy_of(x);
    const std::int64_t half = x.shape[3] / 2;
    const double u = unit_roundoff(dtype) + 4 * unit_roundoff(statistics_dtype(dtype));
    for (std::int64_t row = 0; row < x.size() / x.shape[3]; ++row)
      for (std::int64_t t = 0; t < half; ++t) {
        const double* pair = x.at<double>(row * x.shape[3] + t);
        double* of = condition.view().at<double>(row * x.shape[3] + t);
        of[0] = of[half] = (std::fabs(pair[0]) + std::fabs(pair[half])) * u;
      }
    verdict.add("dx", compare(back, x, condition, tolerance_for(Operation::rope, "dx", dtype)));
  });
  checks.add("rope/pack_restarts", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case pack = make_case(name, Operation::rope, dtype, [](CaseBuilder& b) {
      b.normal("x", {14, 2, 8});
      b.normal("dy", {14, 2, 8});
      b.list_i32("cu_seqlens", {0, 5, 5, 14});
    });
    const Tensors actual = evaluate(context.backend(), pack);
    for (const auto& [start, length] : {std::pair{0, 5}, {5, 9}}) {
      Case padded = without(pack, {"cu_seqlens"});
      for (const char* input : {"x", "dy"}) padded.inputs[input] = as_padded(pack.inputs.at(input), start, length);
      Tensors rows;
      for (const auto& [output, tensor] : actual) rows[output] = as_padded(tensor, start, length);
      judge_as(rows, padded, verdict);
    }
  });
}

void add_norm_and_gate(IdentityChecks& checks) {
  const auto norm = [](const std::string& name, DType dtype) {
    return make_case(name, Operation::rmsnorm, dtype, [](CaseBuilder& b) {
      b.set("eps", 0.0);
      b.normal("x", {5, 24});
      b.normal("gamma", {24});
    });
  };
  checks.add("rmsnorm/scale_of_x", [norm](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case c = norm(name, dtype);
    same_outputs(times(c, {"x"}, 16), c, context, verdict);
  });
  checks.add("rmsnorm/linear_in_gamma",
             [norm](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = norm(name, dtype);
               judge_as(times(evaluate(context.backend(), times(c, {"gamma"}, 4)), 0.25), c, verdict);
             });
  checks.add("swiglu/linear_in_up", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case c = make_case(name, Operation::swiglu, dtype, [](CaseBuilder& b) {
      b.normal("gate", {5, 24}, 2);
      b.normal("up", {5, 24});
    });
    judge_as(times(evaluate(context.backend(), times(c, {"up"}, 8)), 0.125), c, verdict);
  });
  checks.add("swiglu/closed_gate", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case c = make_case(name, Operation::swiglu, dtype, [](CaseBuilder& b) {
      b.constant("gate", {5, 24}, b.dtype(), 0);
      b.normal("up", {5, 24});
    });
    require_all(verdict, evaluate(context.backend(), c).at("y"), 0, "a gate of 0 lets something through");
  });
}

void add_loss_and_step(IdentityChecks& checks) {
  checks.add(
      "cross_entropy/linear_in_dloss", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        const Case c = make_case(name, Operation::cross_entropy, dtype, [](CaseBuilder& b) {
          b.normal("hidden", {6, 8});
          b.normal("weight", {19, 8});
          b.fill_i32("labels", {6}, [](std::int64_t r) { return r == 4 ? -100 : 3 * r; });
          b.constant("dloss", {}, b.statistics(), 1);
        });
        judge_as(times(evaluate(context.backend(), times(c, {"dloss"}, 4)), 0.25), c, verdict, {"dhidden", "dweight"});
      });
  checks.add("cross_entropy/ignored_rows_do_not_exist",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = make_case(name, Operation::cross_entropy, dtype, [](CaseBuilder& b) {
                 b.normal("hidden", {9, 8});
                 b.normal("weight", {19, 8});
                 b.set("label_smoothing", 0.2);
                 b.fill_i32("labels", {9}, [](std::int64_t r) { return r >= 5 ? -100 : 3 * r; });
                 b.constant("dloss", {}, b.statistics(), 1);
               });
               const Case shorter = narrowed(c, {"hidden", "labels"}, 0, 0, 5);
               Tensors actual = evaluate(context.backend(), c);
               require_all(verdict, narrowed(actual.at("dhidden"), 0, 5, 4), 0, "an ignored row has a gradient");
               actual["dhidden"] = narrowed(actual.at("dhidden"), 0, 0, 5);
               judge_as(actual, shorter, verdict);
             });
  checks.add("adamw/no_rate_no_step", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case c = make_case(name, Operation::adamw, dtype, [](CaseBuilder& b) {
      for (const auto& [attribute, value] :
           {std::pair{"lr", 0.0}, {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}})
        b.set(attribute, value);
      b.set("step", 5);
      b.normal("param", {3, 17});
      b.normal("grad", {3, 17});
      b.normal_statistics("m", {3, 17});
      b.constant("v", {3, 17}, b.statistics(), 0.5);
    });
    verdict.equal_bits("param", evaluate(context.backend(), c).at("param"), c.inputs.at("param"));
  });
}

}  // namespace

void add_selector_identities(IdentityChecks& checks) {
  add_windows(checks);
  add_energies_and_selection(checks);
}

void add_network_identities(IdentityChecks& checks) {
  add_rope(checks);
  add_norm_and_gate(checks);
  add_loss_and_step(checks);
}

}  // namespace dsalt::verification
