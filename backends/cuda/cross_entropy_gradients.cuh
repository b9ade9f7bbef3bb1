// What the backward pass of a loss does to a chunk of rows beside its products.
#pragma once

#include "cross_entropy_rows.cuh"

namespace dsalt::cuda {

constexpr int gradient_threads = 256;

/// Exponentials of a chunk to dz, in place, up to padded_rows(): `everywhere` and `at_label` are what the label's
/// smoothed weights take off, scaled like dz. Block (x, y): columns of row y.
template <class T>
__global__ void __launch_bounds__(gradient_threads)
    cross_entropy_dlogits_kernel(RowChunk chunk, View<const std::int32_t, 1> labels, RowSums<accumulator_t<T>> sums,
                                 std::int64_t vocabulary, int tile_columns, accumulator_t<T> everywhere,
                                 accumulator_t<T> at_label, T* kept, std::int64_t pitch) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>;
  const std::int64_t row = blockIdx.y,
                     first = (static_cast<std::int64_t>(blockIdx.x) * gradient_threads + threadIdx.x) * n;
  if (row >= chunk.padded_rows() || first >= vocabulary) return;
  T* const at = kept + row * pitch + first;
  Real dz[n] = {};
  if (row >= chunk.rows()) return store_vector<n>(dz, at);
  const std::int64_t label = *labels.at(chunk.row(row)) - first;
  const std::int64_t tile = static_cast<std::uint32_t>(first) / static_cast<std::uint32_t>(tile_columns);
  const Real factor =
      exponential<T>(sums.tile_maximum[tile * sums.line + row] - sums.maximum[row]) * sums.reciprocal[row];
  widen_vector(load_vector<n>(at), dz);
#pragma unroll
  for (int e = 0; e < n; ++e) dz[e] = dz[e] * factor - everywhere - (e == label ? at_label : Real{0});
  store_vector<n>(dz, at);
}

/// The segments' sums to dhidden. Block (x, y): columns of row y.
template <class T>
__global__ void __launch_bounds__(gradient_threads)
    cross_entropy_dhidden_rows_kernel(RowChunk chunk, const accumulator_t<T>* sums, std::int64_t pitch,
                                      std::int64_t segments, Upstream<T> upstream, View<T, 2> dhidden) {
  const std::int64_t row = blockIdx.y, column = static_cast<std::int64_t>(blockIdx.x) * gradient_threads + threadIdx.x;
  __shared__ accumulator_t<T> factor;
  if (threadIdx.x == 0) factor = upstream.factor();
  __syncthreads();
  if (row >= chunk.rows() || column >= dhidden.shape[1]) return;
  accumulator_t<T> sum = 0;
  for (std::int64_t s = 0; s < segments; ++s) sum += sums[(s * chunk.most + row) * pitch + column];
  *dhidden.at(chunk.row(row), column) = narrow<T>(sum * factor);
}

/// Ignored rows of dhidden are 0.
template <class T>
__global__ void __launch_bounds__(gradient_threads)
    cross_entropy_dhidden_ignored_kernel(View<const std::int32_t, 1> labels, std::int64_t ignored, View<T, 2> dhidden) {
  if (*labels.at(blockIdx.x) != ignored) return;
  for (std::int64_t column = threadIdx.x; column < dhidden.shape[1]; column += gradient_threads)
    *dhidden.at(blockIdx.x, column) = narrow<T>(0.0f);
}

}  // namespace dsalt::cuda
