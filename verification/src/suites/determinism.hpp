// The part of the determinism suite in which a row's surroundings change: batch, pack, padding, prefill.
#pragma once

#include <vector>

#include "suites/suite.hpp"

namespace dsalt::verification {

std::vector<Check> row_determinism_checks();

}  // namespace dsalt::verification
