// What it costs to select landmarks at all: token energies and lists, one after the other, beside the attention that
// reads such lists.
#pragma once

#include <vector>

#include "bench/workload.hpp"

namespace dsalt::benchmark {

struct SelectionPipeline {
  Workload selection, attention;  // both forward
};

/// One for each policy: `global` with one list, and `causal` where the shape has lists of chunks. InvalidArgument where
/// the shape's attention reads no landmarks.
std::vector<SelectionPipeline> selection_pipelines(const Shape& shape, DType dtype);

}  // namespace dsalt::benchmark
