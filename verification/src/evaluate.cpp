// evaluate(backend, case): schema check, support check, for a device also a check of the values while they are in host
// memory, one forward call and, if gradients arrive, one backward call.
#include "dsalt/errors.hpp"
#include "operations/argument_check.hpp"
#include "operations/operation_case.hpp"

namespace dsalt::verification {
namespace {

void require_support(Backend& backend, const Case& c, Direction direction) {
  const Support support = backend.supports(c.op, direction, main_dtype(c));
  if (!support) throw Unsupported(support.reason);
}

void check_values(const Case& c) {
  ArgumentCheck check;
  CaseMemory memory(check, c);
  operation_case(c.op).run(check, c, memory);
}

}  // namespace

const OperationCase& operation_case(Operation op) {
  switch (op) {
    case Operation::attention: return attention_case();
    case Operation::merge: return merge_case();
    case Operation::window_sizes: return window_sizes_case();
    case Operation::energies: return energies_case();
    case Operation::select_landmarks: return select_landmarks_case();
    case Operation::rmsnorm: return rmsnorm_case();
    case Operation::rope: return rope_case();
    case Operation::swiglu: return swiglu_case();
    case Operation::cross_entropy: return cross_entropy_case();
    case Operation::adamw: return adamw_case();
  }
  throw InvalidArgument("op: " + std::to_string(static_cast<int>(op)) + " is not an operation");
}

Tensors evaluate(Backend& backend, const Case& c) {
  check_schema(c);
  const OperationCase& entry = operation_case(c.op);
  require_support(backend, c, Direction::forward);
  for (const std::string_view name : entry.gradient_inputs)
    if (has_input(c, name)) require_support(backend, c, Direction::backward);
  if (backend.device().type != DeviceType::cpu) check_values(c);
  CaseMemory memory(backend, c);
  entry.run(backend, c, memory);
  return memory.collect();
}

}  // namespace dsalt::verification
