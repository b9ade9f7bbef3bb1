// dsalt bench --compare: rows side by side, and files that are not what they should be.
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <vector>

#include "run_command.hpp"

namespace {

using Json = nlohmann::json;

std::string path(const char* name) { return scratch(name).string(); }

Json row(const std::string& operation, double median, double spread) {
  return {{"operation", operation}, {"backend", "cpu"},         {"isa", nullptr},
          {"dtype", "float32"},     {"shape", "1,2,3"},         {"skipped", nullptr},
          {"median_s", median},     {"p10_s", median - spread}, {"p90_s", median + spread}};
}

Json file_of(const std::vector<Json>& rows) {
  return {{"schema", "dsalt-bench"}, {"version", 1},    {"dsalt", "0.1.0"},
          {"commit", nullptr},       {"date", "a day"}, {"rows", rows}};
}

Outcome compare(const std::string& before, const std::string& after) {
  write_file(path("old.json"), before);
  write_file(path("new.json"), after);
  return run_dsalt("bench --compare " + path("old.json") + " " + path("new.json"));
}

/// The line of the table that starts with `operation`.
std::string line_of(const std::string& table, const std::string& operation) {
  const std::size_t begin = table.find("\n" + operation + " ");
  if (begin == std::string::npos) return "";
  return table.substr(begin + 1, table.find('\n', begin + 1) - begin - 1);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bench_compare)

BOOST_AUTO_TEST_CASE(changes_beyond_both_spreads_are_marked) {
  Json skipped = row("skipped_once", 1, 0);
  skipped["skipped"] = "a reason";
  const Outcome outcome = compare(
      file_of({row("slow", 1, 0.1), row("fast", 1, 0.1), row("same", 1, 0.1), row("gone", 1, 0), skipped}).dump(),
      file_of({row("fast", 0.5, 0.1), row("slow", 2, 0.1), row("same", 1.15, 0.1), row("came", 1, 0),
               row("skipped_once", 1, 0)})
          .dump());
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  BOOST_TEST(line_of(outcome.out, "slow").ends_with("2.00  slower"), outcome.out);
  BOOST_TEST(line_of(outcome.out, "fast").ends_with("faster"), outcome.out);
  BOOST_TEST(contains(line_of(outcome.out, "fast"), " 0.5 "), outcome.out);
  BOOST_TEST(line_of(outcome.out, "same") != "");
  BOOST_TEST(!contains(line_of(outcome.out, "same"), "er"), outcome.out);
  BOOST_TEST(contains(outcome.out, "only in " + path("old.json") + ":\n  gone "), outcome.out);
  BOOST_TEST(contains(outcome.out, "only in " + path("new.json") + ":\n  came "), outcome.out);
  BOOST_TEST(contains(outcome.out, "skipped_once  cpu  float32  1,2,3  old: a reason"), outcome.out);
}

BOOST_AUTO_TEST_CASE(nothing_in_common_is_1) {
  const Outcome outcome = compare(file_of({row("a", 1, 0)}).dump(), file_of({row("b", 1, 0)}).dump());
  BOOST_TEST(outcome.code == 1);
  BOOST_TEST(contains(outcome.err, "no row was measured in both files"), outcome.err);
}

BOOST_AUTO_TEST_CASE(a_run_compares_with_itself) {
  const std::string json = path("self.json");
  const Outcome run = run_dsalt("bench --backend cpu --min-time 0 --operation 'r*' --shape 1,1,8,8 --json " + json);
  BOOST_REQUIRE_MESSAGE(run.code == 0, run.out << run.err);
  const Outcome outcome = run_dsalt("bench --compare " + json + " " + json);
  BOOST_TEST(outcome.code == 0);
  BOOST_TEST(contains(line_of(outcome.out, "rope"), "1.00"), outcome.out);
  BOOST_TEST(!contains(outcome.out, "only in"), outcome.out);
}

BOOST_AUTO_TEST_CASE(bad_files_are_4) {
  const std::string good = file_of({row("a", 1, 0)}).dump();
  Json no_median = row("a", 1, 0), text_median = row("a", 1, 0), negative = row("a", -1, 0);
  no_median.erase("median_s");
  text_median["median_s"] = "fast";
  Json other_schema = file_of({}), other_version = other_schema, no_rows = other_schema, other_rows = other_schema;
  other_schema["schema"] = "other";
  other_version["version"] = 2;
  no_rows.erase("rows");
  other_rows["rows"] = "none";
  const std::pair<std::string, const char*> cases[] = {
      {"", "is not JSON"},
      {"{", "is not JSON"},
      {"[1]", "is not a JSON object"},
      {"{}", "has no \"schema\""},
      {other_schema.dump(), "need \"dsalt-bench\""},
      {other_version.dump(), "\"version\" is 2"},
      {no_rows.dump(), "has no \"rows\""},
      {other_rows.dump(), "\"rows\" is not an array"},
      {file_of({Json(1)}).dump(), "row 1 is not an object"},
      {file_of({row("a", 1, 0), no_median}).dump(), "row 2 has no \"median_s\""},
      {file_of({text_median}).dump(), "\"median_s\" is not a positive number"},
      {file_of({negative}).dump(), "\"median_s\" is not a positive number"},
      {file_of({row("a", 1, 0), row("a", 1, 0)}).dump(), "row 2 repeats"}};
  for (const auto& [content, what] : cases) {
    const Outcome outcome = compare(good, content);
    BOOST_TEST_CONTEXT(content << ": " << outcome.err) {
      BOOST_TEST(outcome.code == 4);
      BOOST_TEST(outcome.out == "");
      BOOST_TEST(outcome.err.starts_with("dsalt: benchmark file " + path("new.json") + ": "));
      BOOST_TEST(contains(outcome.err, what));
      BOOST_TEST(outcome.err.find('\n') == outcome.err.size() - 1);
    }
  }
  const Outcome missing = run_dsalt("bench --compare /no/such/file " + path("old.json"));
  BOOST_TEST(missing.code == 4);
  BOOST_TEST(contains(missing.err, "/no/such/file"), missing.err);
}

BOOST_AUTO_TEST_SUITE_END()
