// Every suite on every backend that this machine can run, except that equivalence on the cpu takes one dtype at a time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "dsalt/verification/report.hpp"
#include "dsalt/verification/suites.hpp"

using namespace dsalt;
using namespace dsalt::verification;

namespace {

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const BackendInfo& info : list_backends())
    if (info.available) names.push_back(info.name);
  return names;
}

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const SuiteInfo& suite : suites())
    if (suite.name != "text") names.push_back(suite.name);
  return names;
}

}  // namespace

BOOST_DATA_TEST_CASE(quick_suites_pass,
                     boost::unit_test::data::make(available()) * boost::unit_test::data::make(suite_names()), backend,
                     suite) {
  SuiteOptions options;
  options.backend = backend;
  options.suites = {suite};
  options.quick = true;
  const auto results = run_suites(options);
  BOOST_TEST(count(results).ok(), to_table(results, {backend, "", ""}));
  for (const Result& result : results)
    BOOST_TEST((result.backend == backend || result.backend == "reference" || result.backend == backend + ":0"));
}
