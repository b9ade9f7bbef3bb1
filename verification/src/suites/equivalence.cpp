// Every generated case on the backend under test, against the unrounded double definition.
//
// Every tensor lies in a guarded buffer of the backend's memory: reads and writes outside the views, written inputs and
// unwritten outputs are found on the way.
#include "dsalt/verification/generators.hpp"
#include "suites/guarded_backend.hpp"
#include "suites/suite.hpp"

namespace dsalt::verification {
namespace {

void run(const std::string& name, Context& context, Verdict& verdict) {
  const Case c = generate_case(name);
  GuardedBackend guarded(context.backend());
  const Tensors actual = evaluate(guarded, c);
  const Yardstick yardstick = make_yardstick(c);
  bool has_elements = false;
  for (const auto& [output, tensor] : yardstick.reference) has_elements |= tensor.view().size() > 0;
  for (const auto& [output, tensor] : actual) has_elements |= tensor.view().size() > 0;
  if (!has_elements) throw Skip("the call returned, and none of its outputs has an element to compare");
  verdict.compare_with(yardstick, c, actual);
}

}  // namespace

std::vector<Check> equivalence_checks() {
  std::vector<Check> checks;
  for (const GeneratedCase& generated : generated_cases())
    checks.push_back({generated.name, generated.quick,
                      [name = generated.name](Context& context, Verdict& verdict) { run(name, context, verdict); }});
  return checks;
}

}  // namespace dsalt::verification
