// JUnit XML: one testsuite per suite, unsupported and skipped cases as <skipped> with their reason.
#include <cmath>
#include <cstdio>

#include "report/report.hpp"
#include "report/xml.hpp"

namespace dsalt::verification {
namespace {

std::string decimal(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", std::isfinite(seconds) ? seconds : 0.0);
  return text;
}

std::string details(const Result& result, const ReportHeader& header) {
  std::string text;
  for (const OutputResult* output : failed_outputs(result)) {
    text += output->output + ": " + output->comparison.message + "\n";
    if (const std::string worst = worst_element(output->comparison); !worst.empty()) text += "  " + worst + "\n";
  }
  return text + "backend: " + result.backend + "\nrerun: " + rerun_command(result, header) + "\n";
}

std::string test_case(const Result& result, const ReportHeader& header) {
  std::string xml = "    <testcase classname=\"dsalt." + xml_escaped(result.suite) + "\" name=\"" +
                    xml_escaped(result.name) + "\" time=\"" + decimal(result.seconds) + "\"";
  switch (result.status) {
    case Status::passed: return xml + "/>\n";
    case Status::failed:
      return xml + ">\n      <failure message=\"" + xml_escaped(result.message) + "\">" +
             xml_escaped(details(result, header)) + "</failure>\n    </testcase>\n";
    case Status::unsupported:
    case Status::skipped: break;
  }
  return xml + ">\n      <skipped message=\"" +
         xml_escaped(std::string(name_of(result.status)) + ": " + result.message) + "\"/>\n    </testcase>\n";
}

std::string attributes(const Totals& totals, double seconds) {
  return "tests=\"" + std::to_string(totals.passed + totals.failed + totals.unsupported + totals.skipped) +
         "\" failures=\"" + std::to_string(totals.failed) + "\" errors=\"0\" skipped=\"" +
         std::to_string(totals.unsupported + totals.skipped) + "\" time=\"" + decimal(seconds) + "\"";
}

}  // namespace

std::string to_junit(const std::vector<Result>& results, const ReportHeader& header) {
  double seconds = 0;
  for (const Result& result : results) seconds += result.seconds;
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"dsalt verify\" " +
                    attributes(count(results), seconds) + ">\n";
  for (const SuiteSummary& suite : summarise(results)) {
    xml += "  <testsuite name=\"" + xml_escaped(suite.suite) + "\" " + attributes(suite.totals, suite.seconds) + ">\n";
    xml += "    <properties>\n      <property name=\"backend\" value=\"" + xml_escaped(header.backend) +
           "\"/>\n      <property name=\"description\" value=\"" + xml_escaped(header.description) +
           "\"/>\n      <property name=\"command\" value=\"" + xml_escaped(header.command) +
           "\"/>\n    </properties>\n";
    for (const Result& result : results)
      if (result.suite == suite.suite) xml += test_case(result, header);
    xml += "  </testsuite>\n";
  }
  return xml + "</testsuites>\n";
}

}  // namespace dsalt::verification
