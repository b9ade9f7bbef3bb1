// Guarded copies of one call's tensors in the backend's memory; see guarded_backend.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/backend.hpp"

namespace dsalt::verification {

class Guards {
 public:
  Guards(Backend& backend, std::string_view operation) : backend_(backend), operation_(operation) {}

  /// Replaces a present view by a guarded copy of the same shape and strides.
  void input(TensorView& view, std::string_view name);
  /// `rows` of dimension 0 are to be written, the rest must stay untouched; all_rows: everything is written.
  static constexpr std::int64_t all_rows = -1;
  void output(TensorView& view, std::string_view name, std::int64_t rows = all_rows);
  /// After the call: checks every buffer and copies what was written to the original views.
  void finish();

 private:
  struct Buffer {
    std::string name;
    bool written;  // an output
    std::int64_t rows;
    TensorView original, guarded;   // in the backend's memory
    std::shared_ptr<void> memory;   // of `guarded`, margins included
    std::vector<std::byte> before;  // what went there
    std::vector<std::byte> bytes;   // a host image of it
    TensorView image;               // `guarded` in that image
  };
  Buffer& make(TensorView& view, std::string_view name, std::byte even, std::byte odd);
  void check_input(const Buffer& buffer) const;
  void check_output(Buffer& buffer) const;
  [[noreturn]] void fail(const Buffer& buffer, std::string_view what) const;

  Backend& backend_;
  std::string operation_;
  std::deque<Buffer> buffers_;
};

}  // namespace dsalt::verification
