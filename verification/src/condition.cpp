// make_yardstick and compare_outputs: see condition.hpp.
#include "dsalt/verification/condition.hpp"

#include "compare_selection.hpp"
#include "condition/condition.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/registry.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {
namespace {

Tensors condition_of(const Case& exact, const CallRecorder& call, const Units& u, Yardstick& yardstick) {
  const Tensors& reference = yardstick.reference;
  switch (exact.op) {
    case Operation::attention: return attention_condition(call, reference, u);
    case Operation::merge: return merge_condition(exact, reference, u);
    case Operation::window_sizes: return window_sizes_condition(exact, reference, u, yardstick.alternative);
    case Operation::energies: return energies_condition(exact, reference, u);
    case Operation::select_landmarks: return select_landmarks_condition(call, reference.at("landmarks"), u);
    case Operation::rmsnorm: return rmsnorm_condition(exact, reference, u);
    case Operation::rope: return rope_condition(exact, reference, u);
    case Operation::swiglu: return swiglu_condition(exact, reference, u);
    case Operation::cross_entropy: return cross_entropy_condition(exact, reference, u);
    case Operation::adamw: return adamw_condition(exact, reference, u);
  }
  throw InvalidArgument("op: not an operation");
}

/// The reference with the second admissible value wherever the output has exactly that one.
Tensor admissible(const TensorView& actual, const TensorView& reference, const TensorView& alternative) {
  const Array first = dense(reference), second = dense(alternative);
  const Tensor chosen = zeros_like(first);
  double* value = values(chosen);
  std::int64_t n = 0;
  internal::for_each_element(
      [&](std::int64_t at) {
        value[n] = internal::load_double(actual, at) == second[n] ? second[n] : first[n];
        ++n;
      },
      actual);
  return chosen;
}

Comparison without_counterpart(const char* message) {
  Comparison comparison;
  comparison.message = message;
  return comparison;
}

}  // namespace

Yardstick make_yardstick(const Case& c) {
  const auto backend = make_backend("reference");
  CallRecorder call(*backend);
  const Case exact = to_double(c);
  Yardstick yardstick;
  yardstick.reference = evaluate(call, exact);
  yardstick.condition = condition_of(exact, call, Units::of(main_dtype(c)), yardstick);
  return yardstick;
}

Comparisons compare_outputs(const Case& c, const Tensors& actual, const Yardstick& yardstick) {
  Comparisons comparisons;
  for (const auto& [name, reference] : yardstick.reference)
    if (!actual.contains(name)) comparisons.emplace_back(name, without_counterpart("the output is missing"));
  for (const auto& [name, output] : actual)
    if (!yardstick.reference.contains(name))
      comparisons.emplace_back(name, without_counterpart("the case has no such output"));
  if (!comparisons.empty()) return comparisons;
  if (c.op == Operation::select_landmarks) return compare_selection(c, actual, yardstick);

  for (const auto& [name, tensor] : actual) {
    const TensorView output = tensor;
    const Tensor& reference = yardstick.reference.at(name);
    if (output.size() == 0 && reference.view().size() == 0) continue;
    const auto second = yardstick.alternative.find(name);
    const bool jumps = second != yardstick.alternative.end() && output.size() == reference.view().size();
    comparisons.emplace_back(name, compare(output, jumps ? admissible(output, reference, second->second) : reference,
                                           yardstick.condition.at(name), tolerance_for(c.op, name, output.dtype)));
  }
  return comparisons;
}

}  // namespace dsalt::verification
