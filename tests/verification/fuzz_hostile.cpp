// Well-formed HDF5 that is no honest case file: each fault gets an IoError that names the file, the object and the
// fault.
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>

#include "fuzz_support.hpp"
#include "hdf5_by_hand.hpp"

using namespace fuzz_support;
using by_hand::File;

namespace {

/// The message when the file is opened and its only case read.
std::string fault(const std::string& path, const CaseFileLimits& limits = {}) {
  return message_of<IoError>([&] {
    const CaseReader reader(path, limits);
    for (const std::string& name : reader.names()) reader.read(name);
  });
}

/// A swiglu case on whose open inputs group `change` works.
template <class Change>
std::string changed(const Change& change) {
  const Scratch scratch;
  const std::string path = scratch / "hostile.h5";
  {
    const File file(path);
    change(file, by_hand::add_swiglu(file));
  }
  BOOST_TEST((judge(path, 512) != Verdict::crashed));
  const std::string message = fault(path);
  BOOST_TEST((message == "nothing was thrown" || contains(message, path)), message);
  return message;
}

hid_t replace(hid_t inputs, hid_t type, const std::vector<hsize_t>& extents, hid_t properties = H5P_DEFAULT) {
  H5Ldelete(inputs, "gate", H5P_DEFAULT);
  return File::dataset(inputs, "gate", type, extents, {}, properties);
}

#define CHECK_FAULT(message, part) BOOST_TEST(contains(message, part), message)

}  // namespace

BOOST_AUTO_TEST_SUITE(fuzz_hostile)

BOOST_AUTO_TEST_CASE(not_a_case_file_at_all) {
  const Scratch scratch;
  CHECK_FAULT(fault(scratch / "absent.h5"), "No such file");
  CHECK_FAULT(fault(scratch.folder().string()), "it is a directory");
  CHECK_FAULT(fault("/dev/null"), "not a regular file");
  BOOST_REQUIRE(::mkfifo((scratch / "fifo.h5").c_str(), 0600) == 0);
  CHECK_FAULT(fault(scratch / "fifo.h5"), "not a regular file");
  write_bytes(scratch / "empty.h5", {});
  CHECK_FAULT(fault(scratch / "empty.h5"), "cannot open as an HDF5 file");
  write_bytes(scratch / "text.h5", {'h', 'e', 'l', 'l', 'o'});
  CHECK_FAULT(fault(scratch / "text.h5"), "cannot open as an HDF5 file");
}

BOOST_AUTO_TEST_CASE(root_attributes) {
  const Scratch scratch;
  const std::string path = scratch / "root.h5";
  const auto with = [&](const char* schema, std::int64_t version, bool generator, bool cases) {
    {
      const File file(path, false);
      if (schema != nullptr) File::text(file.id, "schema", schema);
      File::number<std::int64_t>(file.id, "version", H5T_STD_I64LE, version);
      if (generator) File::text(file.id, "generator", "x");
      if (cases) File::group(file.id, "cases");
    }
    return fault(path);
  };
  CHECK_FAULT(with(nullptr, 1, true, true), "missing attribute schema");
  CHECK_FAULT(with("other", 1, true, true), "schema is not \"dsalt-cases\"");
  CHECK_FAULT(with("dsalt-cases", 2, true, true), "is version 2");
  CHECK_FAULT(with("dsalt-cases", 1, false, true), "missing attribute generator");
  CHECK_FAULT(with("dsalt-cases", 1, true, false), "/cases: missing group");
  BOOST_TEST(with("dsalt-cases", 1, true, true) == "nothing was thrown");  // no case is no fault of the file
}

BOOST_AUTO_TEST_CASE(unknown_objects) {
  CHECK_FAULT(changed([](const File& f, hid_t) { File::group(f.id, "more"); }), "/more: unknown object");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::text(f.id, "more", "x"); }), "unknown attribute more");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::text(f.cases, "more", "x"); }), "unknown attribute more");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::group(H5Gopen2(f.cases, "one", H5P_DEFAULT), "more"); }),
              "/cases/one/more: unknown object");
  CHECK_FAULT(changed([](const File&, hid_t inputs) { File::text(inputs, "more", "x"); }), "unknown attribute more");
  CHECK_FAULT(
      changed([](const File&, hid_t inputs) { File::text(H5Dopen2(inputs, "gate", H5P_DEFAULT), "unit", "metre"); }),
      "gate: unknown attribute unit");
  CHECK_FAULT(changed([](const File&, hid_t inputs) { File::group(inputs, "deeper"); }), "deeper: is not a dataset");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::dataset(f.cases, "flat", H5T_IEEE_F64LE, {1}, {1}); }),
              "/cases/flat: is not a group");
}

BOOST_AUTO_TEST_CASE(missing_parts_of_a_case) {
  CHECK_FAULT(changed([](const File& f, hid_t) { File::group(f.cases, "two"); }), "/cases/two: missing attribute op");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::text(File::group(f.cases, "two"), "op", "swiglu"); }),
              "/cases/two/inputs: missing group");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::text(File::group(f.cases, "two"), "op", "sort"); }),
              "\"sort\" is not an operation");
  CHECK_FAULT(changed([](const File& f, hid_t) {
                File::number<std::int64_t>(File::group(f.cases, "two"), "op", H5T_STD_I64LE, 3);
              }),
              "op is not a string");
}

BOOST_AUTO_TEST_CASE(links_elsewhere) {
  CHECK_FAULT(changed([](const File&, hid_t inputs) {
                H5Lcreate_soft("/cases/one/inputs/gate", inputs, "dy", H5P_DEFAULT, H5P_DEFAULT);
              }),
              "dy: is a soft link");
  CHECK_FAULT(changed([](const File& f, hid_t) {
                H5Lcreate_external("/etc/passwd", "/", f.cases, "two", H5P_DEFAULT, H5P_DEFAULT);
              }),
              "/cases/two: is an external link");
  // A hard link back to the root: read as what it is, not followed without end.
  CHECK_FAULT(
      changed([](const File& f, hid_t) { H5Lcreate_hard(f.id, "/", f.cases, "loop", H5P_DEFAULT, H5P_DEFAULT); }),
      "/cases/loop: missing attribute op");
}

BOOST_AUTO_TEST_CASE(data_elsewhere) {
  CHECK_FAULT(changed([](const File&, hid_t inputs) {
                const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
                H5Pset_external(properties, "/etc/passwd", 0, 24);
                replace(inputs, H5T_IEEE_F64LE, {3}, properties);
              }),
              "gate: is stored in external files");
  CHECK_FAULT(changed([](const File&, hid_t inputs) {
                const hsize_t three = 3;
                const hid_t space = H5Screate_simple(1, &three, nullptr), properties = H5Pcreate(H5P_DATASET_CREATE);
                H5Pset_virtual(properties, space, "/etc/passwd", "/x", space);
                replace(inputs, H5T_IEEE_F64LE, {3}, properties);
              }),
              "gate: is a virtual dataset");
}

BOOST_AUTO_TEST_CASE(element_types) {
  for (const hid_t type :
       {H5T_STD_I64LE, H5T_STD_U32LE, H5T_STD_I8LE, H5T_STD_B32LE, H5T_C_S1, H5T_STD_REF_OBJ, H5T_NATIVE_LDOUBLE})
    CHECK_FAULT(changed([&](const File&, hid_t inputs) { replace(inputs, type, {3}); }),
                "needs float64, float32, bfloat16");
  const auto small_float = [](std::size_t exponent_at, std::size_t exponent, std::size_t mantissa, std::size_t bias) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, exponent_at, exponent, 0, mantissa);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, bias);
    return type;
  };
  for (const hid_t type : {small_float(10, 5, 10, 16), small_float(7, 8, 7, 126), small_float(9, 6, 9, 31)})
    CHECK_FAULT(changed([&](const File&, hid_t inputs) { replace(inputs, type, {3}); }), "16-bit float with");
  CHECK_FAULT(changed([&](const File&, hid_t inputs) {
                const hid_t big = small_float(10, 5, 10, 15);
                H5Tset_order(big, H5T_ORDER_BE);
                replace(inputs, big, {3});
              }),
              "big-endian");
  const hsize_t two = 2;
  CHECK_FAULT(
      changed([&](const File&, hid_t inputs) { replace(inputs, H5Tarray_create2(H5T_IEEE_F64LE, 1, &two), {3}); }),
      "array type");
  CHECK_FAULT(changed([&](const File&, hid_t inputs) { replace(inputs, H5Tvlen_create(H5T_IEEE_F64LE), {3}); }),
              "variable-length type");
  CHECK_FAULT(changed([&](const File&, hid_t inputs) {
                const hid_t type = H5Tcreate(H5T_COMPOUND, 8);
                H5Tinsert(type, "x", 0, H5T_IEEE_F64LE);
                replace(inputs, type, {3});
              }),
              "compound type");
}

BOOST_AUTO_TEST_CASE(attribute_types) {
  const auto with = [](const std::function<void(hid_t)>& add) {
    return changed([&](const File& f, hid_t) { add(H5Gopen2(f.cases, "one", H5P_DEFAULT)); });
  };
  const hsize_t two = 2, none = 0;
  const double values[2] = {1, 2};
  CHECK_FAULT(
      with([&](hid_t c) { File::attribute(c, "eps", H5T_IEEE_F64LE, H5Screate_simple(1, &two, nullptr), values); }),
      "attribute eps: is not one value");
  CHECK_FAULT(
      with([&](hid_t c) { File::attribute(c, "eps", H5T_IEEE_F64LE, H5Screate_simple(1, &none, nullptr), values); }),
      "attribute eps: is not one value");
  CHECK_FAULT(with([&](hid_t c) { File::attribute(c, "eps", H5T_IEEE_F64LE, H5Screate(H5S_NULL), values); }),
              "attribute eps: is not one value");
  CHECK_FAULT(with([&](hid_t c) {
                File::attribute(c, "eps", H5T_NATIVE_LDOUBLE, H5Screate(H5S_SCALAR), values, H5T_NATIVE_DOUBLE);
              }),
              "attribute eps: has type 128-bit float");
  CHECK_FAULT(with([&](hid_t c) { File::number<std::uint64_t>(c, "k", H5T_STD_U64LE, 1ull << 63); }), "needs an int64");
  CHECK_FAULT(with([&](hid_t c) { File::text(c, "note", std::string(60'000, 'x') + "\xff"); }),
              "note: is not UTF-8 text");
  CHECK_FAULT(with([&](hid_t c) { File::text(c, "note", "bell \a"); }), "note: is not UTF-8 text");
  CHECK_FAULT(with([&](hid_t c) { File::variable_text(c, "note", std::string(100'000, 'x').c_str()); }),
              "note: is longer than");
  CHECK_FAULT(with([&](hid_t c) {
                for (int n = 0; n < 100; ++n)
                  File::number<double>(c, ("a" + std::to_string(n)).c_str(), H5T_IEEE_F64LE, n);
              }),
              "has more than 64 attributes");
  CHECK_FAULT(with([&](hid_t c) { File::number<double>(c, "\xc3\x28", H5T_IEEE_F64LE, 1); }), "name is not UTF-8");
}

BOOST_AUTO_TEST_CASE(names_that_are_no_text) {
  CHECK_FAULT(changed([](const File& f, hid_t) { File::group(f.cases, "\xff\xfe"); }), "name is not UTF-8 text");
  CHECK_FAULT(changed([](const File& f, hid_t) { File::group(f.cases, "line\nbreak"); }), "name is not UTF-8 text");
}

BOOST_AUTO_TEST_CASE(giant_extents) {
  const hsize_t giant = hsize_t{1} << 40;
  const auto chunked = [](const std::vector<hsize_t>& extents, bool deflate) {
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, static_cast<int>(extents.size()), extents.data());
    if (deflate) H5Pset_deflate(properties, 9);
    return properties;
  };
  // Nothing of them is stored: late allocation lets a small file declare anything.
  CHECK_FAULT(changed([&](const File&, hid_t i) { replace(i, H5T_IEEE_F64LE, {giant}); }), "larger than the limit");
  CHECK_FAULT(changed([&](const File&, hid_t i) {
                replace(i, H5T_IEEE_F64LE, {giant, giant / 8, 8, giant}, chunked({1, 1, 1, 1}, false));
              }),
              "larger than the limit");
  CHECK_FAULT(changed([&](const File&, hid_t i) {
                replace(i, H5T_IEEE_F64LE, {0, giant, giant});
              }),
              "larger than the limit");
  CHECK_FAULT(changed([&](const File&, hid_t i) { replace(i, H5T_IEEE_F64LE, {1000, 1000}); }), "but 0 are stored");
  CHECK_FAULT(changed([&](const File&, hid_t i) { replace(i, H5T_IEEE_F64LE, {100'000'000}, chunked({1000}, false)); }),
              "but 0 are stored");
  CHECK_FAULT(changed([&](const File&, hid_t i) { replace(i, H5T_IEEE_F64LE, {100'000'000}, chunked({1000}, true)); }),
              "but 0 are stored");
  CHECK_FAULT(changed([&](const File&, hid_t i) {
                H5Ldelete(i, "gate", H5P_DEFAULT);
                const hsize_t ten = 10, endless = H5S_UNLIMITED;  // a chunk may be larger than what may still grow
                const hid_t properties = chunked({1u << 29}, false);
                H5Dcreate2(i, "gate", H5T_IEEE_F32LE, H5Screate_simple(1, &ten, &endless), H5P_DEFAULT, properties,
                           H5P_DEFAULT);
              }),
              "chunks far larger than itself");
  CHECK_FAULT(changed([&](const File&, hid_t i) { replace(i, H5T_IEEE_F64LE, {1, 1, 1, 1, 1, 1, 1}); }), "has rank 7");
  CHECK_FAULT(changed([&](const File&, hid_t i) {
                H5Ldelete(i, "gate", H5P_DEFAULT);
                H5Dcreate2(i, "gate", H5T_IEEE_F64LE, H5Screate(H5S_NULL), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
              }),
              "has no extent");
}

BOOST_AUTO_TEST_CASE(a_chunk_that_is_stored_but_says_it_is_compressed_elsewhere) {
  CHECK_FAULT(changed([&](const File&, hid_t i) {
                const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
                const hsize_t three = 3;
                H5Pset_chunk(properties, 1, &three);
                H5Pset_nbit(properties);
                replace(i, H5T_IEEE_F64LE, {3}, properties);
              }),
              "uses filter");
}

BOOST_AUTO_TEST_CASE(a_compression_bomb) {
  const Scratch scratch;
  const std::string path = scratch / "bomb.h5";
  constexpr hsize_t count = hsize_t{24} << 20;  // 192 MiB of zeros in 200 kB
  {
    const File file(path);
    const hid_t inputs = by_hand::add_swiglu(file);
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 1 << 20;
    H5Pset_chunk(properties, 1, &chunk);
    H5Pset_deflate(properties, 9);
    H5Ldelete(inputs, "gate", H5P_DEFAULT);
    File::dataset(inputs, "gate", H5T_IEEE_F64LE, {count}, std::vector<double>(count, 0.0), properties);
  }
  BOOST_TEST(std::filesystem::file_size(path) < 400'000u);
  CHECK_FAULT(fault(path, {std::uint64_t{64} << 20}), "larger than the limit");
  BOOST_TEST((judge(path, 512) == Verdict::refused));
}

BOOST_AUTO_TEST_CASE(a_good_case_beside_a_bad_one_is_read) {
  const Scratch scratch;
  const std::string path = scratch / "mixed.h5";
  {
    const File file(path);
    by_hand::add_swiglu(file, "good");
    replace(by_hand::add_swiglu(file, "bad"), H5T_STD_I64LE, {3});
  }
  const CaseReader reader(path);
  CHECK_FAULT(message_of<IoError>([&] { reader.read("bad"); }), "/cases/bad/inputs/gate");
  BOOST_TEST(reader.read("good").inputs.size() == 2u);
  CHECK_FAULT(message_of<IoError>([&] { reader.read("neither"); }), "no such case");
}

BOOST_AUTO_TEST_SUITE_END()
