// dsalt attention-map: a well-formed picture of what was computed.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "run_command.hpp"

namespace {

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string picture(const std::string& arguments) {
  const std::string file = scratch("map.svg").string();
  const Outcome outcome = run_dsalt("attention-map --backend cpu " + arguments + " -o " + file);
  BOOST_TEST(outcome.code == 0, outcome.out + outcome.err);
  const std::string svg = read_file(file);
  BOOST_TEST(xml_fault(svg) == "");
  BOOST_TEST(contains(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\""));
  return svg;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_map)

BOOST_AUTO_TEST_CASE(small_causal_map) {
  const std::string svg = picture("--string 'a <b> & \"c\" in the beginning God created' --chunk 8 --n-max 6");
  BOOST_TEST(contains(svg, "weight of a window key"));
  BOOST_TEST(contains(svg, "weight of a landmark"));
  BOOST_TEST(contains(svg, "query 0 'a' reads key 0 'a': 100 %, window"));
  BOOST_TEST(occurrences(svg, ", landmark</title>") > 0u);
}

BOOST_AUTO_TEST_CASE(policies_differ_and_runs_repeat) {
  const std::string text =
      "--string 'and the spirit of God moved upon the face of the waters' --n-max 6 --head 2 --row 9 ";
  const std::string causal = picture(text + "--policy causal"), global = picture(text + "--policy global");
  BOOST_TEST((causal != global));
  BOOST_TEST((causal == picture(text + "--policy causal")));
}

BOOST_AUTO_TEST_CASE(long_text_is_drawn_in_blocks) {
  std::string text;
  for (int n = 0; n < 60; ++n) text += "in the beginning God created the heaven and the earth. ";
  const std::string file = scratch("long.txt").string();
  write_file(file, text);
  const std::string svg = picture("--text " + file + " --length 600 --chunk 64 --landmarks 8 --n-max 90");
  BOOST_TEST(contains(svg, "A cell is a block of 5 x 5 pairs"));
}

BOOST_AUTO_TEST_CASE(any_bytes_and_one_byte) {
  std::string bytes;
  for (int n = 255; n >= 0; --n) bytes += static_cast<char>(n);
  const std::string file = scratch("bytes.bin").string();
  write_file(file, bytes);
  picture("--text " + file + " --length 100");
  picture("--text " + file + " --length 256");
  picture("--string x");
}

BOOST_AUTO_TEST_CASE(file_errors_are_4) {
  BOOST_TEST(run_dsalt("attention-map --backend cpu --string abc -o /no/such/folder/map.svg").code == 4);
  BOOST_TEST(run_dsalt("attention-map --backend cpu --text /no/such/text -o " + scratch("m.svg").string()).code == 4);
}

BOOST_AUTO_TEST_SUITE_END()
