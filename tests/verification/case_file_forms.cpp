// Forms that other programs may give a case file: strings, integers, byte orders and layouts that mean the same.
#include <boost/test/unit_test.hpp>

#include "case_support.hpp"
#include "hdf5_by_hand.hpp"

using namespace case_support;
using by_hand::File;

namespace {

Case only_case(const std::string& path) {
  const CaseReader reader(path);
  BOOST_REQUIRE(reader.names().size() == 1u);
  return reader.read(reader.names().front());
}

/// gate = [1,2,3] as float64, however it is stored.
void check_gate(const Case& c) {
  const TensorView& gate = c.inputs.at("gate").view();
  BOOST_REQUIRE((gate.dtype == DType::f64 && gate.rank == 1 && gate.shape[0] == 3));
  for (std::int64_t n = 0; n < 3; ++n) BOOST_TEST(*gate.at<double>(n) == static_cast<double>(n + 1));
}

hid_t chunked(const std::vector<hsize_t>& extents) {
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(properties, static_cast<int>(extents.size()), extents.data());
  return properties;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(case_file_forms)

BOOST_AUTO_TEST_CASE(strings_of_every_kind) {
  const Scratch scratch;
  const std::string path = scratch / "strings.h5";
  {
    File file(path, false);
    File::variable_text(file.id, "schema", "dsalt-cases");
    File::number<std::int64_t>(file.id, "version", H5T_STD_I64LE, 1);
    File::text(file.id, "generator", "padded   ", H5T_STR_SPACEPAD);
    file.cases = File::group(file.id, "cases");
    const hid_t c = File::group(file.cases, "strings");
    File::text(c, "op", "attention", H5T_STR_NULLPAD);
    File::variable_text(c, "mask", "full");
    File::variable_text(c, "nothing", "");
    File::group(c, "inputs");
  }
  const CaseReader reader(path);
  BOOST_TEST(reader.generator() == "padded");
  const Case c = reader.read("strings");
  BOOST_TEST((c.op == Operation::attention));
  BOOST_TEST(std::get<std::string>(c.attributes.at("mask")) == "full");
  BOOST_TEST(std::get<std::string>(c.attributes.at("nothing")).empty());
}

BOOST_AUTO_TEST_CASE(numbers_of_every_width) {
  const Scratch scratch;
  const std::string path = scratch / "numbers.h5";
  {
    const File file(path);
    const hid_t inputs = by_hand::add_swiglu(file);
    const hid_t c = H5Gopen2(file.cases, "one", H5P_DEFAULT);
    File::number<std::int64_t>(c, "i8", H5T_STD_I8BE, -7);
    File::number<std::int64_t>(c, "u16", H5T_STD_U16BE, 60000);
    File::number<std::int64_t>(c, "i64be", H5T_STD_I64BE, -(std::int64_t{1} << 40));
    File::number<double>(c, "f32", H5T_IEEE_F32BE, 0.5);
    File::number<double>(c, "f64be", H5T_IEEE_F64BE, 0.1);
    File::number<std::uint64_t>(c, "dropout_seed", H5T_STD_U64LE, 0xfedcba9876543210u);
    const hsize_t one = 1;
    const double value = 2.5;
    File::attribute(c, "list_of_one", H5T_IEEE_F64LE, H5Screate_simple(1, &one, nullptr), &value);
    H5Gclose(inputs);
  }
  const Case c = only_case(path);
  BOOST_TEST(std::get<std::int64_t>(c.attributes.at("i8")) == -7);
  BOOST_TEST(std::get<std::int64_t>(c.attributes.at("u16")) == 60000);
  BOOST_TEST(std::get<std::int64_t>(c.attributes.at("i64be")) == -(std::int64_t{1} << 40));
  BOOST_TEST(std::get<double>(c.attributes.at("f32")) == 0.5);
  BOOST_TEST(std::get<double>(c.attributes.at("f64be")) == 0.1);
  BOOST_TEST(std::get<double>(c.attributes.at("list_of_one")) == 2.5);
  BOOST_TEST(static_cast<std::uint64_t>(std::get<std::int64_t>(c.attributes.at("dropout_seed"))) ==
             0xfedcba9876543210u);
}

BOOST_AUTO_TEST_CASE(other_byte_orders_and_layouts) {
  const Scratch scratch;
  const std::string path = scratch / "layouts.h5";
  const auto with_gate = [&](hid_t type, hid_t properties) {
    const File file(path);
    const hid_t inputs = by_hand::add_swiglu(file);
    H5Ldelete(inputs, "gate", H5P_DEFAULT);
    File::dataset(inputs, "gate", type, {3}, {1, 2, 3}, properties);
  };
  with_gate(H5T_IEEE_F64BE, H5P_DEFAULT);
  check_gate(only_case(path));
  with_gate(H5T_IEEE_F64LE, chunked({2}));
  check_gate(only_case(path));
  const hid_t compressed = chunked({2});
  H5Pset_shuffle(compressed);
  H5Pset_deflate(compressed, 9);
  H5Pset_fletcher32(compressed);
  with_gate(H5T_IEEE_F64LE, compressed);
  check_gate(only_case(path));
  const hid_t compact = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_layout(compact, H5D_COMPACT);
  with_gate(H5T_IEEE_F64LE, compact);
  check_gate(only_case(path));
  const Tensors out = evaluate(*make_backend("reference"), only_case(path));
  BOOST_TEST(*out.at("y").view().at<double>(0) == 4 / (1 + std::exp(-1.0)), boost::test_tools::tolerance(1e-15));
}

BOOST_AUTO_TEST_CASE(well_compressed_data_is_read) {
  const Scratch scratch;
  const std::string path = scratch / "zeros.h5";
  constexpr hsize_t count = 4 << 20;
  {
    const File file(path);
    const hid_t inputs = by_hand::add_swiglu(file);
    H5Ldelete(inputs, "up", H5P_DEFAULT);
    const hid_t properties = chunked({1 << 17});
    H5Pset_deflate(properties, 9);
    File::dataset(inputs, "up", H5T_IEEE_F64LE, {count}, std::vector<double>(count, 0.0), properties);
  }
  BOOST_TEST(std::filesystem::file_size(path) < 200'000u);
  BOOST_TEST(only_case(path).inputs.at("up").view().size() == static_cast<std::int64_t>(count));
}

BOOST_AUTO_TEST_SUITE_END()
