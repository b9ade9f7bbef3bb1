// Exit codes, help, version, backends: what scripts and people rely on.
#include <boost/test/unit_test.hpp>

#include "dsalt/registry.hpp"
#include "dsalt/version.hpp"
#include "run_command.hpp"

namespace {

bool cuda_available() {
  for (const auto& info : dsalt::list_backends())
    if (info.name == "cuda") return info.available;
  return false;
}

void check_one_sentence(const Outcome& outcome) {
  BOOST_TEST(outcome.out == "");
  BOOST_TEST(outcome.err.starts_with("dsalt: "), outcome.err);
  BOOST_TEST(outcome.err.find('\n') == outcome.err.size() - 1, outcome.err);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(command)

BOOST_AUTO_TEST_CASE(help_shows_examples_and_exit_codes) {
  for (const char* path : {"", "backends", "verify", "golden", "golden generate", "golden check", "golden run",
                           "golden show", "attention-map", "bench"}) {
    const Outcome outcome = run_dsalt(std::string(path) + " --help");
    BOOST_TEST_CONTEXT("dsalt " << path << " --help") {
      BOOST_TEST(outcome.code == 0);
      BOOST_TEST(outcome.err == "");
      BOOST_TEST(contains(outcome.out, "Examples:\n  "));
      BOOST_TEST(contains(outcome.out, "  dsalt " + std::string(path)));
      BOOST_TEST(contains(outcome.out, "Exit codes:"));
      for (const char* code : {"  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  "})
        BOOST_TEST(contains(outcome.out, code));
    }
  }
}

BOOST_AUTO_TEST_CASE(version_names_features) {
  const Outcome outcome = run_dsalt("--version");
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(outcome.out.starts_with("dsalt " DSALT_VERSION_STRING "\n"), outcome.out);
  for (const char* line : {"\nbackends ", "\nbuild ", "\nopenmp ", "\nhdf5 ", "\neigen ", "\nprocessor "})
    BOOST_TEST(contains(outcome.out, line), outcome.out);
  BOOST_TEST(!contains(outcome.out, "unknown"), outcome.out);
}

BOOST_AUTO_TEST_CASE(bad_usage_is_2) {
  for (const char* arguments :
       {"", "no-such-subcommand", "verify --no-such-option", "verify --suite no-such-suite", "golden",
        "golden generate", "golden run in.h5", "verify --backend no-such-backend --suite identities --quick",
        "verify --threads 0", "verify --suite text", "attention-map -o x.svg",
        "attention-map --string abc --head 4 -o x.svg", "attention-map --string abc --row 3 -o x.svg",
        "attention-map --string abc --policy both -o x.svg",
        "attention-map --string abc --n-min 9 --n-max 3 -o x.svg"}) {
    const Outcome outcome = run_dsalt(arguments);
    BOOST_TEST_CONTEXT("dsalt " << arguments << ": " << outcome.err) {
      BOOST_TEST(outcome.code == 2);
      check_one_sentence(outcome);
    }
  }
  const Outcome variable = run_dsalt("verify --suite identities --quick", "DSALT_BACKEND=nonsense");
  BOOST_TEST(variable.code == 2);
  BOOST_TEST(contains(variable.err, "nonsense"), variable.err);
}

BOOST_AUTO_TEST_CASE(backends_lists_every_backend) {
  const Outcome outcome = run_dsalt("backends");
  BOOST_TEST(outcome.code == 0);
  for (const auto& info : dsalt::list_backends()) {
    BOOST_TEST(contains(outcome.out, "\n" + info.name + " "), outcome.out);
    BOOST_TEST(contains(outcome.out, info.detail), outcome.out);
  }
  BOOST_TEST(contains(outcome.out, "auto chooses "), outcome.out);
  const Outcome variable = run_dsalt("backends", "DSALT_BACKEND=reference");
  BOOST_TEST(contains(variable.out, "DSALT_BACKEND=reference is the default and chooses reference"), variable.out);
}

BOOST_AUTO_TEST_CASE(unavailable_backend_is_3_everywhere) {
  if (cuda_available()) return;
  const std::string file = scratch("unavailable.h5").string();
  BOOST_REQUIRE(run_dsalt("golden generate --case 'rmsnorm/*' -o " + file).code == 0);
  for (const std::string& arguments :
       {std::string("verify --suite identities --quick"), "golden check " + file,
        "golden run " + file + " -o " + file + ".out", std::string("attention-map --string abcdef -o /dev/null"),
        std::string("bench --operation rope --shape 1,1,8,8")}) {
    const Outcome outcome = run_dsalt(arguments, "DSALT_BACKEND=cuda");
    BOOST_TEST_CONTEXT("DSALT_BACKEND=cuda dsalt " << arguments << ": " << outcome.err) {
      BOOST_TEST(outcome.code == 3);
      check_one_sentence(outcome);
      BOOST_TEST(outcome.err.starts_with("dsalt: backend cuda (from DSALT_BACKEND) is unavailable: "));
    }
  }
  const Outcome named = run_dsalt("verify --suite identities --quick --backend cuda:1");
  BOOST_TEST(named.code == 3);
  BOOST_TEST(named.err.starts_with("dsalt: backend cuda:1 is unavailable: "), named.err);
  const Outcome list = run_dsalt("backends", "DSALT_BACKEND=cuda");
  BOOST_TEST(list.code == 0);
  BOOST_TEST(contains(list.out, "DSALT_BACKEND=cuda is the default and cannot be used: "), list.out);
}

BOOST_AUTO_TEST_CASE(closed_pipe_is_quiet) {
  const std::string late = "sh -c 'sleep 0.2; exec \"$0\" \"$@\"'";  // the reader is gone by then
  const Outcome outcome = run_dsalt("verify --list", late, "| true");
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(outcome.err == "");
}

BOOST_AUTO_TEST_CASE(full_disk_is_4) {
  const Outcome outcome = run_dsalt("backends", "", ">/dev/full");
  BOOST_TEST(outcome.code == 4);
  check_one_sentence(outcome);
}

BOOST_AUTO_TEST_SUITE_END()
