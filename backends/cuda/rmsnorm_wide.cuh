// RMSNorm of rows too long for a block's registers: a block reads a row once for its sums and once more to use them.
#pragma once

#include "reduce.cuh"
#include "rmsnorm.cuh"

namespace dsalt::cuda {

constexpr int wide_threads = 1024;

/// x scale has no extreme size, and h = x r = (x scale) inverse.
template <class Real>
struct RowScale {
  Real scale, inverse;
};

template <class T, class Real = accumulator_t<T>>
__device__ RowScale<Real> wide_row_scale(const T* x, std::int64_t step, std::int64_t d, Real eps) {
  const auto squares = [&](Real scale) {
    Real sum = 0;
    for (std::int64_t i = threadIdx.x; i < d; i += wide_threads) {
      const Real value = widen(x[i * step]) * scale;
      sum = fma(value, value, sum);
    }
    return block_sum(sum);
  };
  Real scale = 1, sum = squares(scale);
  if (needs_scale(sum, d, eps)) {  // in all threads, or in none
    Real largest = 0;
    for (std::int64_t i = threadIdx.x; i < d; i += wide_threads) raise_to(largest, Vector<T, 1>{x[i * step]});
    scale = group_scale(true, largest);
    sum = squares(scale);
  }
  return {scale, inverse_rms(sum, d, eps, scale)};
}

template <class T, class G>
__global__ void __launch_bounds__(wide_threads)
    rmsnorm_wide_kernel(Walk<2> rows, std::int64_t d, Row<const T> x, Row<const G> gamma, Row<T> y,
                        accumulator_t<T> eps) {
  std::int64_t at[2];
  rows.offsets(blockIdx.x, at);
  const T* from = x.data + at[0];
  const auto row = wide_row_scale(from, x.step, d, eps);
  for (std::int64_t i = threadIdx.x; i < d; i += wide_threads)
    y.data[at[1] + i * y.step] =
        narrow<T>(widen(from[i * x.step]) * row.scale * row.inverse * widen(gamma.data[i * gamma.step]));
}

/// dx of a row, and what rmsnorm_wide_partial_kernel needs to know about it.
template <class T, class G>
__global__ void __launch_bounds__(wide_threads)
    rmsnorm_wide_dx_kernel(Walk<3> rows, std::int64_t d, Row<const T> x, Row<const T> dy, Row<const G> gamma, Row<T> dx,
                           RowScale<accumulator_t<T>>* scales, accumulator_t<T> eps) {
  using Real = accumulator_t<T>;
  std::int64_t at[3];
  rows.offsets(blockIdx.x, at);
  const T *x_row = x.data + at[0], *dy_row = dy.data + at[1];
  const auto row = wide_row_scale(x_row, x.step, d, eps);
  if (threadIdx.x == 0) scales[blockIdx.x] = row;
  if (dx.data == nullptr) return;
  const auto h = [&](std::int64_t i) { return widen(x_row[i * x.step]) * row.scale * row.inverse; };
  const auto u = [&](std::int64_t i) { return widen(dy_row[i * dy.step]) * widen(gamma.data[i * gamma.step]); };
  Real sum = 0;
  for (std::int64_t i = threadIdx.x; i < d; i += wide_threads) sum = fma(u(i), h(i), sum);
  const Real mean = block_sum(sum) / static_cast<Real>(d);
  for (std::int64_t i = threadIdx.x; i < d; i += wide_threads)
    dx.data[at[2] + i * dx.step] = narrow<T>(row.scale * row.inverse * fma(-h(i), mean, u(i)));
}

/// A thread adds dgamma of one column over `rows_per_sum` rows.
template <class T>
__global__ void __launch_bounds__(wide_threads)
    rmsnorm_wide_partial_kernel(Walk<3> rows, std::int64_t row_count, std::int64_t rows_per_sum, std::int64_t d,
                                std::int64_t pitch, Row<const T> x, Row<const T> dy,
                                const RowScale<accumulator_t<T>>* scales, accumulator_t<T>* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * wide_threads + threadIdx.x;
  if (column >= d) return;
  accumulator_t<T> sum = 0;
  const std::int64_t first = blockIdx.y * rows_per_sum;
  for (std::int64_t row = first; row < row_count && row < first + rows_per_sum; ++row) {
    std::int64_t at[3];
    rows.offsets(row, at);
    const auto h = widen(x.data[at[0] + column * x.step]) * scales[row].scale * scales[row].inverse;
    sum = fma(widen(dy.data[at[1] + column * dy.step]), h, sum);
  }
  partial[blockIdx.y * pitch + column] = sum;
}

template <class T, class G>
void wide_backward(const Context& context, const Walk<3>& rows, std::int64_t rows_per_sum, std::int64_t sums,
                   std::int64_t d, std::int64_t pitch, Row<const T> x, Row<const T> dy, Row<const G> gamma, Row<T> dx,
                   accumulator_t<T>* partial, accumulator_t<T> eps) {
  const char* const operation = "rmsnorm_backward";
  const std::int64_t row_count = rows.size();
  const Scratch<RowScale<accumulator_t<T>>> scales(context, operation, row_count);
  launch(context, operation, rmsnorm_wide_dx_kernel<T, G>, row_count, wide_threads, 0, rows, d, x, dy, gamma, dx,
         scales.data(), eps);
  if (partial != nullptr)
    launch(context, operation, rmsnorm_wide_partial_kernel<T>, Grid(ceil_div(d, wide_threads), sums), wide_threads, 0,
           rows, row_count, rows_per_sum, d, pitch, x, dy, scales.data(), partial);
}

}  // namespace dsalt::cuda
