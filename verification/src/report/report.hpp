// Private to the reports: what all four formats say about a result.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsalt/verification/report.hpp"

namespace dsalt::verification {

/// "attention" for "batch/attention/sparse_f32": the part of a case's name that is an operation, else its first part.
std::string operation_of(std::string_view case_name);
/// "f32" for "attention/full_f32"; empty when the name does not end in a dtype.
std::string dtype_of(std::string_view case_name);

/// The command that runs this one case again.
std::string rerun_command(const Result& result, const ReportHeader& header);
/// "[0,3,17]".
std::string index_string(const std::vector<std::int64_t>& index);
/// Four significant digits; "0" and "inf" as such.
std::string short_number(double value);
/// As many digits as tell two doubles apart.
std::string exact_number(double value);
std::string seconds_string(double seconds);

/// Outputs that failed, first the worst.
std::vector<const OutputResult*> failed_outputs(const Result& result);
/// "got -7.1, definition -7.2, allowed error 1e-3" for an output with a worst element; empty otherwise.
std::string worst_element(const Comparison& comparison);

struct SuiteSummary {
  std::string suite;
  Totals totals;
  double seconds = 0;
};
/// Per suite, in the order of the results.
std::vector<SuiteSummary> summarise(const std::vector<Result>& results);
/// How often each reason is given by results of this status, most frequent first.
std::vector<std::pair<std::string, std::size_t>> reasons(const std::vector<Result>& results, Status status);

/// Errors in units of what is allowed (1: the bound), for one operation and dtype of one suite.
struct Accuracy {
  std::string suite, operation, dtype;
  double worst = 0;        // largest error / bound
  double worst_rms = 0;    // largest RMS / allowed RMS
  std::string worst_case;  // "attention/full_f32 dk"
  std::int64_t elements = 0;
  std::vector<float> sample;  // error / bound
};
/// Only comparisons with a tolerance; equal-bits checks have none.
std::vector<Accuracy> accuracies(const std::vector<Result>& results);

}  // namespace dsalt::verification
