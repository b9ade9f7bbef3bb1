// The cases of the gradient suite: every operation with a backward pass, every input that has a gradient.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generators/family_list.hpp"

namespace dsalt::verification {

struct GradientCase {
  std::string name;  // "attention/sparse_soft"
  Operation op;
  bool small;  // every element is differenced; otherwise directional derivatives
  std::function<void(CaseBuilder&)> maker;

  Case make(DType dtype) const;
  std::string name_in(DType dtype) const;
};

const std::vector<GradientCase>& gradient_cases();

/// What flows through an operation: <upstream, output> is differentiated by the inputs, giving the gradients.
struct Flow {
  std::vector<std::pair<std::string, std::string>> upstream;   // output, its upstream gradient
  std::vector<std::pair<std::string, std::string>> gradients;  // input, its gradient
};
/// Empty for operations without a backward pass.
Flow flow_of(Operation op);
/// Whether the output belongs to the backward pass.
bool is_gradient(Operation op, std::string_view output);

}  // namespace dsalt::verification
