// Named case generators, one family per operation. A case depends on its name alone (the name seeds Philox), so a name
// printed by a failing run is all that is needed to make that case again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsalt/verification/case.hpp"

namespace dsalt::verification {

/// One family: what varies in it and why it is there.
struct Family {
  std::string name;  // "attention/partial_tiles"
  Operation op;
  std::string description;  // one sentence
};
DSALT_API const std::vector<Family>& families();

struct GeneratedCase {
  std::string name;  // "<family>/<variant>_<dtype>", unique, a valid HDF5 path below /cases once '/' becomes '.'
  std::string family;
  Operation op;
  DType dtype;
  bool quick;   // small enough for the quick tests
  bool golden;  // part of `dsalt golden generate`
};
/// Every case that exists, in a fixed order.
DSALT_API const std::vector<GeneratedCase>& generated_cases();

/// Makes the case (inputs only, outputs empty); InvalidArgument for an unknown name.
DSALT_API Case generate_case(std::string_view name);

}  // namespace dsalt::verification
