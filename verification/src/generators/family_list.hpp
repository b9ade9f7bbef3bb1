// The list of case families that the generators fill, and the tools with which they make tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/verification/generators.hpp"
#include "operations/case_memory.hpp"
#include "random_values.hpp"

namespace dsalt::verification {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Writes the inputs of one case. Every random tensor is named, so its values do not depend on what else the case
/// holds.
class CaseBuilder {
 public:
  CaseBuilder(std::string_view name, Operation op, DType dtype) : dtype_(dtype) {
    case_.name = name;
    case_.op = op;
  }

  DType dtype() const { return dtype_; }
  DType statistics() const { return statistics_dtype(dtype_); }
  Case& get() { return case_; }
  RandomValues random(std::string_view tensor) const { return {case_.name, tensor}; }

  void set(const std::string& attribute, double value) { case_.attributes[attribute] = value; }
  void set(const std::string& attribute, std::int64_t value) { case_.attributes[attribute] = value; }
  void set(const std::string& attribute, int value) { case_.attributes[attribute] = std::int64_t{value}; }
  void set(const std::string& attribute, bool value) { case_.attributes[attribute] = std::int64_t{value}; }
  void set(const std::string& attribute, const char* value) { case_.attributes[attribute] = std::string(value); }

  /// A new contiguous input whose element at row-major position `index` is value(index), rounded once.
  Tensor fill(const std::string& name, const Shape& shape, DType dtype,
              const std::function<double(std::int64_t index)>& value);
  Tensor fill_i32(const std::string& name, const Shape& shape,
                  const std::function<std::int64_t(std::int64_t index)>& value);
  /// Normal deviates times `scale`, in the main dtype or in the statistics dtype.
  Tensor normal(const std::string& name, const Shape& shape, double scale = 1);
  Tensor normal_statistics(const std::string& name, const Shape& shape, double scale = 1);
  Tensor constant(const std::string& name, const Shape& shape, DType dtype, double value);
  Tensor list_i32(const std::string& name, const std::vector<std::int64_t>& values);

  const Tensor& input(const std::string& name) const { return case_.inputs.at(name); }
  /// Replaces a contiguous input by an equal one stored with its dimensions in the given order (outermost first).
  void permute_storage(const std::string& name, const std::vector<int>& order);
  /// Replaces a contiguous input by an equal one stored backwards along a dimension (a negative stride).
  void reverse_storage(const std::string& name, int dim);
  /// Replaces a contiguous input by an equal view into a larger buffer whose other elements are NaN (int32: lowest).
  void embed(const std::string& name);
  /// The same, but the last dimension is whole: rows stay as aligned as they were.
  void embed_rows(const std::string& name);
  /// Replaces a contiguous input by an equal one that starts one element past an aligned address.
  void unalign(const std::string& name);
  /// Replaces a contiguous input by an equal one whose last stride is `step`, with NaN (int32: lowest) in between.
  void space_out(const std::string& name, std::int64_t step);
  /// Gives a contiguous input the stride 0 along a dimension: entry 0 stands for all.
  void repeat_first(const std::string& name, int dim);
  /// Overwrites elements of a contiguous floating input.
  void overwrite(const std::string& name, std::int64_t index, double value);

 private:
  /// Moves an input into a buffer that is NaN (int32: lowest) wherever the view that `take` takes of it is not.
  void move_into(const std::string& name, const Shape& buffer_shape,
                 const std::function<TensorView(const TensorView& buffer)>& take);

  Case case_;
  DType dtype_;
};

using Maker = std::function<void(CaseBuilder&)>;

/// Flags of a variant.
enum : unsigned {
  slow = 0,        // neither
  quick = 1,       // part of the quick tests
  golden = 2 | 1,  // part of `dsalt golden generate`, and quick
};

inline constexpr std::initializer_list<DType> every_dtype = {DType::f64, DType::f32, DType::bf16, DType::f16};
inline constexpr std::initializer_list<DType> wide_dtypes = {DType::f64, DType::f32};
inline constexpr std::initializer_list<DType> half_dtypes = {DType::bf16, DType::f16};

class FamilyList {
 public:
  void begin(std::string name, Operation op, std::string description);
  /// One case per dtype, named "<family>/<variant>_<dtype>".
  void add(const std::string& variant, std::initializer_list<DType> dtypes, unsigned flags, const Maker& maker);

  const std::vector<Family>& families() const { return families_; }
  const std::vector<GeneratedCase>& cases() const { return cases_; }
  const std::vector<Maker>& makers() const { return makers_; }

 private:
  std::vector<Family> families_;
  std::vector<GeneratedCase> cases_;
  std::vector<Maker> makers_;  // parallel to cases_
};

void add_attention_dense(FamilyList& list);
void add_attention_numeric(FamilyList& list);
void add_attention_sparse(FamilyList& list);
void add_attention_batches(FamilyList& list);
void add_attention_paged(FamilyList& list);
void add_attention_few_queries(FamilyList& list);
void add_attention_sparse_tiles(FamilyList& list);
void add_attention_lists(FamilyList& list);
void add_attention_tiles(FamilyList& list);
void add_attention_everything(FamilyList& list);
void add_merge(FamilyList& list);
void add_window_sizes(FamilyList& list);
void add_energies(FamilyList& list);
void add_select_landmarks(FamilyList& list);
void add_rmsnorm(FamilyList& list);
void add_rope(FamilyList& list);
void add_swiglu(FamilyList& list);
void add_cross_entropy(FamilyList& list);
void add_adamw(FamilyList& list);

/// "f64", "f32", "bf16", "f16": the ending of case names.
std::string_view short_name_of(DType dtype);
std::int64_t element_count(const Shape& shape);

}  // namespace dsalt::verification
