// From a number to element offsets in several tensors of common dimensions.
#pragma once

#include <cstdint>

#include "dsalt/tensor.hpp"

namespace dsalt::cuda {

/// Returns index % length and divides index by length. 64-bit divisions take several times as long as 32-bit ones.
__device__ inline std::int64_t take_remainder(std::int64_t& index, std::int64_t length) {
  std::int64_t quotient;
  if (((index | length) >> 32) == 0)
    quotient = static_cast<std::uint32_t>(index) / static_cast<std::uint32_t>(length);
  else
    quotient = index / length;
  const std::int64_t remainder = index - quotient * length;
  index = quotient;
  return remainder;
}

/// Neighbouring dimensions are merged where every tensor allows it, so that contiguous tensors of any rank are walked
/// along one dimension, without divisions.
template <int count>
struct Walk {
  int rank = 0;
  std::int64_t shape[max_rank] = {};
  std::int64_t strides[count][max_rank] = {};

  std::int64_t size() const {
    std::int64_t product = 1;
    for (int dim = 0; dim < rank; ++dim) product *= shape[dim];
    return product;
  }
  __device__ void offsets(std::int64_t index, std::int64_t (&at)[count]) const {
#pragma unroll
    for (int t = 0; t < count; ++t) at[t] = 0;
    for (int dim = rank - 1; dim >= 0; --dim) {
      const std::int64_t place = dim == 0 ? index : take_remainder(index, shape[dim]);
#pragma unroll
      for (int t = 0; t < count; ++t) at[t] += place * strides[t][dim];
    }
  }
  /// Makes steps of n elements along the last dimension. False, and nothing is changed, where these are not vectors.
  bool group(int n) {
    if (rank == 0 || shape[rank - 1] % n != 0) return false;
    for (int t = 0; t < count; ++t) {
      if (strides[t][rank - 1] != 1) return false;
      for (int dim = 0; dim + 1 < rank; ++dim)
        if (strides[t][dim] % n != 0) return false;
    }
    shape[rank - 1] /= n;
    for (int t = 0; t < count; ++t) strides[t][rank - 1] = n;
    return true;
  }
};

/// Over the first `rank` dimensions of `shaped` (its shape rules); an absent view stays at offset 0.
template <class... Views>
auto walk_over(int rank, const TensorView& shaped, const Views&... others) {
  constexpr int count = 1 + static_cast<int>(sizeof...(others));
  const TensorView* views[count] = {&shaped, &others...};
  Walk<count> walk;
  for (int dim = 0; dim < rank; ++dim) {
    const auto from = static_cast<std::size_t>(dim);
    if (shaped.shape[from] == 1) continue;
    bool merges = walk.rank > 0;
    for (int t = 0; t < count && merges; ++t)
      merges = walk.strides[t][walk.rank - 1] == views[t]->strides[from] * shaped.shape[from];
    if (!merges) walk.shape[walk.rank++] = 1;
    walk.shape[walk.rank - 1] *= shaped.shape[from];
    for (int t = 0; t < count; ++t) walk.strides[t][walk.rank - 1] = views[t]->strides[from];
  }
  return walk;
}

}  // namespace dsalt::cuda
