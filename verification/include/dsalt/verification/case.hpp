// A case: one operation with its parameters, inputs and (optionally) outputs, exactly as a case file stores it
// (docs/semantics.md, "Case files"). Generators make cases, backends evaluate them, files keep them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "dsalt/backend.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt::verification {

using Attribute = std::variant<std::int64_t, double, std::string>;
using Tensors = std::map<std::string, Tensor>;  // host tensors, contiguous unless a generator makes strided views

struct Case {
  std::string name;
  Operation op = Operation::attention;
  std::map<std::string, Attribute> attributes;  // without "op"
  Tensors inputs;
  Tensors outputs;  // may be empty: to be computed
};

/// The operation of a case file's `op` attribute; InvalidArgument names the known ones.
DSALT_API Operation operation_from_name(std::string_view name);

/// The dtype that decides what a backend must support (q, x, param, ...).
DSALT_API DType main_dtype(const Case& c);

/// InvalidArgument naming the first unknown or missing attribute or input, one of the wrong type, dtype or rank, or an
/// output that this case does not have. Booleans are int64 0/1; a whole float64 passes for an int64 and an int64 for a
/// float64. Attributes that belong together (soft_edge, soft_tau; dropout_*) come together. Shapes are checked
/// by the operation itself.
DSALT_API void check_schema(const Case& c);

/// The names of the outputs that the contract lists for this case, forward ones first.
DSALT_API std::vector<std::string> expected_outputs(const Case& c);

/// Runs the case on a backend and returns every output that the contract lists for it. Outputs start as 0 (lse: -inf)
/// where the contract writes nothing. Host cases are copied to and from the backend's device.
/// Throws InvalidArgument, Unsupported (also when supports() says no), DeviceError.
DSALT_API Tensors evaluate(Backend& backend, const Case& c);

/// The same case with every floating tensor converted to float64 (exactly): what the yardstick is computed from.
DSALT_API Case to_double(const Case& c);

}  // namespace dsalt::verification
