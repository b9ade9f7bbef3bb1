// dsalt verify: reports that programs can read, honest exit codes, real text.
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "run_command.hpp"

namespace {

std::string path(const char* name) { return scratch(name).string(); }

/// English enough: words from a small vocabulary in a fixed but irregular order.
std::string small_text(std::size_t bytes) {
  const char* words[] = {"the",  "light", "and",    "darkness", "was", "upon",
                         "face", "of",    "waters", "God",      "saw", "good"};
  std::string text;
  for (unsigned n = 1; text.size() < bytes; n = n * 69069u + 12345u) text += std::string(words[(n >> 16) % 12]) + " ";
  text.resize(bytes);
  return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(verify)

BOOST_AUTO_TEST_CASE(list_prints_suite_and_name) {
  const Outcome outcome = run_dsalt("verify --list");
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(contains(outcome.out, "equivalence  "));
  BOOST_TEST(!contains(outcome.out, "\ntext  "));
  const Outcome text = run_dsalt("verify --list --suite text --case 'attention/causal_*_f32'");
  BOOST_TEST(text.code == 0);
  BOOST_TEST(text.out ==
             "text  attention/causal_n256_h4_d32_f32\n"
             "text  attention/causal_n1024_h8_kv2_d64_f32\n"
             "text  attention/causal_n4096_h8_d64_f32\n");
}

BOOST_AUTO_TEST_CASE(reports_are_well_formed) {
  const std::string html = path("report.html"), junit = path("junit.xml"), json = path("results.json");
  const Outcome outcome = run_dsalt("verify --backend cpu --suite equivalence --quick --case 'rope/*' --report " +
                                    html + " --junit " + junit + " --json " + json);
  BOOST_TEST(outcome.code == 0, outcome.out + outcome.err);
  BOOST_TEST(contains(outcome.out, "cpu"), outcome.out);
  BOOST_TEST(xml_fault(read_file(junit)) == "");
  BOOST_TEST(contains(read_file(junit), "<testcase"));
  const auto parsed = nlohmann::json::parse(read_file(json));
  BOOST_TEST(contains(parsed.dump(), "rope/"));
  const std::string page = read_file(html);
  BOOST_TEST(contains(page, "<svg"));
  BOOST_TEST(contains(page, "</html>"));
  for (const char* outside : {"src=\"http", "href=\"http", "@import"}) BOOST_TEST(!contains(page, outside));
  for (const auto& entry : std::filesystem::directory_iterator(scratch("")))  // nothing is left of the writing aside
    BOOST_TEST(!contains(entry.path().filename().string(), ".html."), entry.path().string());
}

BOOST_AUTO_TEST_CASE(nothing_executed_is_1) {
  const Outcome none = run_dsalt("verify --backend cpu --case no-such-case");
  BOOST_TEST(none.code == 1);
  BOOST_TEST(contains(none.err, "no case matches --case 'no-such-case'"), none.err);
  const Outcome unsupported = run_dsalt("verify --backend cpu --suite equivalence --quick --case 'rope/*_f64'");
  BOOST_TEST(unsupported.code == 1, unsupported.out + unsupported.err);
  BOOST_TEST(contains(unsupported.err, "no case was executed"), unsupported.err);
}

BOOST_AUTO_TEST_CASE(auto_says_what_it_chose) {
  const Outcome outcome = run_dsalt("verify --suite equivalence --quick --case 'rope/*' --backend auto");
  BOOST_TEST(contains(outcome.err, "dsalt: backend auto is "), outcome.err);
}

BOOST_AUTO_TEST_CASE(unwritable_report_is_4_before_the_run) {
  const Outcome outcome = run_dsalt("verify --backend cpu --suite equivalence --quick --report /no/such/folder/r.html");
  BOOST_TEST(outcome.code == 4);
  BOOST_TEST(outcome.out == "");
  BOOST_TEST(contains(outcome.err, "/no/such/folder/r.html"), outcome.err);
}

BOOST_AUTO_TEST_CASE(text) {
  const std::string file = path("text.txt");
  write_file(file, small_text(700));
  const Outcome outcome = run_dsalt("verify --backend cpu --quick --text " + file);
  BOOST_TEST(outcome.code == 0, outcome.out + outcome.err);
  BOOST_TEST(contains(outcome.out, "attention"), outcome.out);

  const Outcome missing = run_dsalt("verify --backend cpu --text " + path("no-such-text.txt"));
  BOOST_TEST(missing.code == 4);
  BOOST_TEST(contains(missing.err, "no-such-text.txt"), missing.err);
  const Outcome folder = run_dsalt("verify --backend cpu --text " + scratch("").string());
  BOOST_TEST(folder.code == 4, folder.err);
  write_file(file, small_text(100));
  const Outcome shorter = run_dsalt("verify --backend cpu --text " + file);
  BOOST_TEST(shorter.code == 2);
  BOOST_TEST(contains(shorter.err, "100 bytes"), shorter.err);
}

BOOST_AUTO_TEST_SUITE_END()
