// A case file written by h5py is read, and one of ours is read by h5py, bit for bit. Without h5py the program ends with
// code 77, which CTest shows as a skipped test.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <iostream>

#include "case_support.hpp"

using namespace case_support;

namespace {

struct RequireH5py {
  void setup() {
    if (std::system("/usr/bin/python3 -c 'import h5py, numpy'") == 0) return;
    std::cerr << "skipped: /usr/bin/python3 has no h5py (Debian: python3-h5py)" << std::endl;
    std::_Exit(77);
  }
};

int run_python(const std::string& script, const std::string& argument) {
  return std::system(("/usr/bin/python3 '" + script + "' '" + argument + "'").c_str());
}

constexpr const char* write_script = R"(
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w") as f:
    f.attrs["schema"] = "dsalt-cases"
    f.attrs["version"] = 1
    f.attrs["generator"] = "h5py"
    c = f.create_group("cases/rope.case")
    c.attrs["op"] = "rope"
    c.attrs["base"] = 10000.0
    c.attrs["rope_scale"] = np.float32(2)
    c.attrs["position"] = np.int32(3)
    c.create_group("inputs")
    c["inputs"]["x"] = np.arange(16, dtype=np.float16).reshape(1, 2, 2, 4)
    c.create_group("outputs")
    c = f.create_group("cases/norm")
    c.attrs["op"] = np.bytes_("rmsnorm")
    b = h5py.h5t.IEEE_F32LE.copy()
    b.set_fields(15, 7, 8, 0, 7); b.set_size(2); b.set_ebias(127)
    g = c.create_group("inputs")
    for name, bits in (("x", [0x3f80, 0x4000, 0x4040]), ("gamma", [0x3f80, 0x3f80, 0x3f80])):
        space = h5py.h5s.create_simple((3,))
        d = h5py.h5d.create(g.id, name.encode(), b, space)
        d.write(space, space, np.array(bits, dtype=np.uint16), mtype=b)
    c.create_group("outputs")
)";

constexpr const char* read_script = R"(
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "r") as f:
    assert f.attrs["schema"] in ("dsalt-cases", b"dsalt-cases"), f.attrs["schema"]
    assert f.attrs["version"] == 1 and f.attrs["version"].dtype == np.int64
    c = f["cases/small"]
    assert c.attrs["op"] in ("attention", b"attention") and c.attrs["soft_tau"] == 0.5
    assert c.attrs["landmark_offset"].dtype == np.int64
    i = c["inputs"]
    assert i["q"].shape == (46, 4, 8) and i["landmarks"].dtype == np.int32
    assert i["window"].dtype == np.float32 and np.isnan(i["window"][45, 0])
    assert i["cu_seqlens_q"][...].tolist() == [0, 14, 42, 43]
    values = i["q"][...]  # h5py gives bfloat16 as float32
    assert values.dtype == np.float32 and np.isnan(values[43:]).all() and np.isfinite(values[:43]).all()
    assert all(d.chunks is None and d.compression is None for d in i.values())
)";

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireH5py);

BOOST_AUTO_TEST_SUITE(case_file_python)

BOOST_AUTO_TEST_CASE(h5py_writes_we_read) {
  const Scratch scratch;
  std::ofstream(scratch / "write.py") << write_script;
  BOOST_REQUIRE(run_python(scratch / "write.py", scratch / "python.h5") == 0);
  const CaseReader reader(scratch / "python.h5");
  BOOST_TEST(reader.generator() == "h5py");
  BOOST_TEST((reader.names() == std::vector<std::string>{"norm", "rope.case"}));
  const Case rope = reader.read("rope.case");
  BOOST_TEST(std::get<double>(rope.attributes.at("rope_scale")) == 2.0);
  BOOST_TEST(std::get<std::int64_t>(rope.attributes.at("position")) == 3);
  const TensorView& x = rope.inputs.at("x").view();
  BOOST_REQUIRE((x.dtype == DType::f16 && x.rank == 4 && x.size() == 16));
  for (std::int64_t n = 0; n < 16; ++n) BOOST_TEST(to_float(*x.at<float16>(n)) == static_cast<float>(n));
  const Case norm = reader.read("norm");
  BOOST_TEST((norm.inputs.at("x").view().dtype == DType::bf16));
  BOOST_TEST(to_float(*norm.inputs.at("x").view().at<bfloat16>(2)) == 3.0f);
  for (const Case& c : {rope, norm}) BOOST_CHECK_NO_THROW(evaluate(*make_backend("reference"), c));
}

BOOST_AUTO_TEST_CASE(we_write_h5py_reads) {
  const Scratch scratch;
  CaseWriter writer(scratch / "ours.h5", "test");
  writer.add(small_case());
  writer.commit();
  std::ofstream(scratch / "read.py") << read_script;
  BOOST_TEST(run_python(scratch / "read.py", scratch / "ours.h5") == 0);
}

BOOST_AUTO_TEST_SUITE_END()
