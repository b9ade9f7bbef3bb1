// One row by one warp, key by key: what a tile with a NaN or infinity falls back to. Matrix products multiply the
// values of keys that a row does not admit by 0, which keeps all but non-finite ones out; here such keys are not looked
// at.
#pragma once

#include "attention_blocks.cuh"

namespace dsalt::cuda {

/// body(key, bias, is_landmark) for A(i), biases scaled for exp_scaled().
template <class T, class Body>
__device__ inline void for_each_admitted(const AttentionCall<T>& call, const SequenceRows& s, int z,
                                         const AttentionRow<T>& row, Body&& body) {
  using Real = accumulator_t<T>;
  for (int key = row.begin; key < row.end; ++key)
    body(key, row.in_edge(key) ? log_sigmoid(row.edge_argument(call, key)) * exp_unit<Real> : Real{0}, false);
  const std::int64_t t = call.list_of(row.query);
  if (call.clean.count == nullptr || t >= call.lists) return;
  const std::int64_t list = (s.b * call.list_heads + call.list_head(z)) * call.lists + t;
  for (int entry = 0; entry < call.clean.count[list]; ++entry) {
    const int key = call.clean.index[list * call.slots + entry];
    if (row.bounds().admits(key, false))
      body(key, call.log_weight(s.b, z, t, call.clean.slot[list * call.slots + entry]) * exp_unit<Real>, true);
  }
}

/// <a, b>, in every lane.
template <class T>
__device__ inline accumulator_t<T> warp_dot(const T* a, std::int64_t a_element, const T* b, std::int64_t b_element,
                                            int n) {
  accumulator_t<T> sum = 0;
  for (int c = threadIdx.x % 32; c < n; c += 32) sum += widen(a[c * a_element]) * widen(b[c * b_element]);
  return warp_sum(sum);
}

/// Which rows of a tile have a sum that is not finite, in `rows`; false when there is none. By the whole block.
template <class T, int width>
__device__ inline bool find_not_finite(Sums<T, width>& sums, int* rows) {
  bool any = false;
#pragma unroll
  for (int r = 0; r < Sums<T, width>::rows; ++r) {
    int found = 0;
#pragma unroll
    for (int c = 0; c < Sums<T, width>::columns; ++c) found |= !(sums(r, c) - sums(r, c) == 0);
    found = Ownership<T>::row_max(found);
    if (threadIdx.x % Ownership<T>::lanes == 0) rows[Ownership<T>::row(r)] = found;
    any |= found != 0;
  }
  return __syncthreads_or(any);
}

/// Columns [first, first + width) of a row's sum, 32 apart in each lane.
template <class T, int width>
struct RowSum {
  accumulator_t<T> value[width / 32] = {};

  __device__ void add(accumulator_t<T> factor, const T* x, std::int64_t element, int first, int columns) {
#pragma unroll
    for (int n = 0; n < width / 32; ++n) {
      const int c = first + 32 * n + threadIdx.x % 32;
      if (c < columns) value[n] += factor * widen(x[c * element]);
    }
  }
  __device__ void store(accumulator_t<T> factor, T* y, std::int64_t element, int first, int columns) const {
#pragma unroll
    for (int n = 0; n < width / 32; ++n) {
      const int c = first + 32 * n + threadIdx.x % 32;
      if (c < columns) y[c * element] = narrow<T>(factor * value[n]);
    }
  }
};

}  // namespace dsalt::cuda
