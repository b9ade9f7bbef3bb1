// Reading the objects of an HDF5 file that nobody vouches for: groups, attributes, datasets.
//
// Only hard links are followed, only datasets stored in this very file are read, and every declared size is compared
// with the bytes that the file really has before memory is asked for. Every fault is an IoError that names the file,
// the object (the `object` of each call, a path for people) and what is wrong.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dsalt/verification/case.hpp"
#include "hdf5_handle.hpp"

namespace dsalt::verification {

class ObjectReader {
 public:
  ObjectReader(std::string path, std::uint64_t file_size) : path_(std::move(path)), file_size_(file_size) {}

  [[noreturn]] void refuse(const std::string& object, const std::string& fault) const;

  /// The names of a group's members in alphabetical order; anything but a hard link is refused.
  std::vector<std::string> members(hid_t group, const std::string& object) const;
  Hdf5Handle open_group(hid_t parent, const std::string& name, const std::string& object) const;
  Hdf5Handle open_dataset(hid_t parent, const std::string& name, const std::string& object) const;

  std::map<std::string, Attribute> attributes(hid_t id, const std::string& object) const;
  void require_no_attributes(hid_t id, const std::string& object) const;

  /// Reads a dataset whose declared bytes fit into `bytes_left`, and takes them off.
  Tensor tensor(hid_t dataset, const std::string& object, std::uint64_t& bytes_left) const;

 private:
  Hdf5Handle open_object(hid_t parent, const std::string& name, const std::string& object, H5I_type_t kind,
                         const char* what) const;
  Attribute attribute(hid_t id, const std::string& name, const std::string& object) const;
  Attribute integer_attribute(hid_t attribute, hid_t type, const std::string& name, const std::string& object) const;
  std::string text_attribute(hid_t attribute, hid_t type, const std::string& object) const;
  void check_storage(hid_t dataset, std::uint64_t bytes, std::uint64_t limit, const std::string& object) const;
  void check_chunks(hid_t dataset, hid_t properties, std::uint64_t bytes, std::uint64_t limit,
                    const std::string& object) const;

  std::string path_;
  std::uint64_t file_size_;
};

}  // namespace dsalt::verification
