// Case files: every dtype, rank and bit pattern comes back; equal content is an equal file; h5dump sees row order.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "case_support.hpp"

using namespace case_support;

namespace {

Tensor of_bits(DType dtype, const std::vector<std::uint64_t>& patterns) {
  const Tensor tensor = Tensor::empty({static_cast<std::int64_t>(patterns.size())}, dtype);
  for (std::size_t n = 0; n < patterns.size(); ++n)
    std::memcpy(tensor.view().at<char>(static_cast<std::int64_t>(n * size_of(dtype))), &patterns[n], size_of(dtype));
  return tensor;
}

Case read_back(const std::string& path, const Case& c) {
  CaseWriter writer(path, "test");
  writer.add(c);
  writer.commit();
  return CaseReader(path).read(c.name);
}

#ifdef DSALT_H5DUMP
std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  BOOST_REQUIRE(pipe != nullptr);
  char buffer[4096];
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  BOOST_TEST(::pclose(pipe) == 0, command);
  return text;
}
#endif

}  // namespace

BOOST_AUTO_TEST_SUITE(case_file_round_trip)

BOOST_AUTO_TEST_CASE(bits_of_every_dtype) {
  const Scratch scratch;
  Case c;
  c.name = "bits";
  c.op = Operation::swiglu;
  // 65504, 2^-14, 2^-24, -0, infinity, NaNs with payloads, quiet and signalling
  c.inputs["float16"] = of_bits(DType::f16, {0x7bff, 0x0400, 0x0001, 0x8000, 0x7c00, 0x7e01, 0x7d23, 0xffff, 0x3c00});
  c.inputs["bfloat16"] = of_bits(DType::bf16, {0x477f, 0x3880, 0x3380, 0x8000, 0x7f80, 0x7fc1, 0x7fa5, 0xffff, 0x0001});
  c.inputs["float32"] =
      of_bits(DType::f32, {0x477fe000, 1, 0x80000000, 0x7f800000, 0x7fc12345, 0x7fa00001, 0x007fffff});
  c.inputs["float64"] = of_bits(DType::f64, {1, 0x8000000000000000u, 0x7ff8000000001234u, 0x7ff4000000000001u,
                                             0x000fffffffffffffu, 0x40effc0000000000u});
  c.inputs["int32"] = of_bits(DType::i32, {0, 1, 0xffffffffu, 0x80000000u, 0x7fffffffu});
  BOOST_TEST(same_case(read_back(scratch / "bits.h5", c), c));
}

BOOST_AUTO_TEST_CASE(every_16_bit_pattern) {
  const Scratch scratch;
  std::vector<std::uint64_t> all(65536);
  for (std::size_t n = 0; n < all.size(); ++n) all[n] = n;
  Case c;
  c.name = "all";
  c.inputs["f"] = of_bits(DType::f16, all);
  c.inputs["b"] = of_bits(DType::bf16, all);
  BOOST_TEST(same_case(read_back(scratch / "all.h5", c), c));
}

BOOST_AUTO_TEST_CASE(ranks_and_extents) {
  const Scratch scratch;
  Case c;
  c.name = "shapes";
  const std::vector<std::vector<std::int64_t>> shapes = {
      {}, {0}, {1}, {7}, {2, 0, 3}, {2, 3}, {2, 1, 3}, {1, 2, 3, 4}, {2, 1, 2, 1, 2, 1}};
  for (const auto& shape : shapes) {
    const Tensor tensor = Tensor::zeros(shape, DType::f32);
    for (std::int64_t n = 0; n < tensor.view().size(); ++n) *tensor.view().at<float>(n) = static_cast<float>(n) + 1;
    c.inputs["x" + shape_string(shape)] = tensor;
  }
  BOOST_TEST(same_case(read_back(scratch / "shapes.h5", c), c));
}

BOOST_AUTO_TEST_CASE(attributes_and_names) {
  const Scratch scratch;
  Case c = small_case();
  c.name = "name with spaces, ünïcode & <signs>";
  c.attributes = {{"lowest", std::numeric_limits<std::int64_t>::min()},
                  {"highest", std::numeric_limits<std::int64_t>::max()},
                  {"real", 0.1},
                  {"tiny", 5e-324},
                  {"minus_zero", -0.0},
                  {"text", std::string("ω")},
                  {"empty", std::string()}};
  for (int n = 0; n < 40; ++n)
    c.attributes["a" + std::to_string(n)] = std::int64_t{n};  // beyond HDF5's compact default
  const Case back = read_back(scratch / "attributes.h5", c);
  BOOST_TEST(same_case(back, c));
  BOOST_TEST(std::signbit(std::get<double>(back.attributes.at("minus_zero"))));
}

BOOST_AUTO_TEST_CASE(many_cases_in_alphabetical_order) {
  const Scratch scratch;
  const std::string path = scratch / "many.h5";
  CaseWriter writer(path, "many");
  for (int n = 299; n >= 0; --n) {
    Case c = generate_case("swiglu/shapes/scalar_f32");
    c.name = "case" + std::to_string(1000 + n);
    writer.add(c);
  }
  writer.commit();
  const CaseReader reader(path);
  BOOST_TEST(reader.generator() == "many");
  BOOST_REQUIRE(reader.names().size() == 300u);
  BOOST_TEST(std::is_sorted(reader.names().begin(), reader.names().end()));
  for (const std::string& name : reader.names()) BOOST_TEST(reader.read(name).inputs.size() == 3u);
}

BOOST_AUTO_TEST_CASE(strided_views_are_stored_in_row_order) {
  const Scratch scratch;
  const Case c = generate_case("attention/strided_views/tokens_outermost_bf16");
  Case named = c;
  named.name = "strided";
  BOOST_REQUIRE(!c.inputs.at("q").view().contiguous());
  BOOST_TEST(same_case(read_back(scratch / "strided.h5", named), named));
}

BOOST_AUTO_TEST_CASE(equal_content_is_an_equal_file) {
  const Scratch scratch;
  for (const char* name : {"a.h5", "b.h5"}) {
    CaseWriter writer(scratch / name, "equal");
    for (const char* generated :
         {"attention/packed/tail_sparse_bf16", "rope/positions/packed_f16", "merge/parts/vector_spread_f64"}) {
      Case c = generate_case(generated);
      std::replace(c.name.begin(), c.name.end(), '/', '.');
      writer.add(c);
    }
    writer.commit();
    ::sleep(name[0] == 'a' ? 1 : 0);  // stored times would differ
  }
  const auto a = bytes_of(scratch / "a.h5");
  BOOST_TEST(a.size() > 1000u);
  BOOST_TEST((a == bytes_of(scratch / "b.h5")));
}

#ifdef DSALT_H5DUMP
BOOST_AUTO_TEST_CASE(h5dump_shows_rows_in_order_and_our_types) {
  const Scratch scratch;
  const std::string path = scratch / "rows.h5";
  Case c;
  c.name = "rows";
  const Tensor rows = Tensor::empty({2, 3}, DType::i32);
  for (std::int64_t n = 0; n < 6; ++n) *rows.view().at<std::int32_t>(n) = static_cast<std::int32_t>(n < 3 ? n : 97 + n);
  c.inputs["rows"] = rows;
  c.inputs["b"] = of_bits(DType::bf16, {0x3f80, 0x4040});
  c.inputs["f"] = of_bits(DType::f16, {0x7bff, 0x0001});
  read_back(path, c);
  const std::string text = output_of("'" DSALT_H5DUMP "' '" + path + "'");
  BOOST_TEST(contains(text, "(0,0): 0, 1, 2,"), text);
  BOOST_TEST(contains(text, "(1,0): 100, 101, 102"), text);
  BOOST_TEST(contains(text, "\"dsalt-cases\""), text);
  BOOST_TEST(contains(text, "(0): 1, 3"), text);                // bfloat16
  BOOST_TEST(contains(text, "(0): 65504, 5.96046e-08"), text);  // float16
  BOOST_TEST(contains(output_of("'" DSALT_H5DUMP "' -p -H '" + path + "'"), "CONTIGUOUS"));
}
#endif

BOOST_AUTO_TEST_CASE(writing_goes_aside_until_commit) {
  const Scratch scratch;
  const std::string path = scratch / "target.h5";
  write_bytes(path, {'o', 'l', 'd'});
  const auto entries = [&] {
    return std::distance(std::filesystem::directory_iterator(scratch.folder()), std::filesystem::directory_iterator());
  };
  {
    CaseWriter writer(path, "abandoned");
    writer.add(small_case());
    BOOST_TEST(entries() == 2);
    BOOST_TEST((bytes_of(path) == std::vector<char>{'o', 'l', 'd'}));
  }
  BOOST_TEST(entries() == 1);  // abandoned: only the old file is left
  BOOST_TEST((bytes_of(path) == std::vector<char>{'o', 'l', 'd'}));
  CaseWriter writer(path, "committed");
  writer.add(small_case());
  writer.commit();
  BOOST_TEST(entries() == 1);
  BOOST_TEST(CaseReader(path).generator() == "committed");
  BOOST_CHECK_THROW(writer.commit(), IoError);
  BOOST_CHECK_THROW(writer.add(small_case()), IoError);
}

BOOST_AUTO_TEST_CASE(a_link_stays_a_link) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch / "elsewhere");
  write_bytes(scratch / "elsewhere/real.h5", {});
  std::filesystem::create_symlink(scratch / "elsewhere/real.h5", scratch / "link.h5");
  CaseWriter writer(scratch / "link.h5", "through a link");
  writer.commit();
  BOOST_TEST(std::filesystem::is_symlink(scratch / "link.h5"));
  BOOST_TEST(CaseReader(scratch / "elsewhere/real.h5").generator() == "through a link");
}

BOOST_AUTO_TEST_CASE(targets_that_cannot_be_written) {
  const Scratch scratch;
  BOOST_TEST(contains(message_of<IoError>([&] { CaseWriter(scratch.folder().string(), "x"); }), "it is a directory"));
  BOOST_TEST(
      contains(message_of<IoError>([&] { CaseWriter(scratch / "no/such/folder.h5", "x"); }), "cannot write beside it"));
  BOOST_TEST(contains(message_of<IoError>([] { CaseWriter("/dev/null", "x"); }), "not a regular file"));
  CaseWriter writer(scratch / "names.h5", "x");
  Case c = small_case();
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("."), std::string("a\0b", 3)}) {
    c.name = name;
    BOOST_CHECK_THROW(writer.add(c), InvalidArgument);
  }
  c.name = "twice";
  writer.add(c);
  BOOST_TEST(contains(message_of<IoError>([&] { writer.add(c); }), "/cases/twice"));
}

BOOST_AUTO_TEST_CASE(two_readers_and_a_moved_one) {
  const Scratch scratch;
  const Case c = small_case();
  read_back(scratch / "a.h5", c);
  CaseReader first(scratch / "a.h5"), second(scratch / "a.h5");
  CaseReader moved = std::move(first);
  BOOST_TEST(same_case(moved.read("small"), c));
  BOOST_TEST(same_case(second.read("small"), c));
  second = std::move(moved);
  BOOST_TEST(same_case(second.read("small"), c));
}

BOOST_AUTO_TEST_CASE(limits_per_case) {
  const Scratch scratch;
  const Case c = small_case();
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : c.inputs)
    bytes += static_cast<std::uint64_t>(tensor.view().size()) * size_of(tensor.view().dtype);
  read_back(scratch / "a.h5", c);
  BOOST_TEST(same_case(CaseReader(scratch / "a.h5", {bytes}).read("small"), c));
  const CaseReader tight(scratch / "a.h5", {bytes - 1});
  BOOST_TEST(contains(message_of<IoError>([&] { tight.read("small"); }), "limit per case"));
}

BOOST_AUTO_TEST_SUITE_END()
