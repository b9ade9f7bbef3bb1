// The window predictor's inputs as rows of tokens, and what becomes of a product <x, a>.
#pragma once

#include <algorithm>
#include <cmath>

#include "elements.cuh"
#include "launch.cuh"
#include "sigmoid.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

inline constexpr int head_group = 8;  // heads that are worked on together; rows of dz are filled up to whole groups

/// x or dx as rows, whatever the form: row n = b N + i. `packed`: rows of whole vectors, all at one distance; kernels
/// come in two versions, and the one for packed rows has no branches between its loads.
template <class T>
struct TokenRows {
  T* data = nullptr;
  std::int64_t count = 0, d = 0, length = 1, outer = 0, inner = 0, step = 0;  // length: N; strides
  bool packed = true;

  explicit TokenRows(const TensorView& view) {
    if (!view.present()) return;
    const auto last = static_cast<std::size_t>(view.rank - 1);
    data = static_cast<T*>(view.data);
    d = view.shape[last];
    step = view.strides[last];
    inner = view.strides[last - 1];
    length = count = view.shape[last - 1];
    packed = rows_are_packed(view, vector_length<T>);
    if (view.rank == 2) return;
    count *= view.shape[0];
    outer = view.strides[0];
    packed = packed && (view.shape[0] <= 1 || outer == length * inner);
  }
  template <bool all_packed>
  __device__ T* row(std::int64_t n) const {
    return data + (all_packed ? n * inner : n / length * outer + n % length * inner);
  }
};

/// Vector of a row at `column`; its elements past the row's end are 0.
template <bool packed, int n, class T>
__device__ inline Vector<T, n> row_vector(const T* row, std::int64_t step, std::int64_t column, std::int64_t d) {
  if constexpr (!packed) {
    return load_part<n, false>(row, step, column, d);
  } else {
    const Vector<T, n> vector = load_vector<n>(row + min(column, d - n));  // no branch: loads of several steps overlap
    return column < d ? vector : Vector<T, n>{};
  }
}

/// window and dwindow as [B,Hw,N], whatever the form.
template <class Real>
View<Real, 3> by_sequence(const TensorView& window) {
  if (window.rank == 3) return device_view<Real, 3>(window);
  View<Real, 3> result;
  result.data = static_cast<Real*>(window.data);
  result.shape[0] = 1, result.shape[1] = window.shape[1], result.shape[2] = window.shape[0];
  result.strides[1] = window.strides[1], result.strides[2] = window.strides[0];
  return result;
}

template <class T, class W>
struct Predictor {
  using Real = accumulator_t<T>;
  TokenRows<const T> x;
  View<const W, 2> weight;
  View<const W, 1> bias;
  bool weight_packed;
  Real n_min, span;
  bool floor;
  View<Real, 3> window;  // or dwindow
  Real* dz;              // [count][pitch]; null in the forward pass
  std::int64_t pitch;

  Predictor(const WindowProblem& problem, const WindowInputs& in, const TensorView& windows, Real* dz_rows)
      : x(in.x),
        weight(device_view<const W, 2>(in.weight)),
        bias(device_view<const W, 1>(in.bias)),
        weight_packed(rows_are_packed(in.weight, vector_length<T>)),
        n_min(static_cast<Real>(problem.n_min)),
        span(static_cast<Real>(problem.n_max - problem.n_min)),
        floor(problem.floor),
        window(by_sequence<Real>(windows)),
        dz(dz_rows),
        pitch(ceil_div(in.weight.shape[0], head_group) * head_group) {}

  __host__ __device__ std::int64_t heads() const { return weight.shape[0]; }
  /// Heads past the last one repeat it: finish() drops them.
  __device__ const W* weight_row(std::int64_t head) const { return weight.at(min(head, heads() - 1)); }
  template <bool packed>
  __device__ const T* x_row(std::int64_t row) const {
    return x.template row<packed>(min(row, x.count - 1));
  }

  /// What becomes of <x, a>.
  __device__ void finish(std::int64_t row, std::int64_t head, Real product) const {
    if (row >= x.count || head >= pitch) return;
    if (head >= heads()) {
      if (dz != nullptr) dz[row * pitch + head] = 0;
      return;
    }
    const Real z = product + static_cast<Real>(widen(*bias.at(head)));
    Real* const w = window.at(row / window.shape[2], head, row % window.shape[2]);
    if (dz != nullptr) {
      dz[row * pitch + head] = *w * span * (sigmoid(z) * sigmoid(-z));
    } else {
      const Real value = n_min + sigmoid(z) * span;
      *w = floor ? ::floor(value) : value;
    }
  }
};

}  // namespace dsalt::cuda
