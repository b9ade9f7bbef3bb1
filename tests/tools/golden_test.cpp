// Case files through the command: generate, check, run, show, and the ways in which they fail.
#include <boost/test/unit_test.hpp>

#include "run_command.hpp"

namespace {

std::string path(const char* name) { return scratch(name).string(); }

}  // namespace

BOOST_AUTO_TEST_SUITE(golden)

BOOST_AUTO_TEST_CASE(round_trip) {
  const std::string first = path("first.h5"), second = path("second.h5"), again = path("again.h5");
  Outcome outcome = run_dsalt("golden generate --case '[mr]*' -o " + first);  // merge, rmsnorm, rope
  BOOST_TEST(outcome.code == 0, outcome.err);
  BOOST_TEST(contains(outcome.out, first), outcome.out);
  BOOST_REQUIRE(run_dsalt("golden generate --case '[mr]*' -o " + second).code == 0);
  BOOST_TEST((read_file(first) == read_file(second)), "generating twice gives other bytes");

  outcome = run_dsalt("golden check " + first + " --backend reference");
  BOOST_TEST(outcome.code == 0, outcome.out + outcome.err);
  outcome = run_dsalt("golden check " + first + " --backend cpu");
  BOOST_TEST(outcome.code == 0, outcome.out + outcome.err);

  outcome = run_dsalt("golden run --backend reference " + first + " -o " + again);
  BOOST_TEST(outcome.code == 0, outcome.out + outcome.err);
  BOOST_TEST(run_dsalt("golden check " + again + " --backend reference").code == 0);

  outcome = run_dsalt("golden show " + first);
  BOOST_TEST(outcome.code == 0);
  for (const char* word : {"merge", "rmsnorm", "rope", "float32"}) BOOST_TEST(contains(outcome.out, word), outcome.out);
}

BOOST_AUTO_TEST_CASE(unsupported_case_is_named_and_1) {
  const std::string in = path("f64.h5"), out = path("f64-cpu.h5");
  BOOST_REQUIRE(run_dsalt("golden generate --case 'rmsnorm/*' -o " + in).code == 0);
  const Outcome outcome = run_dsalt("golden run --backend cpu " + in + " -o " + out);  // no float64 on this backend
  BOOST_TEST(outcome.code == 1, outcome.out + outcome.err);
  BOOST_TEST(contains(outcome.out, "unsupported  rmsnorm"), outcome.out);
  BOOST_TEST(run_dsalt("golden check --backend cpu " + out).code == 0);  // the others are written
}

BOOST_AUTO_TEST_CASE(no_match_is_1) {
  const std::string file = path("match.h5");
  BOOST_TEST(run_dsalt("golden generate --case 'nothing/*' -o " + file).code == 1);
  BOOST_TEST(!std::filesystem::exists(file));
  BOOST_REQUIRE(run_dsalt("golden generate --case 'rope/*' -o " + file).code == 0);
  for (const char* action : {"check", "show"}) {
    const Outcome outcome = run_dsalt("golden " + std::string(action) + " --case nothing " + file);
    BOOST_TEST(outcome.code == 1, outcome.out + outcome.err);
    BOOST_TEST(contains(outcome.err, "no case matches --case 'nothing'"), outcome.err);
  }
}

BOOST_AUTO_TEST_CASE(bad_files_are_4) {
  const std::string garbage = path("garbage.h5"), missing = path("missing.h5");
  write_file(garbage, "this is not HDF5");
  for (const std::string& file : {garbage, missing}) {
    for (const std::string& action : {"check " + file, "show " + file, "run " + file + " -o " + path("unused.h5")}) {
      const Outcome outcome = run_dsalt("golden " + action, "DSALT_BACKEND=reference");
      BOOST_TEST_CONTEXT("dsalt golden " << action << ": " << outcome.err) {
        BOOST_TEST(outcome.code == 4);
        BOOST_TEST(outcome.err.starts_with("dsalt: "));
        BOOST_TEST(contains(outcome.err, file));
        BOOST_TEST(outcome.err.find('\n') == outcome.err.size() - 1);
      }
    }
  }
  const Outcome unwritable = run_dsalt("golden generate --case 'rope/*' -o /no/such/folder/file.h5");
  BOOST_TEST(unwritable.code == 4);
  BOOST_TEST(contains(unwritable.err, "/no/such/folder/file.h5"), unwritable.err);
}

BOOST_AUTO_TEST_SUITE_END()
