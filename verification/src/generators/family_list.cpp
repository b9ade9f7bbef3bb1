// Families, cases and the tensors in them; contract in family_list.hpp and dsalt/verification/generators.hpp.
#include "generators/family_list.hpp"

#include <cstring>
#include <unordered_map>

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {

std::string_view short_name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
  }
  return "unknown";
}

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

Tensor CaseBuilder::fill(const std::string& name, const Shape& shape, DType dtype,
                         const std::function<double(std::int64_t)>& value) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  const std::int64_t count = tensor.view().size();
  for (std::int64_t index = 0; index < count; ++index) internal::store_double(tensor, index, value(index));
  case_.inputs[name] = tensor;
  return tensor;
}

Tensor CaseBuilder::fill_i32(const std::string& name, const Shape& shape,
                             const std::function<std::int64_t(std::int64_t)>& value) {
  const Tensor tensor = Tensor::empty(shape, DType::i32);
  const std::int64_t count = tensor.view().size();
  for (std::int64_t index = 0; index < count; ++index)
    *tensor.view().at<std::int32_t>(index) = static_cast<std::int32_t>(value(index));
  case_.inputs[name] = tensor;
  return tensor;
}

Tensor CaseBuilder::normal(const std::string& name, const Shape& shape, double scale) {
  const RandomValues values = random(name);
  return fill(name, shape, dtype_, [&](std::int64_t index) { return scale * values.normal(index); });
}

Tensor CaseBuilder::normal_statistics(const std::string& name, const Shape& shape, double scale) {
  const RandomValues values = random(name);
  return fill(name, shape, statistics(), [&](std::int64_t index) { return scale * values.normal(index); });
}

Tensor CaseBuilder::constant(const std::string& name, const Shape& shape, DType dtype, double value) {
  return fill(name, shape, dtype, [&](std::int64_t) { return value; });
}

Tensor CaseBuilder::list_i32(const std::string& name, const std::vector<std::int64_t>& values) {
  return fill_i32(name, {static_cast<std::int64_t>(values.size())},
                  [&](std::int64_t index) { return values[static_cast<std::size_t>(index)]; });
}

void CaseBuilder::permute_storage(const std::string& name, const std::vector<int>& order) {
  const Tensor source = input(name);
  TensorView view = source.view();
  std::int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    const auto n = static_cast<std::size_t>(*dim);
    view.strides[n] = stride;
    stride *= view.shape[n];
  }
  const Tensor storage = Tensor::empty({stride}, view.dtype);
  view.data = storage.view().data;
  copy_elements(source, view);
  case_.inputs[name] = Tensor(storage.storage(), view);
}

void CaseBuilder::reverse_storage(const std::string& name, int dim) {
  const Tensor source = input(name);
  const auto n = static_cast<std::size_t>(dim);
  const Tensor buffer = Tensor::empty(shape_of(source), source.view().dtype);
  TensorView view = buffer;
  const std::int64_t last = (view.shape[n] - 1) * view.strides[n];
  view.data = view.at<char>(last * static_cast<std::int64_t>(size_of(view.dtype)));
  view.strides[n] = -view.strides[n];
  copy_elements(source, view);
  case_.inputs[name] = Tensor(buffer.storage(), view);
}

void CaseBuilder::move_into(const std::string& name, const Shape& buffer_shape,
                            const std::function<TensorView(const TensorView& buffer)>& take) {
  const Tensor source = input(name);
  const Tensor buffer = Tensor::empty(buffer_shape, source.view().dtype);
  for (std::int64_t index = 0; index < buffer.view().size(); ++index) {
    if (source.view().dtype == DType::i32)
      *buffer.view().at<std::int32_t>(index) = std::numeric_limits<std::int32_t>::min();
    else
      internal::store_double(buffer, index, not_a_number);
  }
  const TensorView view = take(buffer);
  copy_elements(source, view);
  case_.inputs[name] = Tensor(buffer.storage(), view);
}

void CaseBuilder::embed(const std::string& name) {
  const Shape inner = shape_of(input(name));
  Shape outer = inner;
  for (std::int64_t& extent : outer) extent += 3;
  move_into(name, outer, [&](TensorView view) {
    for (int dim = 0; dim < view.rank; ++dim) view = view.narrow(dim, dim % 3, inner[static_cast<std::size_t>(dim)]);
    return view;
  });
}

void CaseBuilder::embed_rows(const std::string& name) {
  const Shape inner = shape_of(input(name));
  Shape outer = inner;
  for (std::size_t dim = 0; dim + 1 < outer.size(); ++dim) outer[dim] += 3;
  move_into(name, outer, [&](TensorView view) {
    for (int dim = 0; dim + 1 < view.rank; ++dim)
      view = view.narrow(dim, 1 + dim % 2, inner[static_cast<std::size_t>(dim)]);
    return view;
  });
}

void CaseBuilder::unalign(const std::string& name) {
  const TensorView whole = input(name);
  move_into(name, {whole.size() + 1}, [&](const TensorView& buffer) {
    TensorView view = whole;
    view.data = buffer.at<char>(static_cast<std::int64_t>(size_of(whole.dtype)));
    return view;
  });
}

void CaseBuilder::space_out(const std::string& name, std::int64_t step) {
  const Shape inner = shape_of(input(name));
  Shape outer = inner;
  outer.back() *= step;
  move_into(name, outer, [&](TensorView view) {
    view.shape[inner.size() - 1] = inner.back();
    view.strides[inner.size() - 1] = step;
    return view;
  });
}

void CaseBuilder::repeat_first(const std::string& name, int dim) {
  const Tensor source = input(name);
  TensorView view = source;
  view.strides[static_cast<std::size_t>(dim)] = 0;
  case_.inputs[name] = Tensor(source.storage(), view);
}

void CaseBuilder::overwrite(const std::string& name, std::int64_t index, double value) {
  internal::store_double(input(name), index, value);
}

void FamilyList::begin(std::string name, Operation op, std::string description) {
  families_.push_back({std::move(name), op, std::move(description)});
}

void FamilyList::add(const std::string& variant, std::initializer_list<DType> dtypes, unsigned flags,
                     const Maker& maker) {
  const Family& family = families_.back();
  for (const DType dtype : dtypes) {
    const std::string name = family.name + "/" + variant + "_" + std::string(short_name_of(dtype));
    cases_.push_back({name, family.name, family.op, dtype, (flags & quick) != 0, (flags & golden) == golden});
    makers_.push_back(maker);
  }
}

namespace {

struct Catalogue {
  FamilyList list;
  std::unordered_map<std::string, std::size_t> index;
};

const Catalogue& catalogue() {
  static const Catalogue all = [] {
    Catalogue made;
    add_attention_dense(made.list);
    add_attention_numeric(made.list);
    add_attention_sparse(made.list);
    add_attention_batches(made.list);
    add_attention_paged(made.list);
    add_attention_tiles(made.list);
    add_attention_sparse_tiles(made.list);
    add_attention_lists(made.list);
    add_attention_few_queries(made.list);
    add_attention_everything(made.list);
    add_merge(made.list);
    add_window_sizes(made.list);
    add_energies(made.list);
    add_select_landmarks(made.list);
    add_rmsnorm(made.list);
    add_rope(made.list);
    add_swiglu(made.list);
    add_cross_entropy(made.list);
    add_adamw(made.list);
    for (std::size_t n = 0; n < made.list.cases().size(); ++n)
      if (!made.index.emplace(made.list.cases()[n].name, n).second)
        throw InvalidArgument("case name " + made.list.cases()[n].name + " is given twice");
    return made;
  }();
  return all;
}

}  // namespace

const std::vector<Family>& families() { return catalogue().list.families(); }
const std::vector<GeneratedCase>& generated_cases() { return catalogue().list.cases(); }

Case generate_case(std::string_view name) {
  const Catalogue& all = catalogue();
  const auto found = all.index.find(std::string(name));
  if (found == all.index.end())
    throw InvalidArgument("case: got \"" + std::string(name) + "\", need the name of a generated case");
  const GeneratedCase& which = all.list.cases()[found->second];
  CaseBuilder builder(which.name, which.op, which.dtype);
  all.list.makers()[found->second](builder);
  return std::move(builder.get());
}

}  // namespace dsalt::verification
