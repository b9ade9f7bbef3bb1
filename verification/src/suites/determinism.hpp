// The parts of the determinism suite in which a row's surroundings change (batch, pack, padding, prefill) and in which
// the layout of the inputs does.
#pragma once

#include <vector>

#include "suites/suite.hpp"

namespace dsalt::verification {

std::vector<Check> row_determinism_checks();
std::vector<Check> stride_determinism_checks();

}  // namespace dsalt::verification
