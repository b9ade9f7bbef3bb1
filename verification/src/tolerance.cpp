// The one table of tolerance constants.
//
//   |actual - reference| <= most_units (condition + u_out |reference| + tiny),    RMS of error / unit <= rms
//
// The condition (condition.hpp) bounds what one rounding of every term can do, so a computation whose roundings were
// all at their worst and of one sign would land near 1. Real roundings are spread: honest code is seldom above 1.5
// at its worst element or 0.5 in RMS (docs/verification.md has what was measured).
//
// `most_units` is 4 for all: honest code never comes near, and a fault of 4 units is still far below any fault in the
// formula. `rms` tells a systematic loss of accuracy from bad luck in one element (few elements have an allowance:
// compare.hpp):
//   0.75  the output's own rounding dominates, element by element. It is uniform in the last place: an RMS of 0.42
//         u_out |reference|, 0.58 when all values lie just above a power of two
//   1     few roundings, or roundings that many elements share, make the error
#include <string>

#include "condition/units.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/verification/condition.hpp"

namespace dsalt::verification {
namespace {

constexpr double most_units = 4;

struct Row {
  Operation op;
  std::string_view output;
  double rms;
  std::string_view reason;
};

using enum Operation;

constexpr Row table[] = {
    {attention, "out", 1, "keys of one row share the rounding of their maximum and of lse: correlated"},
    {attention, "lse", 1, "one number per row: few roundings, and the scores' size dominates"},
    {attention, "dq", 1, "delta's error is common to all keys of a row"},
    {attention, "dk", 1, "as dq; sums over few rows do not average it out"},
    {attention, "dv", 1, "sums over few rows of weights that share lse's rounding"},
    {attention, "dwindow", 1, "sums over the few keys of the edge"},
    {attention, "dlandmark_log_weight", 1, "as dq"},
    {merge, "out", 1, "two terms whose weights share lse's rounding"},
    {merge, "lse", 1, "two roundings"},
    {window_sizes, "window", 0.75, "one projection, one sigmoid"},
    {window_sizes, "dx", 1, "sums over the few heads"},
    {window_sizes, "dweight", 1, "sums over tokens; one token is allowed"},
    {window_sizes, "dbias", 1, "as dweight"},
    {energies, "nx", 0.75, "a sum of one sign and its root: errors of one element only"},
    {energies, "nv", 0.75, "as nx"},
    {energies, "dx", 0.75, "a row shares the rounding of its norm"},
    {energies, "dv", 0.75, "as dx"},
    {select_landmarks, "score", 1, "a list shares the rounding of mean and std"},
    {select_landmarks, "landmark_log_weight", 1, "as score"},
    {select_landmarks, "dalpha_raw", 1, "a list shares the rounding of mean and std"},
    {select_landmarks, "dnx", 1, "as dalpha_raw"},
    {select_landmarks, "dnv", 1, "as dalpha_raw"},
    {rmsnorm, "y", 0.75, "a row shares the rounding of its root mean square"},
    {rmsnorm, "dx", 0.75, "as y"},
    {rmsnorm, "dgamma", 1, "sums over rows; one row is allowed"},
    {rope, "y", 0.75, "two products; sin and cos are rounded once for all heads"},
    {rope, "dx", 0.75, "as y"},
    {swiglu, "y", 0.75, "element by element, an exponential and three products"},
    {swiglu, "dgate", 0.75, "as y"},
    {swiglu, "dup", 0.75, "as y"},
    {cross_entropy, "loss", 1, "one number: maximum and RMS are the same"},
    {cross_entropy, "dhidden", 1, "the vocabulary shares the rounding of lse"},
    {cross_entropy, "dweight", 1, "sums over few rows"},
    {adamw, "param", 0.75, "element by element, a handful of roundings"},
    {adamw, "m", 0.75, "two products and a sum"},
    {adamw, "v", 0.75, "three products and a sum"},
};

}  // namespace

Tolerance tolerance_for(Operation op, std::string_view output, DType dtype) {
  for (const Row& row : table)
    if (row.op == op && row.output == output)
      return {most_units, row.rms, unit_roundoff(dtype), smallest_subnormal(dtype)};
  throw InvalidArgument("output: " + std::string(name_of(op)) + " has no floating output \"" + std::string(output) +
                        "\"");
}

}  // namespace dsalt::verification
