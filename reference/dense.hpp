// Between strided views of any dtype and Eigen's dense double matrices.
//
// Loading is exact, storing rounds once. Operations load one slice at a time (a head, a row), never a whole tensor, so
// that broadcast and very large views cost no more memory than the slice that is worked on.
#pragma once

#include <Eigen/Core>

#include "internal/elements.hpp"

namespace dsalt::internal {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowVector = Eigen::RowVectorXd;

/// Rank 1.
inline void load_vector(const TensorView& view, RowVector& into) {
  into.resize(view.shape[0]);
  for (std::int64_t c = 0; c < view.shape[0]; ++c) into[c] = load_double(view, c * view.strides[0]);
}
inline RowVector load_vector(const TensorView& view) {
  RowVector vector;
  load_vector(view, vector);
  return vector;
}

/// Rank 2.
inline Matrix load_matrix(const TensorView& view) {
  Matrix matrix(view.shape[0], view.shape[1]);
  for (std::int64_t r = 0; r < view.shape[0]; ++r)
    for (std::int64_t c = 0; c < view.shape[1]; ++c)
      matrix(r, c) = load_double(view, r * view.strides[0] + c * view.strides[1]);
  return matrix;
}

inline void store_vector(const RowVector& vector, const TensorView& view) {
  for (std::int64_t c = 0; c < view.shape[0]; ++c) store_double(view, c * view.strides[0], vector[c]);
}

inline void store_matrix(const Matrix& matrix, const TensorView& view) {
  for (std::int64_t r = 0; r < view.shape[0]; ++r)
    for (std::int64_t c = 0; c < view.shape[1]; ++c)
      store_double(view, r * view.strides[0] + c * view.strides[1], matrix(r, c));
}

/// Zeros in every element, any rank.
inline void store_zeros(const TensorView& view) {
  for_each_element([&](std::int64_t at) { store_double(view, at, 0); }, view);
}

/// The view without its last dimension: its element offsets are where the rows of `view` begin.
inline TensorView row_starts(const TensorView& view) {
  TensorView starts = view;
  --starts.rank;
  return starts;
}

/// The row (last dimension) of `view` that begins `offset` elements from its data.
inline void load_row(const TensorView& view, std::int64_t offset, RowVector& into) {
  const std::int64_t length = view.shape[view.rank - 1], stride = view.strides[view.rank - 1];
  into.resize(length);
  for (std::int64_t c = 0; c < length; ++c) into[c] = load_double(view, offset + c * stride);
}
inline void store_row(const RowVector& row, const TensorView& view, std::int64_t offset) {
  const std::int64_t stride = view.strides[view.rank - 1];
  for (std::int64_t c = 0; c < row.size(); ++c) store_double(view, offset + c * stride, row[c]);
}

}  // namespace dsalt::internal
