// The yardstick for a case: the unrounded double reference of every output, and how much honest rounding may move each
// of its elements.
//
// For an output element y = sum of terms, condition(y) = (sum of |terms|) * (u_in + u_acc (1 + size of the scores +
// g)),
//   u_in   unit roundoff of the main dtype where a backend may round an intermediate to it (P and dS before the second
//          matrix product, the stored out in delta); not where the contract leaves no intermediate to round
//   u_acc  unit roundoff of float32, or of float64 when the main inputs are float64
//   g      growth of a sequential sum of n terms, sqrt(n)/4 (see verification/src/condition/units.hpp)
// The terms of each operation are written out in verification/src/condition/<operation>.cpp.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "dsalt/verification/case.hpp"
#include "dsalt/verification/compare.hpp"

namespace dsalt::verification {

struct Yardstick {
  Tensors reference;  // float64 (int32 for landmarks), as evaluate() returns for to_double(case)
  Tensors condition;  // float64, one per floating output: sum of absolute terms times unit roundoffs
  /// Only where an output jumps (floored windows): a second admissible value, equal to the reference everywhere but
  /// at elements whose unrounded value lies within rounding of the jump.
  Tensors alternative;
};

/// Computed from the case's inputs alone; the outputs of the case are not looked at.
DSALT_API Yardstick make_yardstick(const Case& c);

/// The tolerance of one output of one operation; `dtype` is that output's. The single table of constants, each with
/// its reason, is in verification/src/tolerance.cpp. InvalidArgument for an output that the operation does not have.
DSALT_API Tolerance tolerance_for(Operation op, std::string_view output, DType dtype);

/// All outputs of a case against its yardstick: lists by equivalence of selection (near-ties may be ordered
/// differently; everything that depends on the lists is then judged at the lists that were chosen), everything else by
/// `compare`. An output without elements on both sides is left out: there is nothing to compare, and it is no pass.
DSALT_API std::vector<std::pair<std::string, Comparison>> compare_outputs(const Case& c, const Tensors& actual,
                                                                          const Yardstick& yardstick);

}  // namespace dsalt::verification
