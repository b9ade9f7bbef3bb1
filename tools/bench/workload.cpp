// Which workloads an operation's name stands for.
#include "bench/workload.hpp"

#include "dsalt/errors.hpp"

namespace dsalt::benchmark {

const std::vector<std::string>& operation_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Operation operation : all_operations) {
      const std::string name(name_of(operation));
      list.push_back(name);
      if (operation != Operation::merge && operation != Operation::adamw) list.push_back(name + "_backward");
    }
    return list;
  }();
  return names;
}

std::vector<Workload> workloads(const std::string& operation, const Shape& shape, DType dtype) {
  const std::string suffix = "_backward";
  const bool backward = operation.ends_with(suffix);
  const std::string name = operation.substr(0, operation.size() - (backward ? suffix.size() : 0));
  const Direction direction = backward ? Direction::backward : Direction::forward;
  if (name == "attention") return {attention_workload(shape, dtype, direction)};
  if (name == "merge") return {merge_workload(shape, dtype)};
  if (name == "window_sizes") return {window_sizes_workload(shape, dtype, direction)};
  if (name == "energies") return {energies_workload(shape, dtype, direction)};
  if (name == "select_landmarks")
    return {select_landmarks_workload(shape, dtype, direction, SelectionPolicy::global),
            select_landmarks_workload(shape, dtype, direction, SelectionPolicy::causal)};
  if (name == "rmsnorm") return {rmsnorm_workload(shape, dtype, direction)};
  if (name == "rope") return {rope_workload(shape, dtype, direction)};
  if (name == "swiglu") return {swiglu_workload(shape, dtype, direction)};
  if (name == "cross_entropy") return {cross_entropy_workload(shape, dtype, direction)};
  if (name == "adamw") return {adamw_workload(shape, dtype)};
  throw InvalidArgument("operation: got \"" + operation + "\", which has no benchmark");
}

}  // namespace dsalt::benchmark
