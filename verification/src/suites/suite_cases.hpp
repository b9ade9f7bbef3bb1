// Helpers for suites that make their own cases: naming, editing tensors, and taking rows out of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generators/attention_builder.hpp"
#include "suites/suite.hpp"

namespace dsalt::verification {

using CaseMaker = std::function<void(CaseBuilder&)>;

/// A case named "<name>_<dtype>"; its values depend on that name alone.
inline Case make_case(const std::string& name, Operation op, DType dtype, const CaseMaker& maker) {
  CaseBuilder builder(name + "_" + std::string(short_name_of(dtype)), op, dtype);
  maker(builder);
  return builder.get();
}

inline std::string in_dtype(const std::string& name, DType dtype) {
  return name + "_" + std::string(short_name_of(dtype));
}

/// Rows [start, start + length) of dimension `dim`; shares the storage.
Tensor narrowed(const Tensor& tensor, int dim, std::int64_t start, std::int64_t length);
/// The same case with the named inputs, where present, cut to rows [start, start + length) of dimension `dim`.
Case narrowed(const Case& c, const std::vector<std::string>& inputs, int dim, std::int64_t start, std::int64_t length);
/// Rows [start, start + length) of a packed tensor [R,H,...] as a padded one [1,H,length,...]; shares the storage.
Tensor as_padded(const Tensor& packed, std::int64_t start, std::int64_t length);
/// An attention case with a paged cache as one with a contiguous cache, whose tail is NaN.
Case unpaged(const Case& c);
/// The same case without the named inputs and attributes.
Case without(const Case& c, const std::vector<std::string>& names);
/// Only the named outputs, those that are there.
Tensors only(const Tensors& outputs, const std::vector<std::string>& names);

/// A contiguous copy of any view.
Tensor copy_of(const TensorView& view);
/// The same case with every tensor owned by it alone, so that it may be edited.
Case deep_copy(const Case& c);
/// Writes `value` to every element of a floating view.
void fill_with(const TensorView& view, double value);
/// NaN in every element from row `from` on along dimension `dim`.
void poison_rows(const TensorView& view, int dim, std::int64_t from, double value = not_a_number);

}  // namespace dsalt::verification
