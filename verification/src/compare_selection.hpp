// Private to compare_outputs: landmark selections, judged by equivalence instead of equality.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dsalt/verification/condition.hpp"

namespace dsalt::verification {

using Comparisons = std::vector<std::pair<std::string, Comparison>>;

Comparisons compare_selection(const Case& c, const Tensors& actual, const Yardstick& yardstick);

}  // namespace dsalt::verification
