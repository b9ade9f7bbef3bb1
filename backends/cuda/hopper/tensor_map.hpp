// Descriptions of tensors for Hopper's copy engine. Made on the host at every call (about a microsecond each), passed
// to kernels by value.
#pragma once

#include <cstdint>
#include <string_view>

#include <cuda.h>

#include "dsalt/tensor.hpp"

namespace dsalt::cuda::hopper {

/// Whether the copy engine can read this tensor of rows: the last dimension contiguous, address and strides multiples
/// of 16 bytes, strides not 0 where the dimension has more than one entry.
bool copyable(const TensorView& view);

/// [B,H,N,D] or, packed, [R,H,D] as boxes of `rows` x 64 elements of one head with the 128-byte swizzle: coordinates
/// (column, row, head, sequence), the last 0 when packed. 16-bit elements.
CUtensorMap make_tensor_map(const TensorView& view, int rows, std::string_view operation);

/// A matrix of 16-bit elements with `pitch` elements from row to row, as boxes of `box_rows` x 64 elements with the
/// 128-byte swizzle: coordinates (column, row). Address and pitch are multiples of 16 bytes; nothing may be 0.
struct MatrixView {
  const void* data;
  DType dtype;
  std::int64_t rows, columns, pitch;
};
CUtensorMap make_tensor_map(const MatrixView& matrix, int box_rows, std::string_view operation);

}  // namespace dsalt::cuda::hopper
