// What the tests of cases and case files share: scratch folders, bytes of files, equality of bits.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dsalt/dsalt.hpp"
#include "dsalt/verification/case_file.hpp"
#include "dsalt/verification/generators.hpp"

namespace case_support {

using namespace dsalt;
using namespace dsalt::verification;

/// A folder of its own that goes away at the end.
class Scratch {
 public:
  Scratch() {
    static std::atomic<int> counter{0};
    folder_ = std::filesystem::temp_directory_path() /
              ("dsalt-cases-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string operator/(const std::string& name) const { return (folder_ / name).string(); }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

inline std::vector<char> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline Tensor contiguous(const TensorView& view) {
  Tensor copy = Tensor::empty(std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), view.dtype);
  copy_elements(view, copy);
  return copy;
}

/// Same dtype, shape and bits, whatever the strides; NaN payloads count.
inline bool same_bits(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype || a.rank != b.rank || a.shape != b.shape) return false;
  const Tensor left = contiguous(a), right = contiguous(b);
  return std::memcmp(left.view().data, right.view().data, static_cast<std::size_t>(a.size()) * size_of(a.dtype)) == 0;
}

inline bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a)
    if (b.count(name) == 0 || !same_bits(tensor, b.at(name))) return false;
  return true;
}

inline bool same_case(const Case& a, const Case& b) {
  return a.name == b.name && a.op == b.op && a.attributes == b.attributes && same_bits(a.inputs, b.inputs) &&
         same_bits(a.outputs, b.outputs);
}

/// The message of the E that `call` throws; "nothing was thrown" otherwise.
template <class E, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A small case of every dtype that a file can hold.
inline Case small_case() {
  Case c = generate_case("attention/packed/tail_sparse_bf16");
  c.name = "small";
  return c;
}

}  // namespace case_support
