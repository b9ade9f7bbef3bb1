// Groups and attributes of a case file; contract in stored_objects.hpp.
#include "stored_objects.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dsalt/errors.hpp"
#include "hdf5_types.hpp"

namespace dsalt::verification {
namespace {

constexpr std::size_t max_text = 1 << 16;   // bytes of one string attribute
constexpr std::size_t max_attributes = 64;  // per object

/// Whether a string is UTF-8 without control characters: it will be printed, and written into JSON and XML.
bool is_text(const std::string& text) {
  const auto byte = [&](std::size_t n) { return n < text.size() ? static_cast<unsigned char>(text[n]) : 0u; };
  for (std::size_t n = 0; n < text.size();) {
    const unsigned first = byte(n);
    const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first < 0x20 || first == 0x7f || (first >= 0x80 && first < 0xc2) || first > 0xf4) return false;
    for (std::size_t rest = 1; rest < length; ++rest)
      if ((byte(n + rest) & 0xc0) != 0x80) return false;
    // Overlong forms, surrogates, and beyond U+10FFFF.
    const unsigned second = byte(n + 1);
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) ||
        (first == 0xf4 && second > 0x8f))
      return false;
    n += length;
  }
  return true;
}

/// Names collected by an HDF5 iteration, which they stop when there are more than there can be.
struct NameList {
  std::vector<std::string> names;
  std::vector<H5L_type_t> links;
  std::size_t limit = 0;
  bool overflow = false;

  /// No exception may pass through HDF5.
  herr_t take(const char* name, H5L_type_t link) noexcept {
    try {
      if (names.size() < limit) {
        names.emplace_back(name);
        links.push_back(link);
        return 0;
      }
    } catch (...) {
    }
    overflow = true;
    return -1;
  }
};

const char* link_kind(H5L_type_t link) {
  return link == H5L_TYPE_SOFT ? "a soft link" : link == H5L_TYPE_EXTERNAL ? "an external link" : "a user-defined link";
}

}  // namespace

void ObjectReader::refuse(const std::string& object, const std::string& fault) const {
  throw IoError(path_ + ": " + object + ": " + fault);
}

std::vector<std::string> ObjectReader::members(hid_t group, const std::string& object) const {
  NameList list;
  list.limit = file_size_ / 8;
  const auto collect = [](hid_t, const char* name, const H5L_info_t* info, void* data) -> herr_t {
    return static_cast<NameList*>(data)->take(name, info->type);
  };
  hsize_t start = 0;
  const herr_t result = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &start, collect, &list);
  if (list.overflow) refuse(object, "has more members than the file has room for");
  if (result < 0) refuse(object, "cannot list its members" + hdf5_reason());
  for (std::size_t n = 0; n < list.names.size(); ++n) {
    if (!is_text(list.names[n])) refuse(object, "has a member whose name is not UTF-8 text without control characters");
    if (list.links[n] != H5L_TYPE_HARD)
      refuse(object + "/" + list.names[n],
             std::string("is ") + link_kind(list.links[n]) + "; only objects stored in this place are read");
  }
  return std::move(list.names);
}

Hdf5Handle ObjectReader::open_object(hid_t parent, const std::string& name, const std::string& object, H5I_type_t kind,
                                     const char* what) const {
  Hdf5Handle handle(H5Oopen(parent, name.c_str(), H5P_DEFAULT), H5Oclose);
  if (!handle.valid()) refuse(object, "cannot open" + hdf5_reason());
  if (H5Iget_type(handle) != kind) refuse(object, std::string("is not ") + what);
  return handle;
}

Hdf5Handle ObjectReader::open_group(hid_t parent, const std::string& name, const std::string& object) const {
  return open_object(parent, name, object, H5I_GROUP, "a group");
}

Hdf5Handle ObjectReader::open_dataset(hid_t parent, const std::string& name, const std::string& object) const {
  return open_object(parent, name, object, H5I_DATASET, "a dataset");
}

std::map<std::string, Attribute> ObjectReader::attributes(hid_t id, const std::string& object) const {
  NameList list;
  list.limit = max_attributes;
  const auto collect = [](hid_t, const char* name, const H5A_info_t*, void* data) -> herr_t {
    return static_cast<NameList*>(data)->take(name, H5L_TYPE_HARD);
  };
  hsize_t start = 0;
  const herr_t result = H5Aiterate2(id, H5_INDEX_NAME, H5_ITER_INC, &start, collect, &list);
  if (list.overflow) refuse(object, "has more than " + std::to_string(max_attributes) + " attributes");
  if (result < 0) refuse(object, "cannot list its attributes" + hdf5_reason());
  std::map<std::string, Attribute> values;
  for (const std::string& name : list.names) {
    if (!is_text(name)) refuse(object, "has an attribute whose name is not UTF-8 text without control characters");
    values[name] = attribute(id, name, object + ": attribute " + name);
  }
  return values;
}

void ObjectReader::require_no_attributes(hid_t id, const std::string& object) const {
  const auto values = attributes(id, object);
  if (!values.empty()) refuse(object, "unknown attribute " + values.begin()->first);
}

Attribute ObjectReader::attribute(hid_t id, const std::string& name, const std::string& object) const {
  const Hdf5Handle attribute(H5Aopen(id, name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.valid()) refuse(object, "cannot open" + hdf5_reason());
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  if (!space.valid() || !type.valid()) refuse(object, "has no readable type" + hdf5_reason());
  const H5S_class_t extent = H5Sget_simple_extent_type(space);
  if ((extent != H5S_SCALAR && extent != H5S_SIMPLE) || H5Sget_simple_extent_npoints(space) != 1)
    refuse(object, "is not one value");
  const std::size_t size = H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      if (size > 8) break;
      return integer_attribute(attribute, type, name, object);
    case H5T_FLOAT: {
      if (H5Tequal(type, H5T_IEEE_F64LE) <= 0 && H5Tequal(type, H5T_IEEE_F64BE) <= 0 &&
          H5Tequal(type, H5T_IEEE_F32LE) <= 0 && H5Tequal(type, H5T_IEEE_F32BE) <= 0)
        break;
      double value = 0;
      if (H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0) refuse(object, "cannot read" + hdf5_reason());
      return value;
    }
    case H5T_STRING: {
      std::string text = text_attribute(attribute, type, object);
      if (!is_text(text)) refuse(object, "is not UTF-8 text without control characters");
      return text;
    }
    default: break;
  }
  refuse(object, "has type " + describe_type(type) + "; needs int64, float64 or a string");
}

Attribute ObjectReader::integer_attribute(hid_t attribute, hid_t type, const std::string& name,
                                          const std::string& object) const {
  if (H5Tget_sign(type) == H5T_SGN_NONE) {
    std::uint64_t value = 0;
    if (H5Aread(attribute, H5T_NATIVE_UINT64, &value) < 0) refuse(object, "cannot read" + hdf5_reason());
    // A seed is a pattern of 64 bits; everything else is a number.
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) && name != "dropout_seed")
      refuse(object, "is " + std::to_string(value) + "; needs an int64");
    return static_cast<std::int64_t>(value);
  }
  std::int64_t value = 0;
  if (H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0) refuse(object, "cannot read" + hdf5_reason());
  return value;
}

std::string ObjectReader::text_attribute(hid_t attribute, hid_t type, const std::string& object) const {
  if (H5Tis_variable_str(type) > 0) {
    const Hdf5Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(memory, H5T_VARIABLE);
    H5Tset_cset(memory, H5Tget_cset(type));
    char* text = nullptr;
    if (H5Aread(attribute, memory, &text) < 0) refuse(object, "cannot read" + hdf5_reason());
    if (text == nullptr) return {};
    const std::size_t length = ::strnlen(text, max_text + 1);
    const std::string value(text, std::min(length, max_text));
    H5free_memory(text);
    if (length > max_text) refuse(object, "is longer than " + std::to_string(max_text) + " bytes");
    return value;
  }
  const std::size_t size = H5Tget_size(type);
  if (size == 0 || size > max_text)
    refuse(object, "is " + std::to_string(size) + " bytes long; at most " + std::to_string(max_text) + " are read");
  std::string value(size, '\0');
  if (H5Aread(attribute, type, value.data()) < 0) refuse(object, "cannot read" + hdf5_reason());
  const bool spaces = H5Tget_strpad(type) == H5T_STR_SPACEPAD;
  value.resize(std::min(value.find('\0'), size));
  while (spaces && !value.empty() && value.back() == ' ') value.pop_back();
  return value;
}

}  // namespace dsalt::verification
