// One object per row. What is not known, or was not measured, is null.
#include <nlohmann/json.hpp>

#include "bench/results.hpp"

namespace dsalt::benchmark {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }
Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json of_backend(const BackendResults& backend) {
  const DeviceLimits& limits = backend.limits;
  return {{"name", backend.name},
          {"description", backend.description},
          {"device", or_null(limits.name)},
          {"isa", or_null(limits.isa)},
          {"threads", limits.threads ? Json(*limits.threads) : Json()},
          {"peak_flops", or_null(limits.peak)},
          {"limits", or_null(limits.source)},
          {"peak_flops_bfloat16", or_null(limits.peak_bf16)},
          {"peak_flops_float16", or_null(limits.peak_f16)},
          {"peak_flops_float64", or_null(limits.peak_f64)},
          {"exponentials", or_null(limits.exponentials)},
          {"bandwidth", or_null(limits.bandwidth)}};
}

Json of_row(const Row& row) {
  const bool measured = row.measured();
  const auto if_measured = [&](double value) { return measured ? Json(value) : Json(); };
  Json json = {{"operation", row.operation},
               {"backend", row.backend},
               {"isa", or_null(row.isa)},
               {"dtype", row.dtype},
               {"shape", row.shape},
               {"shape_number", row.shape_number ? Json(row.shape_number) : Json()},
               {"skipped", or_null(row.skipped)},
               {"repetitions", row.timing.repetitions},
               {"calls_per_repetition", row.timing.calls},
               {"median_s", if_measured(row.timing.median)},
               {"p10_s", if_measured(row.timing.p10)},
               {"p90_s", if_measured(row.timing.p90)},
               {"flop", if_measured(row.cost.flop)},
               {"bytes", if_measured(row.cost.bytes)},
               {"copies_between", or_null(row.timing.copied)},
               {"limit_s", or_null(row.limit)}};
  json["fraction_of_limit"] = measured ? or_null(row.fraction()) : Json();
  json["pairs"] = or_null(row.cost.pairs);
  json["executed_pairs"] = or_null(row.cost.executed_pairs);
  json["tile_efficiency"] = or_null(row.tile_efficiency());
  json["limit_executed_s"] = or_null(row.limit_executed);
  json["fraction_of_limit_executed"] = measured ? or_null(row.fraction_executed()) : Json();
  json["peak_bytes"] = or_null(row.peak_bytes);
  json["gflops"] = measured ? Json(row.gflops()) : Json();
  json["gbps"] = measured ? Json(row.gbps()) : Json();
  return json;
}

Json of_series(const ScalingSeries& series) {
  Json json = {{"operation", series.operation}, {"backend", series.backend}, {"isa", or_null(series.isa)},
               {"dtype", series.dtype},         {"shape", series.shape},     {"variable", series.variable},
               {"slope", or_null(series.slope)}};
  json["points"] = Json::array();
  for (const ScalingPoint& point : series.points) {
    const bool measured = point.measured();
    json["points"].push_back({{series.variable, point.x},
                              {"skipped", or_null(point.skipped)},
                              {"median_s", measured ? Json(point.timing.median) : Json()},
                              {"p10_s", measured ? Json(point.timing.p10) : Json()},
                              {"p90_s", measured ? Json(point.timing.p90) : Json()},
                              {"gflops", measured ? Json(point.flop / point.timing.median * 1e-9) : Json()}});
  }
  return json;
}

}  // namespace

std::string to_json(const Results& results) {
  Json json = {{"schema", "dsalt-bench"},           {"version", 1},         {"dsalt", results.version},
               {"commit", or_null(results.commit)}, {"date", results.date}, {"command", results.command}};
  json["backends"] = Json::array();
  for (const BackendResults& backend : results.backends) json["backends"].push_back(of_backend(backend));
  json["rows"] = Json::array();
  for (const Row& row : results.rows) json["rows"].push_back(of_row(row));
  json["scaling"] = Json::array();
  for (const ScalingSeries& series : results.scaling) json["scaling"].push_back(of_series(series));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dsalt::benchmark
