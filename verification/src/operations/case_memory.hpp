// The tensors of one evaluation, on the backend's device: inputs go there, strides and all (host backends use them in
// place), outputs start from a stated value and come back as contiguous host tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/verification/case.hpp"

namespace dsalt::verification {

using Shape = std::vector<std::int64_t>;

class CaseMemory {
 public:
  CaseMemory(Backend& backend, const Case& c);

  /// The named input on the device; an absent view when the case has none.
  TensorView input(std::string_view name);
  /// A new output whose elements are all `initial` (0 or -infinity). InvalidArgument when the outputs together would
  /// outgrow any sensible relation to the inputs, so that a hostile attribute cannot ask for endless memory.
  TensorView output(const std::string& name, const Shape& shape, DType dtype, double initial = 0);
  /// An output in the shape and dtype of an input.
  TensorView output_like(const std::string& name, std::string_view input_name);

  /// Waits for the backend and returns all outputs in host memory.
  Tensors collect();

 private:
  bool on_host() const { return backend_.device().type == DeviceType::cpu; }

  Backend& backend_;
  const Case& case_;
  std::uint64_t bytes_left_;
  std::map<std::string, Tensor> device_inputs_;
  std::map<std::string, Tensor> device_outputs_;
  Tensors host_outputs_;
};

/// All dimensions of a view but the last, followed by `last`.
Shape with_last(const TensorView& view, std::int64_t last);
Shape shape_of(const TensorView& view);

}  // namespace dsalt::verification
