// The four reports of one made-up run that holds everything they must survive.
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

#include "dsalt/verification/report.hpp"

namespace {

using namespace dsalt::verification;

const ReportHeader header{"cpu", "OpenMP, 2 threads", "dsalt verify --backend cpu", "the text.txt"};

Comparison compared(bool passed, double ratio, const std::string& message = "") {
  Comparison c;
  c.passed = passed;
  c.count = 12345;
  c.max_ratio = ratio;
  c.rms_ratio = ratio / 4;
  c.max_factor = 4;
  c.rms_factor = 1;
  c.message = message;
  c.worst_index = {0, 3, 17};
  c.worst_actual = passed ? 1.5 : std::numeric_limits<double>::quiet_NaN();
  c.worst_reference = 1.25;
  c.worst_bound = 1e-6;
  for (int n = 0; n < 50; ++n) c.ratios.push_back(static_cast<float>(ratio * n / 50));
  return c;
}

std::vector<Result> everything() {
  return {
      {"equivalence", "attention/full_f32", "cpu", Status::passed, "", {{"out", compared(true, 0.7)}}, 0.25},
      {"equivalence",
       "attention/full_bf16",
       "cpu",
       Status::failed,
       "dk: worst error is 42 units & <more>",
       {{"out", compared(true, 0.9)},
        {"dk", compared(false, std::numeric_limits<double>::infinity(), "42 units & <more>")}},
       1.5},
      {"equivalence", "attention/full_f64", "cpu", Status::unsupported, "float64 is \"not\" for this backend", {}, 0},
      {"determinism", "batch/rope/it's_f16", "cpu", Status::failed, "bad bytes \x01\xff ]]> here", {}, 0.1},
      {"determinism", "repeats/rope_f32", "cpu", Status::skipped, "run is not promised", {}, 0},
  };
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

/// Every element that is opened is closed, in order; attributes are quoted.
std::string first_imbalance(const std::string& html) {
  static const std::vector<std::string> empty = {"meta", "br", "!DOCTYPE"};
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) return "unclosed tag";
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (occurrences(tag, "\"") % 2 != 0) return "unbalanced quotes in <" + tag + ">";
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.back() == '/' || std::find(empty.begin(), empty.end(), name) != empty.end()) continue;
    if (tag[0] != '/') {
      open.push_back(name);
      continue;
    }
    if (open.empty() || "/" + open.back() != tag)
      return "<" + tag + "> closes " + (open.empty() ? "nothing" : open.back());
    open.pop_back();
  }
  return open.empty() ? "" : open.back() + " is never closed";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(reports)

BOOST_AUTO_TEST_CASE(table) {
  const std::string text = to_table(everything(), header);
  BOOST_TEST_MESSAGE(text);
  BOOST_TEST(contains(text, "Verification of cpu (OpenMP, 2 threads)"));
  BOOST_TEST(contains(text, "equivalence       1       1            1        0"));
  BOOST_TEST(contains(text, "determinism       0       1            0        1"));
  BOOST_TEST(contains(text, "FAILED  equivalence  attention/full_bf16"));
  BOOST_TEST(contains(text, "dk: 42 units & <more>"));
  BOOST_TEST(contains(text, "at [0,3,17]: got nan, definition 1.25"));
  BOOST_TEST(contains(text, "rerun: dsalt verify --backend cpu --suite equivalence --case 'attention/full_bf16'"));
  BOOST_TEST(contains(text, "--case 'batch/rope/it'\\''s_f16'"));
  BOOST_TEST(contains(text, "1 x  float64 is \"not\" for this backend"));
  BOOST_TEST(contains(text, "1 x  run is not promised"));
  BOOST_TEST(contains(text, "FAILED: 2 of 3 executed cases"));
}

BOOST_AUTO_TEST_CASE(table_of_success_and_of_nothing) {
  const auto all = everything();
  BOOST_TEST(contains(to_table({all[0]}, header), "OK: 1 cases passed"));
  BOOST_TEST(contains(to_table({all[2], all[4]}, header), "FAILED: no case was executed"));
  BOOST_TEST(contains(to_table({}, header), "FAILED: no case was executed"));
}

BOOST_AUTO_TEST_CASE(junit) {
  std::istringstream xml(to_junit(everything(), header));
  boost::property_tree::ptree tree;
  BOOST_REQUIRE_NO_THROW(boost::property_tree::read_xml(xml, tree));
  const auto& root = tree.get_child("testsuites");
  BOOST_TEST(root.get<int>("<xmlattr>.tests") == 5);
  BOOST_TEST(root.get<int>("<xmlattr>.failures") == 2);
  BOOST_TEST(root.get<int>("<xmlattr>.skipped") == 2);
  BOOST_TEST(root.count("testsuite") == 2u);
  const auto& suite = root.get_child("testsuite");
  BOOST_TEST(suite.get<std::string>("<xmlattr>.name") == "equivalence");
  BOOST_TEST(suite.count("testcase") == 3u);
  bool failure_seen = false;
  for (const auto& [tag, test] : suite) {
    if (tag != "testcase" || test.count("failure") == 0) continue;
    failure_seen = true;
    BOOST_TEST(test.get<std::string>("<xmlattr>.name") == "attention/full_bf16");
    BOOST_TEST(test.get<std::string>("failure.<xmlattr>.message") == "dk: worst error is 42 units & <more>");
    BOOST_TEST(contains(test.get<std::string>("failure"), "--case 'attention/full_bf16'"));
  }
  BOOST_TEST(failure_seen);
}

BOOST_AUTO_TEST_CASE(json) {
  const auto json = nlohmann::json::parse(to_json(everything(), header));
  BOOST_TEST(json.at("schema") == "dsalt-verification");
  BOOST_TEST(json.at("ok") == false);
  BOOST_TEST(json.at("totals").at("failed") == 2);
  BOOST_TEST(json.at("results").size() == 5u);
  const auto& failed = json.at("results").at(1);
  BOOST_TEST(failed.at("status") == "failed");
  BOOST_TEST(failed.at("rerun") == "dsalt verify --backend cpu --suite equivalence --case 'attention/full_bf16'");
  BOOST_TEST(failed.at("outputs").at(1).at("max_error_units") == "inf");
  BOOST_TEST(failed.at("outputs").at(1).at("worst").at("actual") == "nan");
  BOOST_TEST(failed.at("outputs").at(1).at("worst").at("index").size() == 3u);
  BOOST_TEST(json.at("suites").at(0).at("totals").at("unsupported") == 1);
}

BOOST_AUTO_TEST_CASE(a_failed_text_case_is_rerun_on_its_text) {
  const Result failed{"text", "rope_q/n256_f32", "cpu", Status::failed, "bad", {}, 0.1};
  BOOST_TEST(contains(to_table({failed}, header),
                      "dsalt verify --backend cpu --suite text --text 'the text.txt' --case 'rope_q/n256_f32'"));
}

BOOST_AUTO_TEST_CASE(html_is_one_well_formed_page) {
  const std::string html = to_html(everything(), header);
  BOOST_TEST(html.starts_with("<!DOCTYPE html>"));
  const std::size_t body = html.find("<body>");
  BOOST_REQUIRE(body != std::string::npos);
  BOOST_TEST(first_imbalance(html) == "");
  for (const char* external : {"http:", "https:", "src=", "<link", "<script", "@import", "url("})
    BOOST_TEST(!contains(html, external), external);
  BOOST_TEST(contains(html, "prefers-color-scheme: dark"));
}

BOOST_AUTO_TEST_CASE(html_shows_pictures_failures_and_reruns) {
  const std::string html = to_html(everything(), header);
  BOOST_TEST(occurrences(html, "<svg") == 2u);  // attention in float32 and bfloat16
  BOOST_TEST(contains(html, "class=\"bound\""));
  BOOST_TEST(contains(html, "42 units &amp; &lt;more&gt;"));
  BOOST_TEST(!contains(html, "<more>"));
  BOOST_TEST(contains(html, "[0,3,17]"));
  BOOST_TEST(contains(html, "--case &#39;attention/full_bf16&#39;"));
  BOOST_TEST(contains(html, "run is not promised"));
  BOOST_TEST(!contains(html, "\x01"));
  BOOST_TEST(!contains(html, "\xff"));
}

BOOST_AUTO_TEST_CASE(html_of_nothing_says_so) {
  BOOST_TEST(contains(to_html({}, header), "this run verifies nothing"));
  BOOST_TEST(first_imbalance(to_html({}, header)) == "");
}

BOOST_AUTO_TEST_SUITE_END()
