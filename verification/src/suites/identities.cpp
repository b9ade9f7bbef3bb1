#include "suites/identities.hpp"

#include <algorithm>

namespace dsalt::verification {

void judge_as(const Tensors& actual, const Case& equal, Verdict& verdict, const std::vector<std::string>& outputs,
              std::string_view label) {
  Yardstick yardstick = make_yardstick(equal);
  Tensors kept = actual;
  if (!outputs.empty()) {
    kept = only(actual, outputs);
    yardstick.reference = only(yardstick.reference, outputs);
  }
  verdict.compare_with(yardstick, equal, kept, label);
}

void same_outputs(const Case& computed, const Case& equal, Context& context, Verdict& verdict,
                  const std::vector<std::string>& outputs, std::string_view label) {
  judge_as(evaluate(context.backend(), computed), equal, verdict, outputs, label);
}

std::vector<Check> identity_checks() {
  IdentityChecks checks;
  add_attention_identities(checks);
  add_selector_identities(checks);
  add_network_identities(checks);
  return std::move(checks.list);
}

}  // namespace dsalt::verification
