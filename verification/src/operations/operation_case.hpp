// How each operation appears in a case: its attributes, inputs and outputs (docs/semantics.md, "Case files"), and how a
// case becomes a call. One table entry per operation; the entries live in the other files of this folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operations/case_memory.hpp"

namespace dsalt::verification {

enum class AttributeKind : std::uint8_t { integer, real, boolean, text };

struct AttributeRule {
  std::string_view name;
  AttributeKind kind;
  bool required = false;
  std::string_view needs = {};  // another attribute that must accompany it
};

/// Which dtypes an input may have; `main` is the case's main input.
enum class TensorKind : std::uint8_t {
  floating,             // any floating dtype
  statistics_floating,  // float32 or float64
  like_main,            // the dtype of main
  statistics,           // float64 when main is float64, else float32
  main_or_statistics,
  window,     // int32 or statistics
  companion,  // any floating dtype, but float64 exactly when main is
  index,      // int32
};

struct InputRule {
  std::string_view name;
  TensorKind kind;
  std::string_view ranks;  // allowed ranks as digits: "34"; empty: any
  bool required = false;
  std::string_view needs = {};  // another input that must accompany it
};

struct OperationCase {
  std::string_view main_input;
  std::vector<AttributeRule> attributes;
  std::vector<InputRule> inputs;
  std::vector<std::string_view> gradient_inputs;       // any of these present: the backward pass runs
  std::vector<std::string> (*outputs)(const Case& c);  // names, forward ones first
  void (*run)(Backend& backend, const Case& c, CaseMemory& memory);
};

const OperationCase& operation_case(Operation op);

const OperationCase& attention_case();
const OperationCase& merge_case();
const OperationCase& window_sizes_case();
const OperationCase& energies_case();
const OperationCase& select_landmarks_case();
const OperationCase& rmsnorm_case();
const OperationCase& rope_case();
const OperationCase& swiglu_case();
const OperationCase& cross_entropy_case();
const OperationCase& adamw_case();

// Attributes of a case that has passed check_schema; the optional forms give nothing when absent.
bool has_input(const Case& c, std::string_view name);
std::optional<std::int64_t> find_integer(const Case& c, std::string_view name);
std::optional<double> find_real(const Case& c, std::string_view name);
bool find_boolean(const Case& c, std::string_view name);  // absent: false
std::string text_attribute(const Case& c, std::string_view name);

}  // namespace dsalt::verification
