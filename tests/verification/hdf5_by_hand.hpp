// Case files made by hand with the HDF5 C API: what other programs may write, honest or hostile.
#pragma once

#include <hdf5.h>

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

namespace by_hand {

/// A file with the root attributes and an empty /cases; Failures of HDF5 fail the test.
class File {
 public:
  explicit File(const std::string& path, bool with_root = true) {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);  // objects that a test leaves open go with the file
    id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    BOOST_REQUIRE(id >= 0);
    if (!with_root) return;
    text(id, "schema", "dsalt-cases");
    number<std::int64_t>(id, "version", H5T_STD_I64LE, 1);
    text(id, "generator", "by hand");
    cases = group(id, "cases");
  }
  ~File() { H5Fclose(id); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  static hid_t group(hid_t parent, const char* name) {
    const hid_t made = H5Gcreate2(parent, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    BOOST_REQUIRE(made >= 0);
    return made;
  }

  /// A fixed-length string attribute, NUL-terminated as C writes it.
  static void text(hid_t object, const char* name, const std::string& value, H5T_str_t pad = H5T_STR_NULLTERM) {
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, value.size() + (pad == H5T_STR_NULLTERM));
    H5Tset_strpad(type, pad);
    attribute(object, name, type, space, value.c_str());
    H5Tclose(type);
  }
  static void variable_text(hid_t object, const char* name, const char* value) {
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    attribute(object, name, type, space, &value);
    H5Tclose(type);
  }
  template <class T>
  static void number(hid_t object, const char* name, hid_t type, T value) {
    attribute(object, name, type, H5Screate(H5S_SCALAR), &value, memory<T>());
  }
  /// Takes the space.
  static void attribute(hid_t object, const char* name, hid_t type, hid_t space, const void* value,
                        hid_t memory_type = -1) {
    const hid_t made = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    BOOST_REQUIRE(made >= 0);
    BOOST_REQUIRE(H5Awrite(made, memory_type < 0 ? type : memory_type, value) >= 0);
    H5Aclose(made);
    H5Sclose(space);
  }

  /// A dataset written from doubles (HDF5 converts to `type`); `values` may be empty.
  static hid_t dataset(hid_t parent, const char* name, hid_t type, const std::vector<hsize_t>& extents,
                       const std::vector<double>& values, hid_t properties = H5P_DEFAULT) {
    const hid_t space = extents.empty() ? H5Screate(H5S_SCALAR)
                                        : H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr);
    const hid_t made = H5Dcreate2(parent, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    BOOST_REQUIRE(made >= 0);
    if (!values.empty())
      BOOST_REQUIRE(H5Dwrite(made, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
    H5Sclose(space);
    return made;
  }

  hid_t id = -1, cases = -1;

 private:
  template <class T>
  static hid_t memory();
};

template <>
inline hid_t File::memory<std::int64_t>() {
  return H5T_NATIVE_INT64;
}
template <>
inline hid_t File::memory<std::uint64_t>() {
  return H5T_NATIVE_UINT64;
}
template <>
inline hid_t File::memory<double>() {
  return H5T_NATIVE_DOUBLE;
}

/// A swiglu case, gate = [1,2,3], up = [4,5,6] in float64; returns its inputs group.
inline hid_t add_swiglu(const File& file, const char* name = "one") {
  const hid_t c = File::group(file.cases, name);
  File::text(c, "op", "swiglu");
  const hid_t inputs = File::group(c, "inputs");
  H5Dclose(File::dataset(inputs, "gate", H5T_IEEE_F64LE, {3}, {1, 2, 3}));
  H5Dclose(File::dataset(inputs, "up", H5T_IEEE_F64LE, {3}, {4, 5, 6}));
  H5Gclose(c);
  return inputs;
}

}  // namespace by_hand
