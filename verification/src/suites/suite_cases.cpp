#include "suites/suite_cases.hpp"

#include "internal/elements.hpp"

namespace dsalt::verification {

Tensor narrowed(const Tensor& tensor, int dim, std::int64_t start, std::int64_t length) {
  return {tensor.storage(), tensor.view().narrow(dim, start, length)};
}

Case narrowed(const Case& c, const std::vector<std::string>& inputs, int dim, std::int64_t start, std::int64_t length) {
  Case cut = c;
  for (const std::string& name : inputs)
    if (const auto found = cut.inputs.find(name); found != cut.inputs.end())
      found->second = narrowed(found->second, dim, start, length);
  return cut;
}

Tensor as_padded(const Tensor& packed, std::int64_t start, std::int64_t length) {
  TensorView view = packed.view().narrow(0, start, length).transpose(0, 1);
  for (int dim = view.rank; dim > 0; --dim) {
    const auto n = static_cast<std::size_t>(dim);
    view.shape[n] = view.shape[n - 1];
    view.strides[n] = view.strides[n - 1];
  }
  view.shape[0] = 1;
  view.strides[0] = 0;
  ++view.rank;
  return {packed.storage(), view};
}

Case unpaged(const Case& c) {
  const TensorView table = c.inputs.at("page_table"), lengths = c.inputs.at("k_lengths");
  Case contiguous = without(c, {"page_table"});
  for (const char* name : {"k", "v"}) {
    const TensorView pool = c.inputs.at(name);
    const std::int64_t page = pool.shape[2];
    const Tensor rows =
        Tensor::empty({table.shape[0], pool.shape[1], table.shape[1] * page, pool.shape[3]}, pool.dtype);
    fill_with(rows, not_a_number);
    for (std::int64_t b = 0; b < table.shape[0]; ++b)
      for (std::int64_t j = 0; j < internal::load_i32(lengths, b); ++j) {
        const std::int64_t from = internal::load_i32(table.select(0, b), j / page);
        copy_elements(pool.select(0, from).narrow(1, j % page, 1), rows.view().select(0, b).narrow(1, j, 1));
      }
    contiguous.inputs[name] = rows;
  }
  return contiguous;
}

Case without(const Case& c, const std::vector<std::string>& names) {
  Case rest = c;
  for (const std::string& name : names) {
    rest.inputs.erase(name);
    rest.attributes.erase(name);
  }
  return rest;
}

Tensors only(const Tensors& outputs, const std::vector<std::string>& names) {
  Tensors some;
  for (const std::string& name : names)
    if (const auto found = outputs.find(name); found != outputs.end()) some.insert(*found);
  return some;
}

Tensor copy_of(const TensorView& view) {
  Tensor copy = Tensor::empty({view.shape.data(), static_cast<std::size_t>(view.rank)}, view.dtype);
  copy_elements(view, copy);
  return copy;
}

Case deep_copy(const Case& c) {
  Case copy = c;
  for (auto& [name, tensor] : copy.inputs) tensor = copy_of(tensor);
  return copy;
}

void fill_with(const TensorView& view, double value) {
  internal::for_each_element([&](std::int64_t at) { internal::store_double(view, at, value); }, view);
}

void poison_rows(const TensorView& view, int dim, std::int64_t from, double value) {
  const std::int64_t length = view.shape[static_cast<std::size_t>(dim)];
  if (from < length) fill_with(view.narrow(dim, from, length - from), value);
}

}  // namespace dsalt::verification
