// Choosing suites and cases, and counting what happened.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <set>

#include "dsalt/errors.hpp"
#include "dsalt/verification/generators.hpp"
#include "dsalt/verification/suites.hpp"

using namespace dsalt;
using namespace dsalt::verification;

namespace {

SuiteOptions only(const std::string& suite, const std::string& glob = "*") {
  SuiteOptions options;
  options.backend = "reference";
  options.suites = {suite};
  options.case_glob = glob;
  options.quick = true;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(suites_selection)

BOOST_AUTO_TEST_CASE(the_table_names_every_suite) {
  std::vector<std::string> names;
  for (const SuiteInfo& suite : suites()) {
    names.push_back(suite.name);
    BOOST_TEST(!suite.description.empty());
  }
  const std::vector<std::string> expected = {"equivalence", "gradients",  "stability", "determinism",
                                             "causality",   "identities", "text"};
  BOOST_TEST(names == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(names_are_unique_within_a_suite) {
  SuiteOptions options;
  const auto names = list_cases(options);
  const std::set<std::pair<std::string, std::string>> unique(names.begin(), names.end());
  BOOST_TEST(unique.size() == names.size());
  BOOST_TEST(std::none_of(names.begin(), names.end(), [](const auto& n) { return n.first == "text"; }));
}

BOOST_AUTO_TEST_CASE(listing_needs_no_backend) {
  SuiteOptions options = only("equivalence");
  options.backend_factory = [](const BackendOptions&) -> std::unique_ptr<Backend> {
    throw BackendUnavailable("listing must not make a backend");
  };
  options.quick = false;
  BOOST_TEST(list_cases(options).size() == generated_cases().size());
  BOOST_CHECK_THROW(run_suites(options), BackendUnavailable);
}

BOOST_AUTO_TEST_CASE(quick_is_a_part_of_all) {
  SuiteOptions options;
  const std::size_t all = list_cases(options).size();
  options.quick = true;
  BOOST_TEST(list_cases(options).size() < all);
  BOOST_TEST(list_cases(options).size() > 0u);
}

BOOST_AUTO_TEST_CASE(patterns_select_by_name) {
  const auto results = run_suites(only("identities", "rope/*_f32"));
  BOOST_TEST(results.size() == 3u);
  for (const Result& result : results) {
    BOOST_TEST(result.name.starts_with("rope/"));
    BOOST_TEST(result.suite == "identities");
    BOOST_TEST(result.backend == "reference");
    BOOST_TEST((result.status == Status::passed), result.message);
    BOOST_TEST(!result.outputs.empty());
    BOOST_TEST(result.seconds > 0);
  }
}

BOOST_AUTO_TEST_CASE(one_name_reruns_one_case) {
  const auto all = list_cases(only("stability"));
  const auto results = run_suites(only("stability", all.at(7).second));
  BOOST_TEST(results.size() == 1u);
  BOOST_TEST(results.front().name == all.at(7).second);
}

BOOST_AUTO_TEST_CASE(unknown_suites_are_refused_by_name) {
  BOOST_CHECK_EXCEPTION(run_suites(only("equivalance")), InvalidArgument, [](const InvalidArgument& error) {
    return std::string(error.what()).find("equivalance") != std::string::npos &&
           std::string(error.what()).find("equivalence, gradients") != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(nothing_executed_is_not_ok) {
  const auto results = run_suites(only("identities", "no such case"));
  BOOST_TEST(results.empty());
  BOOST_TEST(!count(results).ok());
}

BOOST_AUTO_TEST_CASE(unsupported_is_neither_passed_nor_failed) {
  SuiteOptions options = only("identities", "swiglu/*_f64");
  options.backend = "cpu";
  const auto results = run_suites(options);
  const Totals totals = count(results);
  BOOST_TEST(totals.unsupported == results.size());
  BOOST_TEST(totals.passed == 0u);
  BOOST_TEST(totals.failed == 0u);
  BOOST_TEST(!totals.ok());
  BOOST_TEST(results.front().message.find("float64") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(progress_counts_every_case) {
  SuiteOptions options = only("identities", "swiglu/*");
  std::vector<std::size_t> done;
  std::size_t total = 0;
  options.progress = [&](std::string_view suite, std::string_view name, std::size_t before, std::size_t all) {
    BOOST_TEST(suite == "identities");
    BOOST_TEST(name.starts_with("swiglu/"));
    done.push_back(before);
    total = all;
  };
  const auto results = run_suites(options);
  BOOST_TEST(total == results.size());
  BOOST_TEST(done.size() == results.size());
  for (std::size_t n = 0; n < done.size(); ++n) BOOST_TEST(done[n] == n);
}

BOOST_AUTO_TEST_CASE(text_runs_only_with_a_file) {
  SuiteOptions options;
  options.suites = {"text"};
  options.backend = "reference";
  BOOST_CHECK_THROW(run_suites(options), InvalidArgument);
  options.suites.clear();
  options.text_file = "/no/such/file";
  const auto names = list_cases(options);
  BOOST_TEST(std::any_of(names.begin(), names.end(), [](const auto& n) { return n.first == "text"; }));
}

BOOST_AUTO_TEST_SUITE_END()
