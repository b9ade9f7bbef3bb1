#include "report/report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace dsalt::verification {
namespace {

std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t slash = name.find('/');
    parts.push_back(name.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    name.remove_prefix(slash + 1);
  }
}

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::size_t dtype_order(std::string_view dtype) {
  constexpr std::array<std::string_view, 4> order = {"f64", "f32", "bf16", "f16"};
  return static_cast<std::size_t>(std::find(order.begin(), order.end(), dtype) - order.begin());
}

/// For a POSIX shell.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

std::string operation_of(std::string_view case_name) {
  const auto parts = parts_of(case_name);
  for (const std::string_view part : parts)
    for (const Operation op : all_operations)
      if (part == name_of(op)) return std::string(part);
  // the text suite names its stages: "rope_q/n256_h4_d32_f32"
  for (const std::string_view part : parts)
    for (const Operation op : all_operations)
      if (part.starts_with(name_of(op))) return std::string(name_of(op));
  return std::string(parts.front());
}

std::string dtype_of(std::string_view case_name) {
  for (const std::string_view dtype : {"f64", "f32", "bf16", "f16"})
    if (case_name.ends_with("_" + std::string(dtype))) return std::string(dtype);
  return {};
}

std::string rerun_command(const Result& result, const ReportHeader& header) {
  const auto& known = suites();
  const bool is_suite =
      std::any_of(known.begin(), known.end(), [&](const SuiteInfo& s) { return s.name == result.suite; });
  if (!is_suite) return header.command;
  std::string command = "dsalt verify --backend " + header.backend + " --suite " + result.suite;
  if (header.deterministic) command += " --deterministic";
  if (result.suite == "text") command += " --text " + quoted(header.text_file);
  return command + " --case " + quoted(result.name);
}

std::string index_string(const std::vector<std::int64_t>& index) {
  std::string text = "[";
  for (const std::int64_t i : index) text += (text.size() > 1 ? "," : "") + std::to_string(i);
  return text + "]";
}

std::string short_number(double value) { return printed("%.4g", value); }
std::string exact_number(double value) { return printed("%.17g", value); }

std::string seconds_string(double seconds) {
  if (seconds >= 100) return printed("%.0f s", seconds);
  return printed(seconds >= 0.0995 ? "%.1f s" : "%.3f s", seconds);
}

std::vector<const OutputResult*> failed_outputs(const Result& result) {
  std::vector<const OutputResult*> failed;
  for (const OutputResult& output : result.outputs)
    if (!output.comparison.passed) failed.push_back(&output);
  std::stable_sort(failed.begin(), failed.end(), [](const OutputResult* a, const OutputResult* b) {
    return a->comparison.max_ratio > b->comparison.max_ratio;
  });
  return failed;
}

std::string worst_element(const Comparison& comparison) {
  if (comparison.count == 0 || (comparison.worst_index.empty() && comparison.count != 1)) return {};
  std::string text = "at " + index_string(comparison.worst_index) + ": got " + exact_number(comparison.worst_actual) +
                     ", definition " + exact_number(comparison.worst_reference);
  if (comparison.worst_bound > 0)
    text += ", error " + short_number(std::fabs(comparison.worst_actual - comparison.worst_reference)) + ", allowed " +
            short_number(comparison.worst_bound);
  return text;
}

std::vector<SuiteSummary> summarise(const std::vector<Result>& results) {
  std::vector<SuiteSummary> list;
  for (const Result& result : results) {
    auto found = std::find_if(list.begin(), list.end(), [&](const SuiteSummary& s) { return s.suite == result.suite; });
    if (found == list.end()) found = list.insert(list.end(), SuiteSummary{result.suite, {}, 0});
    found->seconds += result.seconds;
    switch (result.status) {
      case Status::passed: ++found->totals.passed; break;
      case Status::failed: ++found->totals.failed; break;
      case Status::unsupported: ++found->totals.unsupported; break;
      case Status::skipped: ++found->totals.skipped; break;
    }
  }
  return list;
}

std::vector<std::pair<std::string, std::size_t>> reasons(const std::vector<Result>& results, Status status) {
  std::map<std::string, std::size_t> counts;
  for (const Result& result : results)
    if (result.status == status) ++counts[result.message];
  std::vector<std::pair<std::string, std::size_t>> list(counts.begin(), counts.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return list;
}

std::vector<Accuracy> accuracies(const std::vector<Result>& results) {
  std::vector<Accuracy> list;
  for (const Result& result : results)
    for (const OutputResult& output : result.outputs) {
      const Comparison& c = output.comparison;
      if (!(c.max_factor > 0) || c.count == 0) continue;
      const std::string operation = operation_of(result.name), dtype = dtype_of(result.name);
      auto found = std::find_if(list.begin(), list.end(), [&](const Accuracy& a) {
        return a.suite == result.suite && a.operation == operation && a.dtype == dtype;
      });
      if (found == list.end())
        found = list.insert(list.end(), Accuracy{result.suite, operation, dtype, -1, 0, {}, 0, {}});
      const double worst = c.max_ratio / c.max_factor;
      if (!(worst <= found->worst)) {
        found->worst = worst;
        found->worst_case = result.name + " " + output.output;
      }
      if (c.rms_factor > 0) found->worst_rms = std::max(found->worst_rms, c.rms_ratio / c.rms_factor);
      found->elements += c.count;
      for (const float ratio : c.ratios) found->sample.push_back(static_cast<float>(ratio / c.max_factor));
    }
  // suites and operations stay in the order of the results, dtypes are put in one order
  std::vector<Accuracy> ordered;
  for (const Accuracy& first : list) {
    const auto same = [&](const Accuracy& a) { return a.suite == first.suite && a.operation == first.operation; };
    if (std::any_of(ordered.begin(), ordered.end(), same)) continue;
    const auto begin = static_cast<std::ptrdiff_t>(ordered.size());
    std::copy_if(list.begin(), list.end(), std::back_inserter(ordered), same);
    std::stable_sort(ordered.begin() + begin, ordered.end(),
                     [](const Accuracy& a, const Accuracy& b) { return dtype_order(a.dtype) < dtype_order(b.dtype); });
  }
  return ordered;
}

}  // namespace dsalt::verification
