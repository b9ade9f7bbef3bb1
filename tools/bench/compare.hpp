// Two result files side by side.
#pragma once

#include <string>

namespace dsalt::benchmark {

struct Comparison {
  std::string table;
  std::size_t common = 0;  // rows measured in both
};

/// Matches rows by operation, backend, isa, dtype and shape. IoError names the file and what is wrong with it.
Comparison compare_files(const std::string& old_path, const std::string& new_path);

}  // namespace dsalt::benchmark
