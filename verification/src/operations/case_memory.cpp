// Device residence of a case's tensors; contract in case_memory.hpp.
#include "operations/case_memory.hpp"

#include <algorithm>

#include "device_memory.hpp"
#include "dsalt/errors.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {
namespace {

// Outputs are of the size of the inputs, except that lists grow with k: 1 GiB beyond 64 times the inputs is no case.
constexpr std::uint64_t base_output_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t output_bytes_per_input_byte = 64;

std::uint64_t bytes_of(const TensorView& view) { return static_cast<std::uint64_t>(view.size()) * size_of(view.dtype); }

/// Bytes of a tensor, or nothing when that is more than `limit`. A zero extent does not excuse giant other ones.
bool bytes_within(const Shape& shape, DType dtype, std::uint64_t limit, std::uint64_t& bytes) {
  std::uint64_t product = size_of(dtype);
  bool is_empty = false;
  for (const std::int64_t extent : shape) {
    is_empty = is_empty || extent == 0;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1));
    if (product > limit / factor) return false;
    product *= factor;
  }
  bytes = is_empty ? 0 : product;
  return true;
}

void fill(const TensorView& view, double value) {
  const auto store = [&](std::int64_t offset) { internal::store_double(view, offset, value); };
  internal::for_each_element(store, view);
}

}  // namespace

Shape shape_of(const TensorView& view) {
  return Shape(view.shape.begin(), view.shape.begin() + std::max(view.rank, 0));
}

Shape with_last(const TensorView& view, std::int64_t last) {
  Shape shape = shape_of(view);
  shape.back() = last;
  return shape;
}

CaseMemory::CaseMemory(Backend& backend, const Case& c) : backend_(backend), case_(c) {
  std::uint64_t input_bytes = 0;
  for (const auto& [name, tensor] : c.inputs) input_bytes += bytes_of(tensor);
  bytes_left_ = base_output_bytes + output_bytes_per_input_byte * input_bytes;
}

TensorView CaseMemory::input(std::string_view name) {
  const auto found = case_.inputs.find(std::string(name));
  if (found == case_.inputs.end()) return {};
  if (on_host()) return found->second;
  const auto known = device_inputs_.find(found->first);
  if (known != device_inputs_.end()) return known->second;
  return device_inputs_.emplace(found->first, uploaded(backend_, found->second)).first->second;
}

TensorView CaseMemory::output(const std::string& name, const Shape& shape, DType dtype, double initial) {
  std::uint64_t bytes = 0;
  if (!bytes_within(shape, dtype, bytes_left_, bytes))
    throw InvalidArgument(name + ": got an output of " + std::string(name_of(dtype)) + " " + shape_string(shape) +
                          ", need one in proportion to the inputs: at most " + std::to_string(bytes_left_) + " bytes");
  bytes_left_ -= bytes;
  Tensor host = Tensor::zeros(shape, dtype);
  if (initial != 0) fill(host, initial);
  host_outputs_[name] = host;
  if (on_host()) return host;
  const Tensor device = dsalt::empty(backend_, shape, dtype);
  upload(backend_, device.view().data, host.view().data, bytes);
  device_outputs_[name] = device;
  return device;
}

TensorView CaseMemory::output_like(const std::string& name, std::string_view input_name) {
  const TensorView& view = case_.inputs.at(std::string(input_name));
  return output(name, shape_of(view), view.dtype);
}

Tensors CaseMemory::collect() {
  backend_.synchronize();
  for (const auto& [name, device] : device_outputs_) {
    const TensorView& host = host_outputs_.at(name);
    download(backend_, host.data, device.view().data, bytes_of(host));
  }
  return std::move(host_outputs_);
}

}  // namespace dsalt::verification
