// Every operation in every direction once, on small problems whose tensors are in a backend's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dsalt/dsalt.hpp"

namespace gpu_test {

using Shape = std::vector<std::int64_t>;

struct Call {
  std::string name;                          // "attention_backward"
  std::function<void(dsalt::Backend&)> run;  // hands the work to a backend on the tensors' device
  std::vector<dsalt::Tensor> outputs;        // in the backend's memory; zeros until it ran
  std::vector<dsalt::Tensor> inputs = {};    // kept alive
};

/// Calls whose tensors `backend` owns. The numbers depend on the names alone, so two backends get the same.
std::vector<Call> every_call(dsalt::Backend& backend, dsalt::DType dtype);

/// A host tensor in the backend's memory.
dsalt::Tensor on_device(dsalt::Backend& backend, const dsalt::Tensor& host);
/// A contiguous tensor of the backend as a host tensor; waits for the backend.
dsalt::Tensor on_host(dsalt::Backend& backend, const dsalt::TensorView& view);
/// Numbers of about normal spread that follow from the seed.
dsalt::Tensor random_host(const Shape& shape, dsalt::DType dtype, std::uint64_t seed, double scale = 1,
                          double mean = 0);

/// All outputs as doubles, one after the other; waits for the backend.
std::vector<double> outputs_of(dsalt::Backend& backend, const Call& call);
/// Writes zeros to all outputs.
void clear_outputs(dsalt::Backend& backend, const Call& call);

/// Largest difference over the largest magnitude of `expected`; infinite for other sizes or where one alone is NaN.
double difference(const std::vector<double>& actual, const std::vector<double>& expected);

/// What two backends may differ by in these problems of unit size, where nothing is judged but that the right work was
/// done: some tens of roundings.
inline double allowed(dsalt::DType dtype) { return dtype == dsalt::DType::bf16 ? 0.05 : 1e-3; }

}  // namespace gpu_test
