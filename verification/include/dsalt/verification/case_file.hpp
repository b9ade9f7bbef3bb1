// Case files in HDF5: schema "dsalt-cases", version 1 (docs/semantics.md, "Case files").
//
// Reading never trusts the file: every length is checked against the file's size and a memory limit before allocation,
// and whatever is wrong becomes an IoError that names the file, the object and the fault. The HDF5 library itself
// crashes on some damaged files, so a child process with limits on memory and processor time does the parsing. Beside
// the contract's forms, big-endian, compact and chunked (deflate, shuffle, fletcher32) data is read; links to other
// places, external storage and virtual datasets are refused. Writing goes aside, is flushed, and replaces the old file
// in one rename: a killed writer leaves the old file intact.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsalt/verification/case.hpp"

namespace dsalt::verification {

struct CaseFileLimits {
  std::uint64_t max_bytes_per_case = std::uint64_t{8} << 30;  // all datasets of one case together, in memory
};

class DSALT_API CaseReader {
 public:
  /// Opens and checks the root attributes; IoError.
  explicit CaseReader(const std::string& path, const CaseFileLimits& limits = {});
  ~CaseReader();
  CaseReader(CaseReader&&) noexcept;
  CaseReader& operator=(CaseReader&&) noexcept;

  const std::string& generator() const;
  const std::vector<std::string>& names() const;  // in file order (alphabetical)
  /// Reads one case, inputs and outputs; IoError for malformed storage. check_schema is the caller's to call.
  Case read(const std::string& name) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class DSALT_API CaseWriter {
 public:
  /// Starts a new file beside `path`; nothing at `path` changes before `commit`. IoError.
  CaseWriter(const std::string& path, const std::string& generator);
  ~CaseWriter();  // without commit: removes the unfinished file
  CaseWriter(CaseWriter&&) noexcept;
  CaseWriter& operator=(CaseWriter&&) noexcept;

  void add(const Case& c);
  /// Flushes to disk and renames over `path`. Equal content gives an equal file, byte for byte.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dsalt::verification
