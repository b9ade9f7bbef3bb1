// Comparing an output with the double reference, element by element, against a tolerance conditioned on that element.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsalt/tensor.hpp"

namespace dsalt::verification {

/// unit = condition + u_out |reference| + tiny. Every element must hold |actual - reference| <= max_factor * unit, and
/// the RMS of error / unit over the n elements that have something to round must be <= rms_factor (1 + 3/sqrt(n)): few
/// elements are as good as their worst. Both fail on !(x <= bound), so NaN fails.
struct Tolerance {
  double max_factor = 4;
  double rms_factor = 1;
  double u_out = 0;  // unit roundoff of the output's dtype
  double tiny = 0;   // absolute floor: the smallest subnormal of the output's dtype
};

struct Comparison {
  bool passed = false;
  std::string message;     // empty when passed: the first thing that is wrong, in words
  std::int64_t count = 0;  // elements compared; 0 is a failure
  double max_ratio = 0;    // worst error / unit; infinite where the unit is 0 and the error is not
  double rms_ratio = 0;
  double max_factor = 0, rms_factor = 0;  // what max_ratio and rms_ratio had to stay under
  std::vector<std::int64_t> worst_index;
  double worst_actual = 0, worst_reference = 0, worst_bound = 0;
  std::vector<float> ratios;  // a sample of at most 4096 ratios, evenly spaced, for the report's pictures
};

/// `reference` and `condition` are float64 host tensors of actual's shape; `condition` holds the sum of absolute terms
/// times the unit roundoffs (see condition.hpp). Shapes must match; an empty comparison fails; NaN and infinity
/// positions are compared first, signs included. A reference that the output's dtype cannot hold (it rounds to
/// infinity) must be that infinity; within tolerance of the overflow threshold both are right.
DSALT_API Comparison compare(const TensorView& actual, const TensorView& reference, const TensorView& condition,
                             const Tolerance& tolerance);

}  // namespace dsalt::verification
