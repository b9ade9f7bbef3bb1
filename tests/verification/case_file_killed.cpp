// A writer killed at any moment leaves the old file or the complete new one.
#include <signal.h>
#include <sys/wait.h>

#include <boost/test/unit_test.hpp>
#include <random>

#include "case_support.hpp"

using namespace case_support;

BOOST_AUTO_TEST_SUITE(case_file_killed)

BOOST_AUTO_TEST_CASE(old_or_new_but_whole) {
  const Scratch scratch;
  const std::string path = scratch / "killed.h5";
  std::vector<Case> cases;
  for (const char* name :
       {"attention/everything/01_f32", "attention/long_rows/constant_one_f64", "rope/positions/start_bf16"}) {
    cases.push_back(generate_case(name));
    std::replace(cases.back().name.begin(), cases.back().name.end(), '/', '.');
  }
  const auto write = [&](int version) {
    CaseWriter writer(path, std::to_string(version));
    for (const Case& c : cases) writer.add(c);
    writer.commit();
  };
  write(0);
  std::mt19937 random(7);
  int killed_early = 0, newest = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = ::fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
      try {
        for (int version = newest + 1;; ++version) write(version);
      } catch (...) {
      }
      ::_exit(1);
    }
    ::usleep(random() % 25'000);
    ::kill(child, SIGKILL);
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_REQUIRE(WIFSIGNALED(status));
    const CaseReader reader(path);
    const int version = std::stoi(reader.generator());
    BOOST_TEST(version >= newest);
    killed_early += version == newest;
    newest = version;
    BOOST_REQUIRE(reader.names().size() == cases.size());
    for (const Case& c : cases) BOOST_TEST(same_case(reader.read(c.name), c));
  }
  BOOST_TEST_MESSAGE(newest << " versions written, " << killed_early << " of 60 rounds killed before the first");
  BOOST_TEST(newest > 0);
  // Writing still works beside what the killed ones left.
  write(newest + 1);
  BOOST_TEST(CaseReader(path).generator() == std::to_string(newest + 1));
}

BOOST_AUTO_TEST_SUITE_END()
