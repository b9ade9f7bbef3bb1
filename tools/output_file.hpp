// A file that is either the old one or the whole new one: written aside, flushed, renamed.
#pragma once

#include <string>
#include <string_view>

namespace dsalt::tools {

class OutputFile {
 public:
  /// Finds out now whether `path` can be written, so that a long run does not end in an error; leaves nothing behind.
  /// An empty path is a file that nobody wants. IoError.
  explicit OutputFile(std::string path);

  bool wanted() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  /// Replaces the file. IoError; the old file is then still there.
  void write(std::string_view content) const;

 private:
  std::string path_;
  bool in_place_ = false;  // a device or pipe such as /dev/stdout: there is nothing to rename over
};

}  // namespace dsalt::tools
