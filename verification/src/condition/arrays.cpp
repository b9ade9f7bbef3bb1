// Tensors and attributes of a case as the conditions read them.
#include "condition/condition.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {

Array dense(const TensorView& view) {
  Array array;
  array.shape.assign(view.shape.begin(), view.shape.begin() + view.rank);
  array.data.reserve(static_cast<std::size_t>(view.size()));
  internal::for_each_element([&](std::int64_t at) { array.data.push_back(internal::load_double(view, at)); }, view);
  return array;
}

Array dense_input(const Case& c, std::string_view name) {
  const auto found = c.inputs.find(std::string(name));
  return found == c.inputs.end() ? Array{} : dense(found->second);
}

double number_or(const Case& c, std::string_view name, double fallback) {
  return find_real(c, name).value_or(fallback);
}

std::int64_t integer_or(const Case& c, std::string_view name, std::int64_t fallback) {
  return find_integer(c, name).value_or(fallback);
}

Tensor zeros_like(const Array& array) { return Tensor::zeros(array.shape, DType::f64); }

double* values(const Tensor& tensor) { return tensor.view().at<double>(0); }

}  // namespace dsalt::verification
