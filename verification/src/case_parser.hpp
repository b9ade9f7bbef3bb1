// Parses one case file with HDF5, in this process. Used only inside the child process of case_reader.cpp, because the
// HDF5 library itself may crash on damaged metadata before anything can be checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsalt/verification/case_file.hpp"
#include "hdf5_handle.hpp"

namespace dsalt::verification {

/// Every fault is an IoError that names the file, the object and what is wrong.
class CaseParser {
 public:
  CaseParser(const std::string& path, const CaseFileLimits& limits);

  const std::string& generator() const { return generator_; }
  const std::vector<std::string>& names() const { return names_; }
  Case read(const std::string& name) const;

 private:
  void open();
  void read_root();

  std::string path_, generator_;
  CaseFileLimits limits_;
  std::uint64_t file_size_ = 0;
  Hdf5Handle file_;
  std::vector<std::string> names_;
};

}  // namespace dsalt::verification
