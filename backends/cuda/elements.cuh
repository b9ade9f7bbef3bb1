// Element types in device code: loads and stores that convert once, the type that sums are kept in, and strided views.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dsalt/errors.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

/// Sums, statistics tensors (lse, windows, energies, ...) and their gradients: double for double, else float.
template <class T>
using accumulator_t = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
inline constexpr bool is_16_bit = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

// Value of an element as the type that is computed in.
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(float value) { return value; }
__device__ inline float widen(bf16 value) { return __bfloat162float(value); }
__device__ inline float widen(f16 value) { return __half2float(value); }

/// Rounds once, to nearest even. A double that goes to 16 bits is rounded directly, not through a rounded float.
template <class T>
__device__ inline T narrow(float value) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(value);
  else if constexpr (std::is_same_v<T, f16>)
    return __float2half_rn(value);
  else
    return static_cast<T>(value);
}
template <class T>
__device__ inline T narrow(double value) {
  if constexpr (std::is_same_v<T, bf16>)
    return __double2bfloat16(value);
  else if constexpr (std::is_same_v<T, f16>)
    return __double2half(value);
  else
    return static_cast<T>(value);
}

template <class T>
struct Tag {
  using type = T;
};

/// Calls body(Tag<T>{}) with the element type of `dtype`.
template <class Body>
void for_floating(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64: return body(Tag<double>{});
    case DType::f32: return body(Tag<float>{});
    case DType::bf16: return body(Tag<bf16>{});
    case DType::f16: return body(Tag<f16>{});
    case DType::i32: break;
  }
  throw InvalidArgument("dtype: got int32, need a floating dtype");
}

/// A TensorView with its rank and element type fixed, to be passed to kernels by value. Offsets are 64-bit. An absent
/// tensor has data == nullptr.
template <class T, int rank>
struct View {
  T* data = nullptr;
  std::int64_t shape[rank] = {};
  std::int64_t strides[rank] = {};

  __host__ __device__ bool present() const { return data != nullptr; }
  template <class... Index>
  __device__ std::int64_t offset(Index... index) const {
    static_assert(sizeof...(Index) <= rank);
    std::int64_t sum = 0;
    int dim = 0;
    ((sum += static_cast<std::int64_t>(index) * strides[dim++]), ...);
    return sum;
  }
  /// Fewer indices than dimensions leave the last ones at 0.
  template <class... Index>
  __device__ T* at(Index... index) const {
    return data + offset(index...);
  }
};

template <class T, int rank>
View<T, rank> device_view(const TensorView& view) {
  View<T, rank> result;
  if (!view.present()) return result;
  if (view.rank != rank) throw InvalidArgument("view: unexpected rank of " + to_string(view));
  result.data = static_cast<T*>(view.data);
  for (int dim = 0; dim < rank; ++dim) {
    result.shape[dim] = view.shape[static_cast<std::size_t>(dim)];
    result.strides[dim] = view.strides[static_cast<std::size_t>(dim)];
  }
  return result;
}

}  // namespace dsalt::cuda
