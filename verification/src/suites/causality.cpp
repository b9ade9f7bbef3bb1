// The pipeline energies -> selection -> attention on tokens that change after row i.
//
//   causal   out, lse and the lists of rows <= i keep every bit, for rows at the start, inside and at the end of every
//            chunk; gradients that arrive at rows <= i only never reach a later token
//   global   the same experiment must find a difference: selection that sees the whole sequence leaks the future
#include "internal/elements.hpp"
#include "suites/suite_cases.hpp"

namespace dsalt::verification {
namespace {

constexpr std::int64_t tokens = 48, chunk = 8, heads = 4, kv_heads = 2, slots = 4, width = 16, d_model = 24;
constexpr std::int64_t lists = tokens / chunk;

/// Everything a model computes from its tokens before attention, in the layout of the operations.
struct Activations {
  Case energies, attention;  // x, v; q, k, v, window
};

Activations make_activations(const std::string& name, DType dtype) {
  Activations made;
  made.energies = make_case(name + "/energies", Operation::energies, dtype, [](CaseBuilder& c) {
    c.normal("x", {1, tokens, d_model});
    c.normal("v", {1, kv_heads, tokens, width});
  });
  made.attention = make_case(name + "/attention", Operation::attention, dtype, [](CaseBuilder& c) {
    const AttentionSpec spec{
        .hq = heads, .hkv = kv_heads, .nq = tokens, .nk = tokens, .d = width, .dv = width, .mask = "sparse"};
    add_qkv(c, spec);
    const RandomValues random = c.random("window");
    c.fill("window", {1, heads, tokens}, c.statistics(), [&](std::int64_t n) { return random.uniform(n, 0, 4); });
    add_soft_edge(c, 1, 0.5);
    add_gradients(c, spec, true);
  });
  made.attention.inputs["v"] = made.energies.inputs.at("v");
  return made;
}

/// The same activations with every token after row i replaced by a larger one.
Activations with_other_future(const Activations& original, const std::string& name, DType dtype, std::int64_t i) {
  const Activations other = make_activations(name + "/future" + std::to_string(i), dtype);
  Activations changed{deep_copy(original.energies), deep_copy(original.attention)};
  const auto replace = [&](const Tensor& from, const Tensor& to, int dim) {
    copy_elements(from.view().narrow(dim, i + 1, tokens - i - 1), to.view().narrow(dim, i + 1, tokens - i - 1));
  };
  replace(other.energies.inputs.at("x"), changed.energies.inputs.at("x"), 1);
  for (const char* input : {"q", "k", "v", "window"})
    replace(other.attention.inputs.at(input), changed.attention.inputs.at(input), 2);
  // larger tokens: they become candidates that a selection with foresight cannot resist
  const TensorView x = changed.energies.inputs.at("x").view().narrow(1, i + 1, tokens - i - 1);
  const TensorView v = changed.attention.inputs.at("v").view().narrow(2, i + 1, tokens - i - 1);
  for (const TensorView& view : {x, v})
    internal::for_each_element(
        [&](std::int64_t at) { internal::store_double(view, at, 8 * internal::load_double(view, at)); }, view);
  changed.energies.inputs["v"] = changed.attention.inputs.at("v");
  return changed;
}

struct Stages {
  Tensors energies, selection, attention;
  Case selection_case;
};

Stages run_pipeline(Backend& backend, const Activations& tokens_of, const char* policy) {
  const bool causal = std::string_view(policy) == "causal";
  Stages stages;
  stages.energies = evaluate(backend, tokens_of.energies);
  Case& select = stages.selection_case;
  select.name = tokens_of.attention.name + "/selection";
  select.op = Operation::select_landmarks;
  select.attributes = {{"policy", std::string(policy)}, {"k", slots}, {"tau", 0.7}};
  if (causal) select.attributes["chunk"] = chunk;
  select.inputs = {{"nx", stages.energies.at("nx")}, {"nv", stages.energies.at("nv")}};
  select.inputs["alpha_raw"] = Tensor::zeros({heads}, stages.energies.at("nx").view().dtype);
  stages.selection = evaluate(backend, select);
  Case attention = tokens_of.attention;
  attention.inputs["landmarks"] = stages.selection.at("landmarks");
  attention.inputs["landmark_log_weight"] = stages.selection.at("landmark_log_weight");
  if (causal) attention.attributes["landmark_chunk"] = chunk;
  stages.attention = evaluate(backend, attention);
  return stages;
}

void require_promises(Context& context) {
  for (const Operation op : {Operation::energies, Operation::select_landmarks, Operation::attention})
    context.require_promise(&Reproducibility::run, "run", op, Direction::forward);
}

/// A row at the start, one inside and the one at the end of every chunk; the last row has no future.
std::vector<std::int64_t> rows_to_try(const std::string& name) {
  const RandomValues random(name, "rows");
  std::vector<std::int64_t> rows;
  for (std::int64_t t = 0; t < lists; ++t)
    for (const std::int64_t within : {std::int64_t{0}, random.integer(t, 1, chunk - 2), chunk - 1})
      if (t * chunk + within < tokens - 1) rows.push_back(t * chunk + within);
  return rows;
}

void causal_policy(const std::string& name, DType dtype, Context& context, Verdict& verdict) {
  require_promises(context);
  const Activations original = make_activations(name, dtype);
  const Stages before = run_pipeline(context.backend(), original, "causal");
  for (const std::int64_t i : rows_to_try(name)) {
    const Stages after = run_pipeline(context.backend(), with_other_future(original, name, dtype, i), "causal");
    const std::string what = "tokens after " + std::to_string(i) + " changed: ";
    for (const char* output : {"out", "lse"})
      verdict.equal_bits(what + output, narrowed(after.attention.at(output), 2, 0, i + 1),
                         narrowed(before.attention.at(output), 2, 0, i + 1));
    for (const char* output : {"landmarks", "score", "landmark_log_weight"})
      verdict.equal_bits(what + output, narrowed(after.selection.at(output), 2, 0, i / chunk + 1),
                         narrowed(before.selection.at(output), 2, 0, i / chunk + 1));
    verdict.require(count_differences(after.attention.at("out"), before.attention.at("out")) > 0,
                    "the changed tokens changed nothing at all: the experiment shows nothing");
  }
}

void causal_gradients(const std::string& name, DType dtype, Context& context, Verdict& verdict) {
  const Activations original = make_activations(name, dtype);
  const Stages forward = run_pipeline(context.backend(), original, "causal");
  for (const std::int64_t i : rows_to_try(name)) {
    Case attention = deep_copy(original.attention);
    attention.inputs["landmarks"] = forward.selection.at("landmarks");
    attention.inputs["landmark_log_weight"] = forward.selection.at("landmark_log_weight");
    attention.attributes["landmark_chunk"] = chunk;
    poison_rows(attention.inputs.at("dout"), 2, i + 1, 0);
    poison_rows(attention.inputs.at("dlse"), 2, i + 1, 0);
    const Tensors gradients = evaluate(context.backend(), attention);
    Case select = forward.selection_case;
    select.inputs["dlandmark_log_weight"] = gradients.at("dlandmark_log_weight");
    const Tensors energies = evaluate(context.backend(), select);
    const auto nothing_after = [&](const char* output, const TensorView& view, int dim) {
      const TensorView future = view.narrow(dim, i + 1, tokens - i - 1);
      bool zero = true;
      internal::for_each_element([&](std::int64_t at) { zero &= internal::load_double(future, at) == 0; }, future);
      verdict.require(zero,
                      std::string(output) + ": gradients of rows up to " + std::to_string(i) + " reach a later token");
    };
    for (const char* output : {"dq", "dk", "dv", "dwindow"}) nothing_after(output, gradients.at(output), 2);
    nothing_after("dnx", energies.at("dnx"), 1);
    nothing_after("dnv", energies.at("dnv"), 2);
  }
}

void global_policy_leaks(const std::string& name, DType dtype, Context& context, Verdict& verdict) {
  require_promises(context);
  const Activations original = make_activations(name, dtype);
  const Stages before = run_pipeline(context.backend(), original, "global");
  std::int64_t leaks = 0;
  for (const std::int64_t i : rows_to_try(name)) {
    const Stages after = run_pipeline(context.backend(), with_other_future(original, name, dtype, i), "global");
    leaks += count_differences(narrowed(after.attention.at("out"), 2, 0, i + 1),
                               narrowed(before.attention.at("out"), 2, 0, i + 1));
  }
  verdict.require(leaks > 0,
                  "no earlier row changed with the future: the experiment cannot see a leak, so it says "
                  "nothing about the causal policy either");
}

}  // namespace

std::vector<Check> causality_checks() {
  std::vector<Check> checks;
  using Run = void (*)(const std::string&, DType, Context&, Verdict&);
  for (const auto& [name, run] : {std::pair<std::string, Run>{"causal/earlier_rows_keep_their_bits", causal_policy},
                                  {"causal/gradients_stay_in_the_past", causal_gradients},
                                  {"global/leaks_the_future", global_policy_leaks}})
    for (const DType dtype : every_dtype)
      checks.push_back(
          {in_dtype(name, dtype), true, [name = name, run = run, dtype](Context& context, Verdict& verdict) {
             run(name, dtype, context, verdict);
           }});
  return checks;
}

}  // namespace dsalt::verification
