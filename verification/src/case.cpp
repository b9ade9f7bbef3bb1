// What a case may contain (docs/semantics.md, "Case files"), checked against the operation's table entry.
#include "dsalt/verification/case.hpp"

#include <algorithm>
#include <cmath>

#include "dsalt/errors.hpp"
#include "operations/operation_case.hpp"

namespace dsalt::verification {
namespace {

std::string quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

/// "a, b, c"
template <class Rules>
std::string names_of(const Rules& rules) {
  std::string text;
  for (const auto& rule : rules) text += (text.empty() ? "" : ", ") + std::string(rule.name);
  return text.empty() ? "none" : text;
}

/// An int64, or a float64 whose value is whole.
std::optional<std::int64_t> as_integer(const Attribute& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  const auto* real = std::get_if<double>(&value);
  if (!real || !(std::fabs(*real) < 0x1p63) || std::trunc(*real) != *real) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::optional<double> as_real(const Attribute& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  return std::nullopt;
}

std::string value_string(const Attribute& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return "int64 " + std::to_string(*integer);
  if (const auto* real = std::get_if<double>(&value)) return "float64 " + std::to_string(*real);
  return "string " + quoted(std::get<std::string>(value));
}

void check_attribute(const AttributeRule& rule, const Attribute& value) {
  const auto refuse = [&](std::string_view need) {
    throw InvalidArgument(std::string(rule.name) + ": got " + value_string(value) + ", need " + std::string(need));
  };
  switch (rule.kind) {
    case AttributeKind::integer:
      if (!as_integer(value)) refuse("an int64");
      return;
    case AttributeKind::real:
      if (!as_real(value)) refuse("a float64");
      return;
    case AttributeKind::boolean: {
      const auto integer = as_integer(value);
      if (!integer || (*integer != 0 && *integer != 1)) refuse("an int64 0 or 1");
      return;
    }
    case AttributeKind::text:
      if (!std::holds_alternative<std::string>(value)) refuse("a string");
      return;
  }
}

bool dtype_allowed(TensorKind kind, DType dtype, DType main) {
  const DType statistics = statistics_dtype(main);
  switch (kind) {
    case TensorKind::floating: return is_floating(dtype);
    case TensorKind::statistics_floating: return dtype == DType::f32 || dtype == DType::f64;
    case TensorKind::like_main: return dtype == main;
    case TensorKind::statistics: return dtype == statistics;
    case TensorKind::main_or_statistics: return dtype == main || dtype == statistics;
    case TensorKind::window: return dtype == DType::i32 || dtype == statistics;
    case TensorKind::companion: return is_floating(dtype) && (dtype == DType::f64) == (main == DType::f64);
    case TensorKind::index: return dtype == DType::i32;
  }
  return false;
}

std::string allowed_dtypes(TensorKind kind, DType main) {
  const std::string like(name_of(main)), statistics(name_of(statistics_dtype(main)));
  switch (kind) {
    case TensorKind::floating: return "float64, float32, bfloat16 or float16";
    case TensorKind::statistics_floating: return "float64 or float32";
    case TensorKind::like_main: return like + " like the main input";
    case TensorKind::statistics: return statistics;
    case TensorKind::main_or_statistics: return like == statistics ? like : like + " or " + statistics;
    case TensorKind::window: return "int32 or " + statistics;
    case TensorKind::companion: return main == DType::f64 ? "float64" : "float32, bfloat16 or float16";
    case TensorKind::index: return "int32";
  }
  return {};
}

void check_input(const InputRule& rule, const TensorView& view, DType main) {
  const std::string name(rule.name);
  if (!view.present()) throw InvalidArgument(name + ": got no tensor, need one");
  if (view.device.type != DeviceType::cpu)
    throw InvalidArgument(name + ": got a tensor on " + to_string(view.device) + ", need a host tensor");
  if (!dtype_allowed(rule.kind, view.dtype, main))
    throw InvalidArgument(name + ": got " + to_string(view) + ", need " + allowed_dtypes(rule.kind, main));
  if (rule.ranks.empty() || rule.ranks.find(static_cast<char>('0' + view.rank)) != std::string_view::npos) return;
  std::string ranks;
  for (const char digit : rule.ranks) ranks += (ranks.empty() ? "" : " or ") + std::string(1, digit);
  throw InvalidArgument(name + ": got " + to_string(view) + ", need rank " + ranks);
}

/// Every item has a rule, every required rule an item, every companion is there.
template <class Rules, class Items>
void check_names(std::string_view what, std::string_view op, const Rules& rules, const Items& items) {
  for (const auto& [name, item] : items)
    if (std::none_of(rules.begin(), rules.end(), [&, &key = name](const auto& rule) { return rule.name == key; }))
      throw InvalidArgument(name + ": unknown " + std::string(what) + " of " + std::string(op) + "; known are " +
                            names_of(rules));
  for (const auto& rule : rules) {
    const bool given = items.count(std::string(rule.name)) > 0;
    if (rule.required && !given)
      throw InvalidArgument(std::string(rule.name) + ": missing " + std::string(what) + " of " + std::string(op));
    if (given && !rule.needs.empty() && items.count(std::string(rule.needs)) == 0)
      throw InvalidArgument(std::string(rule.needs) + ": missing " + std::string(what) + "; " + std::string(rule.name) +
                            " needs it");
  }
}

}  // namespace

bool has_input(const Case& c, std::string_view name) { return c.inputs.count(std::string(name)) > 0; }

std::optional<std::int64_t> find_integer(const Case& c, std::string_view name) {
  const auto found = c.attributes.find(std::string(name));
  return found == c.attributes.end() ? std::nullopt : as_integer(found->second);
}

std::optional<double> find_real(const Case& c, std::string_view name) {
  const auto found = c.attributes.find(std::string(name));
  return found == c.attributes.end() ? std::nullopt : as_real(found->second);
}

bool find_boolean(const Case& c, std::string_view name) { return find_integer(c, name).value_or(0) != 0; }

std::string text_attribute(const Case& c, std::string_view name) {
  return std::get<std::string>(c.attributes.at(std::string(name)));
}

Operation operation_from_name(std::string_view name) {
  std::string known;
  for (const Operation op : all_operations) {
    if (name == name_of(op)) return op;
    known += (known.empty() ? "" : ", ") + std::string(name_of(op));
  }
  throw InvalidArgument("op: " + quoted(name) + " is not an operation; known are " + known);
}

DType main_dtype(const Case& c) {
  const std::string name(operation_case(c.op).main_input);
  const auto found = c.inputs.find(name);
  if (found == c.inputs.end()) throw InvalidArgument(name + ": missing input of " + std::string(name_of(c.op)));
  return found->second.view().dtype;
}

std::vector<std::string> expected_outputs(const Case& c) { return operation_case(c.op).outputs(c); }

void check_schema(const Case& c) {
  const OperationCase& entry = operation_case(c.op);
  const std::string_view op = name_of(c.op);
  check_names("attribute", op, entry.attributes, c.attributes);
  check_names("input", op, entry.inputs, c.inputs);
  for (const AttributeRule& rule : entry.attributes)
    if (const auto found = c.attributes.find(std::string(rule.name)); found != c.attributes.end())
      check_attribute(rule, found->second);
  const DType main = main_dtype(c);
  for (const InputRule& rule : entry.inputs)
    if (const auto found = c.inputs.find(std::string(rule.name)); found != c.inputs.end())
      check_input(rule, found->second, main);
  const std::vector<std::string> outputs = entry.outputs(c);
  for (const auto& [name, tensor] : c.outputs)
    if (std::find(outputs.begin(), outputs.end(), name) == outputs.end())
      throw InvalidArgument(name + ": unknown output; this " + std::string(op) + " case has " + [&] {
        std::string text;
        for (const std::string& known : outputs) text += (text.empty() ? "" : ", ") + known;
        return text;
      }());
}

Case to_double(const Case& c) {
  Case exact = c;
  for (Tensors* tensors : {&exact.inputs, &exact.outputs})
    for (auto& [name, tensor] : *tensors) {
      const TensorView& view = tensor.view();
      if (!is_floating(view.dtype)) continue;
      Tensor wide = Tensor::empty(std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), DType::f64);
      copy_elements(view, wide);
      tensor = wide;
    }
  return exact;
}

}  // namespace dsalt::verification
