// The reference rounds once, at the end: in no case may it be more than one unit from its own yardstick, and it must
// never need the condition at all. This ties u_out, the subnormal spacing and the overflow rule to real outputs.
#include <boost/test/unit_test.hpp>

#include <map>

#include "dsalt/registry.hpp"
#include "dsalt/verification/condition.hpp"
#include "dsalt/verification/generators.hpp"

using namespace dsalt;
using namespace dsalt::verification;

BOOST_AUTO_TEST_SUITE(condition_rounding)

BOOST_AUTO_TEST_CASE(one_rounding_is_less_than_one_unit) {
  const auto reference = make_backend("reference");
  std::map<Operation, int> judged;
  for (const GeneratedCase& generated : generated_cases()) {
    if (!generated.quick || judged[generated.op] > 60) continue;
    const Case c = generate_case(generated.name);
    for (const auto& [output, comparison] : compare_outputs(c, evaluate(*reference, c), make_yardstick(c))) {
      BOOST_TEST(comparison.passed, generated.name << " " << output << ": " << comparison.message);
      BOOST_TEST(comparison.max_ratio <= 1.0001, generated.name << " " << output << ": " << comparison.max_ratio);
      ++judged[generated.op];
    }
  }
  BOOST_TEST(judged.size() == std::size(all_operations));
}

BOOST_AUTO_TEST_CASE(every_condition_has_its_output) {
  std::map<Operation, bool> seen;
  for (const GeneratedCase& generated : generated_cases()) {
    if (!generated.quick || seen[generated.op]) continue;
    seen[generated.op] = true;
    const Yardstick y = make_yardstick(generate_case(generated.name));
    for (const auto& [output, tensor] : y.reference) {
      if (tensor.view().dtype == DType::i32) continue;
      BOOST_TEST(y.condition.contains(output), generated.name << " " << output);
      BOOST_TEST((y.condition.at(output).view().shape == tensor.view().shape), generated.name << " " << output);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
