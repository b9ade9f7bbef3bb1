// Identities: one case computed on the backend, judged by the double definition of another case that must be equal.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "suites/suite_cases.hpp"

namespace dsalt::verification {

/// Calls back with the case's name and dtype for each dtype.
class IdentityChecks {
 public:
  using Run = std::function<void(const std::string& name, DType dtype, Context& context, Verdict& verdict)>;
  void add(const std::string& name, const Run& run, std::initializer_list<DType> dtypes = every_dtype) {
    for (const DType dtype : dtypes)
      list.push_back({in_dtype(name, dtype), true,
                      [=](Context& context, Verdict& verdict) { run(name, dtype, context, verdict); }});
  }
  std::vector<Check> list;
};

/// The named outputs of `computed` on the backend are those of `equal` by its definition. No names: all of `equal`'s.
void same_outputs(const Case& computed, const Case& equal, Context& context, Verdict& verdict,
                  const std::vector<std::string>& outputs = {}, std::string_view label = "");
/// The same for outputs that have been put together from several calls.
void judge_as(const Tensors& actual, const Case& equal, Verdict& verdict, const std::vector<std::string>& outputs = {},
              std::string_view label = "");

void add_attention_identities(IdentityChecks& checks);
void add_selector_identities(IdentityChecks& checks);
void add_network_identities(IdentityChecks& checks);

}  // namespace dsalt::verification
