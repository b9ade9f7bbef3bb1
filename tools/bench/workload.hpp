// One operation, direction, shape and dtype, ready to be prepared on a backend and called again and again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/shape.hpp"
#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

/// What one call has to do at least (docs/performance.md, "Limits").
struct Cost {
  double flop = 0;                              // by the formulas of the page
  double bytes = 0;                             // every element that is needed once read, every output written once
  std::optional<double> pairs, executed_pairs;  // attention only; executed: where the backend's tiles are known
};

struct Prepared {
  Cost cost;
  std::function<void()> call;
  std::map<std::string, Tensor> tensors = {};  // attention only, by the names of the contract: who reads results
};

/// Counts the pairs that a backend's tiles execute for a call, of whose tensors only masks are read (in host memory).
/// Empty where the tiles are not known, for any call or for this one.
using CountExecuted =
    std::function<std::optional<std::int64_t>(Direction, const AttentionProblem&, const AttentionInputs&)>;

struct Workload {
  std::string operation;  // "attention", "attention_backward", "merge", ...
  std::string shape;      // names everything that the numbers depend on
  int shape_number = 0;   // 0: none of the table
  DType dtype = DType::f32;
  Operation kind = Operation::attention;
  Direction direction = Direction::forward;
  double memory = 0;          // bytes of its tensors
  double estimated_flop = 0;  // before anything is allocated; 0: not worth an estimate
  std::string refused;        // why this combination means nothing; empty: it does
  std::function<Prepared(Backend&, const CountExecuted&)> prepare;
};

/// "attention", "attention_backward", "merge", ... in the order in which they run.
const std::vector<std::string>& operation_names();

/// All workloads of a named operation at an attention shape: select_landmarks has one for each policy.
std::vector<Workload> workloads(const std::string& operation, const Shape& shape, DType dtype);

// The parts of `workloads`, each in a file of its own.
Workload attention_workload(const Shape& shape, DType dtype, Direction direction);
Workload merge_workload(const Shape& shape, DType dtype);
Workload window_sizes_workload(const Shape& shape, DType dtype, Direction direction);
Workload energies_workload(const Shape& shape, DType dtype, Direction direction);
Workload select_landmarks_workload(const Shape& shape, DType dtype, Direction direction, SelectionPolicy policy);
Workload rmsnorm_workload(const Shape& shape, DType dtype, Direction direction);
Workload rope_workload(const Shape& shape, DType dtype, Direction direction);
Workload swiglu_workload(const Shape& shape, DType dtype, Direction direction);
Workload cross_entropy_workload(const Shape& shape, DType dtype, Direction direction, std::int64_t most_rows = 1024);
Workload adamw_workload(const Shape& shape, DType dtype);

/// A workload that needs `elements` of the main dtype and `extra` bytes besides, and nothing else settled.
inline Workload start_workload(Operation kind, Direction direction, const Shape& shape, DType dtype, double elements,
                               double extra) {
  Workload work;
  work.operation = std::string(name_of(kind)) + (direction == Direction::backward ? "_backward" : "");
  work.shape_number = shape.number;
  work.dtype = dtype;
  work.kind = kind;
  work.direction = direction;
  work.memory = elements * static_cast<double>(size_of(dtype)) + extra;
  return work;
}

}  // namespace dsalt::benchmark
