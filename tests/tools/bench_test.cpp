// dsalt bench: what its rows hold, and what it refuses. Nothing here depends on how long anything takes.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "run_command.hpp"

namespace {

using Json = nlohmann::json;

const std::string quick = "bench --backend cpu --min-time 0 --max-time 1000 ";

std::string path(const char* name) { return scratch(name).string(); }

Json parsed(const std::string& file) { return Json::parse(read_file(file)); }

void check_page(const std::string& file) {
  const std::string page = read_file(file), doctype = "<!DOCTYPE html>\n";
  BOOST_REQUIRE(page.starts_with(doctype));
  BOOST_TEST(xml_fault(page.substr(doctype.size())) == "");
  for (const char* outside : {"src=\"http", "href=\"http", "@import", "<script"}) BOOST_TEST(!contains(page, outside));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bench)

BOOST_AUTO_TEST_CASE(list_names_operations_and_shapes) {
  const Outcome outcome = run_dsalt("bench --list");
  BOOST_TEST(outcome.code == 0);
  for (const char* part : {"\n  attention\n", "\n  attention_backward\n", "\n  adamw\n", "\n   1  4,32,2560,64,full ",
                           "\n  12  1,8,4096,64,causal "})
    BOOST_TEST(contains(outcome.out, part), outcome.out);
}

BOOST_AUTO_TEST_CASE(rows_hold_every_field) {
  const std::string json = path("bench.json"), html = path("bench.html");
  const Outcome outcome =
      run_dsalt(quick + "--shape 2,4/2,100,8,16,4 --windows uniform --chunk 32 --json " + json + " --report " + html);
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  BOOST_TEST(contains(outcome.out, "limits measured in this run"), outcome.out);
  const Json file = parsed(json);
  BOOST_TEST(file["schema"] == "dsalt-bench");
  BOOST_TEST(file["version"] == 1);
  BOOST_REQUIRE(file["backends"].size() == 1u);
  const Json& backend = file["backends"][0];
  BOOST_TEST(backend["name"] == "cpu");
  BOOST_TEST(contains(outcome.out, backend["description"].get<std::string>()));
  for (const char* limit : {"peak_flops", "bandwidth", "threads"}) BOOST_TEST(backend[limit].get<double>() > 0);

  std::set<std::string> operations;
  for (const Json& row : file["rows"]) {
    BOOST_TEST_CONTEXT(row.dump()) {
      operations.insert(row["operation"].get<std::string>());
      for (const char* name : {"backend", "isa", "dtype", "shape"}) BOOST_TEST(row.at(name).is_string());
      BOOST_TEST(row.at("skipped").is_null());
      BOOST_TEST(row["repetitions"].get<int>() >= 3);
      for (const char* name : {"median_s", "p10_s", "p90_s", "bytes", "limit_s", "fraction_of_limit", "gbps"})
        BOOST_TEST(row.at(name).get<double>() > 0);
      BOOST_TEST(row["p10_s"].get<double>() <= row["median_s"].get<double>());
      BOOST_TEST(row["median_s"].get<double>() <= row["p90_s"].get<double>());
      const double fraction = row["limit_s"].get<double>() / row["median_s"].get<double>();
      BOOST_TEST(std::fabs(row["fraction_of_limit"].get<double>() / fraction - 1) < 1e-9);
      BOOST_TEST(row.contains("peak_bytes"));
      const bool attention = row["operation"].get<std::string>().starts_with("attention");
      BOOST_TEST(row.at("tile_efficiency").is_null() == !attention);
      if (!attention) continue;
      const double pairs = row["pairs"].get<double>(), executed = row["executed_pairs"].get<double>();
      BOOST_TEST(pairs <= executed);
      BOOST_TEST(row["tile_efficiency"].get<double>() == pairs / executed);
      BOOST_TEST(row["flop"].get<double>() == pairs * 8 * (row["operation"] == "attention" ? 4 : 10));
      BOOST_TEST(row["fraction_of_limit_executed"].get<double>() >= row["fraction_of_limit"].get<double>());
      BOOST_TEST(row["shape"] == "2,4/2,100,8,16,4 uniform chunk 32");
    }
  }
  BOOST_TEST(operations.size() == 18u);
  check_page(html);
  for (const char* drawn : {"Roofline of cpu", "Shares of the limit of cpu", ", executed "})
    BOOST_TEST(contains(read_file(html), drawn));
}

BOOST_AUTO_TEST_CASE(bars_are_as_long_as_the_shares) {
  const std::string json = path("bars.json"), html = path("bars.html");
  const Outcome outcome =
      run_dsalt(quick + "--operation 'attention*' --shape 1,2,200,16,40,6 --json " + json + " --report " + html);
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  const std::string page = read_file(html);
  double largest = 1;
  const Json rows = parsed(json)["rows"];
  for (const Json& row : rows) largest = std::max(largest, row["fraction_of_limit_executed"].get<double>());
  std::size_t at = 0;
  for (const Json& row : rows)
    for (const auto& [css, name] :
         {std::pair("bar-executed", "fraction_of_limit_executed"), {"bar", "fraction_of_limit"}}) {
      at = page.find("<rect class=\"" + std::string(css) + "\"", at);
      BOOST_REQUIRE(at != std::string::npos);
      at = page.find("width=\"", at) + 7;
      BOOST_TEST(std::strtod(page.c_str() + at, nullptr) == 300 * row[name].get<double>() / largest,
                 boost::test_tools::tolerance(0.01));
    }
  BOOST_TEST(page.find(".bar { fill") != std::string::npos);  // and no width from the style
}

BOOST_AUTO_TEST_CASE(dense_costs_by_hand) {
  const std::string json = path("dense.json");
  const Outcome outcome = run_dsalt(quick + "--operation 'attention*' --shape 1,2,5x12,8,causal --json " + json);
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  const Json rows = parsed(json)["rows"];
  BOOST_REQUIRE(rows.size() == 2u);
  const double pairs = 2 * (8 + 9 + 10 + 11 + 12);
  BOOST_TEST(rows[0]["flop"] == 4 * 8 * pairs);
  BOOST_TEST(rows[0]["bytes"] == 2 * (4 * 2 * 8 * (5 + 12) + 4 * 5));
  BOOST_TEST(rows[1]["flop"] == 10 * 8 * pairs);
  BOOST_TEST(rows[1]["bytes"] == 2 * (4 * 4 * 8 * (5 + 12) + 8 * 5));
}

BOOST_AUTO_TEST_CASE(what_is_not_run_says_why) {
  const std::string json = path("skipped.json");
  const auto reason = [&](const std::string& arguments, const char* part) {
    const Outcome outcome = run_dsalt("bench " + arguments + " --min-time 0 --json " + json);
    BOOST_TEST_CONTEXT(arguments << outcome.out << outcome.err) {
      BOOST_TEST(outcome.code == 1);
      BOOST_TEST(contains(outcome.err, "nothing was measured"));
      const Json row = parsed(json)["rows"].at(0);
      BOOST_TEST(contains(row["skipped"].get<std::string>(), part));
      BOOST_TEST(row["median_s"].is_null());
      BOOST_TEST(contains(outcome.out, row["skipped"].get<std::string>()));
    }
  };
  reason("--backend cpu --operation attention --shape 12 --max-time 0", "--max-time");
  reason("--backend cpu --operation attention --shape 512,512,1048576,128,full", "memory");
  reason("--backend cpu --operation rope --dtype f64 --shape 1,1,8,8", "float64");
  reason("--backend cpu --operation select_landmarks --dtype bf16 --shape 1,1,8,8", "float32 or float64");
}

BOOST_AUTO_TEST_CASE(backends_without_known_limits_are_measured) {
  const std::string json = path("reference.json"), html = path("reference.html");
  const Outcome outcome = run_dsalt(
      "bench --backend reference --min-time 0 --operation 'attention*' --shape 1,1,40,8,9,2 "
      "--dtype f64 --dtype f16 --json " +
      json + " --report " + html);
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  BOOST_TEST(contains(outcome.out, "limits not known"));
  const Json rows = parsed(json)["rows"];
  BOOST_TEST(rows.size() == 4u);
  for (const Json& row : rows) {
    BOOST_TEST(row["median_s"].get<double>() > 0);
    for (const char* name : {"isa", "limit_s", "fraction_of_limit", "tile_efficiency"}) BOOST_TEST(row[name].is_null());
  }
  check_page(html);
}

BOOST_AUTO_TEST_CASE(scaling_over_length_and_threads) {
  const std::string json = path("scaling.json"), html = path("scaling.html");
  const Outcome outcome = run_dsalt(quick + "--scaling --operation attention --shape 1,1,64,8,4,2 --threads 2 --json " +
                                    json + " --report " + html);
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  const Json series = parsed(json)["scaling"];
  BOOST_REQUIRE(series.size() == 2u);
  BOOST_TEST(series[0]["variable"] == "N");
  BOOST_TEST(series[0]["points"].size() == 6u);
  BOOST_TEST(series[0]["points"][5]["N"] == 32768);
  BOOST_TEST(std::isfinite(series[0]["slope"].get<double>()));
  BOOST_TEST(series[1]["variable"] == "threads");
  BOOST_REQUIRE(series[1]["points"].size() == 2u);
  BOOST_TEST(series[1]["points"][1]["threads"] == 2);
  BOOST_TEST(contains(outcome.out, "speed-up"));
  check_page(html);
}

BOOST_AUTO_TEST_CASE(bad_arguments_are_2) {
  for (const char* arguments :
       {"--shape 13", "--shape 1,2", "--windows some", "--dtype f8", "--operation no_such", "--min-time -1",
        "--chunk x", "--backend no-such-backend", "--compare one.json", "--list --compare a b", "--threads 0"}) {
    const Outcome outcome = run_dsalt("bench " + std::string(arguments));
    BOOST_TEST_CONTEXT(arguments << ": " << outcome.err) {
      BOOST_TEST(outcome.code == 2);
      BOOST_TEST(outcome.out == "");
      BOOST_TEST(outcome.err.starts_with("dsalt: "));
      BOOST_TEST(outcome.err.find('\n') == outcome.err.size() - 1);
    }
  }
  const Outcome unwritable = run_dsalt(quick + "--operation rope --shape 1,1,8,8 --json /no/such/folder/x.json");
  BOOST_TEST(unwritable.code == 4);
  BOOST_TEST(contains(unwritable.err, "/no/such/folder/x.json"));
}

BOOST_AUTO_TEST_SUITE_END()
