// What the kernels of RMSNorm share: sums of squares that neither over- nor underflow, and the last step of dgamma.
#pragma once

#include <cmath>
#include <limits>

#include "row_groups.cuh"
#include "walk.cuh"

namespace dsalt::cuda {

/// Squares are added as they are. Where their mean turns out to lie outside [2^-limit, 2^limit] (and eps does not hide
/// it), the row is multiplied by a power of two first, which is exact, and added up once more.
template <class Real>
inline constexpr int scale_limit = std::is_same_v<Real, double> ? 900 : 100;

template <class Real>
__device__ inline bool needs_scale(Real squares, std::int64_t d, Real eps) {
  const Real mean = squares / static_cast<Real>(d) + eps;
  return !(mean >= std::ldexp(Real{1}, -scale_limit<Real>) && mean <= std::ldexp(Real{1}, scale_limit<Real>));
}

/// The power of two that brings an element of size `largest` next to 1. 1 for 0, infinity and NaN.
template <class Real>
__device__ inline Real power_for(Real largest) {
  if (!(largest > 0 && largest < std::numeric_limits<Real>::infinity())) return 1;
  const int exponent = -std::ilogb(largest), limit = scale_limit<Real>;
  return std::ldexp(Real{1}, exponent > limit ? limit : exponent < -limit ? -limit : exponent);
}

/// Raises `largest` to the size of the largest element of a vector.
template <class T, int n>
__device__ inline void raise_to(accumulator_t<T>& largest, const Vector<T, n>& part) {
#pragma unroll
  for (int e = 0; e < n; ++e) {
    const auto size = std::fabs(widen(part.element[e]));
    largest = size > largest ? size : largest;
  }
}

/// The power of two for a group whose threads found these largest sizes; 1 for groups that do not need it.
template <class Real>
__device__ inline Real group_scale(bool needed, Real largest) {
  Real sizes[1] = {largest};
  group_reduce(sizes, [](Real a, Real b) { return b > a ? b : a; });
  return needed ? power_for(sizes[0]) : Real{1};
}

/// r / scale, from the sum of (x scale)^2: x r = (x scale) (r / scale).
template <class Real>
__device__ inline Real inverse_rms(Real squares, std::int64_t d, Real eps, Real scale) {
  return 1 / std::sqrt(squares / static_cast<Real>(d) + eps * scale * scale);
}

/// dgamma from partial sums [count][pitch]. A block takes 32 columns; each of its slices adds every slices-th partial
/// sum, and the slices' sums are added in order.
constexpr int dgamma_slices = 32;
template <class G>
__global__ void __launch_bounds__(32 * dgamma_slices)
    rmsnorm_dgamma_kernel(const accumulator_t<G>* partial, std::int64_t count, std::int64_t pitch, std::int64_t d,
                          Row<G> dgamma) {
  using Real = accumulator_t<G>;
  __shared__ Real of_slices[dgamma_slices][32];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  Real sum = 0;
  if (column < d) {
#pragma unroll 8
    for (std::int64_t n = threadIdx.y; n < count; n += dgamma_slices) sum += partial[n * pitch + column];
  }
  of_slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= d) return;
  for (int slice = 1; slice < dgamma_slices; ++slice) sum += of_slices[slice][threadIdx.x];
  dgamma.data[column * dgamma.step] = narrow<G>(sum);
}

}  // namespace dsalt::cuda
