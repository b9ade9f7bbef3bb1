// JSON for programs. Numbers that JSON cannot hold are the strings "nan", "inf" and "-inf".
#include <cmath>

#include <nlohmann/json.hpp>

#include "report/report.hpp"

namespace dsalt::verification {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json of_totals(const Totals& totals) {
  return {{"passed", totals.passed},
          {"failed", totals.failed},
          {"unsupported", totals.unsupported},
          {"skipped", totals.skipped}};
}

Json of_output(const OutputResult& output) {
  const Comparison& c = output.comparison;
  Json json = {{"output", output.output}, {"passed", c.passed}, {"elements", c.count}};
  if (!c.message.empty()) json["message"] = c.message;
  if (c.max_factor > 0) {
    json["max_error_units"] = number(c.max_ratio);
    json["max_error_units_allowed"] = number(c.max_factor);
    json["rms_error_units"] = number(c.rms_ratio);
    json["rms_error_units_allowed"] = number(c.rms_factor);
  }
  if (!c.worst_index.empty() || c.count == 1)
    json["worst"] = {{"index", c.worst_index},
                     {"actual", number(c.worst_actual)},
                     {"reference", number(c.worst_reference)},
                     {"bound", number(c.worst_bound)}};
  return json;
}

Json of_result(const Result& result, const ReportHeader& header) {
  Json json = {{"suite", result.suite},
               {"name", result.name},
               {"backend", result.backend},
               {"status", name_of(result.status)},
               {"seconds", number(result.seconds)}};
  if (!result.message.empty()) json["message"] = result.message;
  if (result.status == Status::failed) json["rerun"] = rerun_command(result, header);
  json["outputs"] = Json::array();
  for (const OutputResult& output : result.outputs) json["outputs"].push_back(of_output(output));
  return json;
}

}  // namespace

std::string to_json(const std::vector<Result>& results, const ReportHeader& header) {
  const Totals totals = count(results);
  Json json = {{"schema", "dsalt-verification"}, {"version", 1},
               {"backend", header.backend},      {"description", header.description},
               {"command", header.command},      {"ok", totals.ok()},
               {"totals", of_totals(totals)}};
  json["suites"] = Json::array();
  for (const SuiteSummary& suite : summarise(results))
    json["suites"].push_back(
        {{"name", suite.suite}, {"seconds", number(suite.seconds)}, {"totals", of_totals(suite.totals)}});
  json["results"] = Json::array();
  for (const Result& result : results) json["results"].push_back(of_result(result, header));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsalt::verification
