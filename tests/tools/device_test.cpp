// The `dsalt` command on a device: the stand-in of tests/verification/fake_device.hpp, whose memory the host cannot
// touch.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "run_command.hpp"

namespace {

using Json = nlohmann::json;

Outcome run_on_device(const std::string& arguments) {
  return run_dsalt(arguments, "DSALT_MODULE_PATH=" DSALT_TEST_FAKE_DEVICE);
}

std::string path(const char* name) { return scratch(name).string(); }

Json bench(const std::string& arguments) {
  const std::string json = path("device.json");
  const Outcome outcome = run_on_device("bench " + arguments + " --min-time 0 --json " + json);
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  return Json::parse(read_file(json));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device)

BOOST_AUTO_TEST_CASE(is_listed) {
  const Outcome outcome = run_on_device("backends");
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(contains(outcome.out, "stand-in for device 0"), outcome.out);
}

BOOST_AUTO_TEST_CASE(is_verified_in_both_modes) {
  for (const char* mode : {"", " --deterministic"}) {
    const std::string json = path("verify.json");
    const Outcome outcome =
        run_on_device("verify --backend cuda --quick --case '*swiglu*_f32' --json " + json + std::string(mode));
    BOOST_TEST(outcome.code == 0, outcome.out << outcome.err);
    BOOST_TEST(contains(outcome.out, "Verification of cuda:0"), outcome.out);
    const Json report = Json::parse(read_file(json));  // lives as long as the loop over its results
    for (const Json& result : report["results"])
      BOOST_TEST((result["backend"] == "cuda:0" || result["backend"] == "reference"));
  }
}

BOOST_AUTO_TEST_CASE(case_files_run) {
  const std::string in = path("in.h5"), out = path("out.h5");
  BOOST_REQUIRE(run_dsalt("golden generate -o " + in + " --case 'merge*f32'").code == 0);
  const Outcome run = run_on_device("golden run --backend cuda " + in + " -o " + out);
  BOOST_TEST(run.code == 0, run.out << run.err);
  const Outcome check = run_on_device("golden check --backend cuda:1 " + out);
  BOOST_TEST(check.code == 0, check.out << check.err);
}

BOOST_AUTO_TEST_CASE(bench_holds_a_known_device_against_its_datasheet) {
  const Json file = bench(
      "--backend cuda --operation 'attention*' --operation rope --shape 1,2,200,16,50,8 --dtype f32 --dtype bf16");
  BOOST_TEST(file["backends"][0]["device"] == "NVIDIA H200");
  BOOST_TEST(contains(file["backends"][0]["limits"].get<std::string>(), "datasheet"));
  BOOST_REQUIRE(file["rows"].size() == 6u);
  for (const Json& row : file["rows"]) {
    BOOST_TEST_CONTEXT(row.dump()) {
      const double peak = row["dtype"] == "bfloat16" ? 989e12 : 67e12;
      const double pairs = row["pairs"].is_null() ? 0 : row["pairs"].get<double>();
      const double limit =
          std::max({row["flop"].get<double>() / peak, pairs / 3.87e12, row["bytes"].get<double>() / 4.8e12});
      BOOST_TEST(row["limit_s"].get<double>() == limit, boost::test_tools::tolerance(1e-12));
      BOOST_TEST(row["repetitions"].get<int>() >= 3);
      BOOST_TEST(row["calls_per_repetition"].get<int>() >= 1);
      for (const char* unknown : {"peak_bytes", "tile_efficiency", "executed_pairs"})
        BOOST_TEST(row[unknown].is_null());
    }
  }
}

BOOST_AUTO_TEST_CASE(bench_invents_no_limits) {
  const Json file = bench("--backend cuda:1 --shape 1,2,64,8,20,4 --chunk 32");
  BOOST_TEST(file["backends"][0]["device"] == "Unheard X1");
  for (const char* name : {"limits", "peak_flops", "bandwidth"}) BOOST_TEST(file["backends"][0][name].is_null());
  BOOST_TEST(file["rows"].size() == 20u);
  for (const Json& row : file["rows"]) BOOST_TEST(row["limit_s"].is_null());
}

BOOST_AUTO_TEST_SUITE_END()
