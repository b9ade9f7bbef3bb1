// Element types of case files (docs/semantics.md, "Case files"): little-endian IEEE and our own 16-bit floats.
//
//   float16   sign bit 15, exponent 5 bits at 10, mantissa 10 bits at 0, bias 15
//   bfloat16  sign bit 15, exponent 8 bits at 7,  mantissa 7 bits at 0,  bias 127
//
// 16-bit data is moved as raw bits, with a memory type equal to the file's: HDF5's own conversion to 16 bits misrounds.
#pragma once

#include <optional>
#include <string>

#include "dsalt/dtype.hpp"
#include "hdf5_handle.hpp"

namespace dsalt::verification {

/// The file type in which elements of `dtype` are written.
Hdf5Handle make_file_type(DType dtype);

struct StoredType {
  DType dtype;
  bool big_endian = false;  // 32 and 64 bits only: HDF5 swaps the bytes
};
/// The dtype of a stored element type, or nothing when it is none of ours.
std::optional<StoredType> stored_type(hid_t type);

/// In words, for messages: "64-bit integer", "16-bit float with 11 exponent bits", "compound".
std::string describe_type(hid_t type);

}  // namespace dsalt::verification
