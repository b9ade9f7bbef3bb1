// y = silu(gate) up, silu(z) = z sigma(z), element by element (docs/semantics.md, "SwiGLU"); with dy:
//   dgate = dy up sigma(gate) (1 + gate sigma(-gate))          dup = dy silu(gate)
//
// One pass over the bytes: a thread handles one vector of every tensor.
#include "cuda_backend.hpp"
#include "launch.cuh"
#include "vectors.cuh"
#include "walk.cuh"

namespace dsalt::cuda {
namespace {

constexpr int threads_per_block = 256;

/// sigma(z) and sigma(-z), neither of which cancels. Above float's range exp is infinity and the quotient 0.
template <class T>
struct Sigmas {
  using Real = accumulator_t<T>;
  Real value, complement;
  __device__ explicit Sigmas(Real z) {
    Real exponential;  // of -|z|: at most 1
    if constexpr (is_16_bit<T>)
      exponential = __expf(-fabsf(z));
    else
      exponential = std::exp(-std::fabs(z));
    Real larger;
    if constexpr (is_16_bit<T>)
      larger = __fdividef(1.0f, 1.0f + exponential);
    else
      larger = 1 / (1 + exponential);
    const Real smaller = exponential * larger;
    value = z < 0 ? smaller : larger;
    complement = z < 0 ? larger : smaller;
  }
};

template <class T, int n>
__global__ void __launch_bounds__(threads_per_block)
    swiglu_kernel(Walk<3> walk, std::int64_t vectors, const T* gate, const T* up, T* y) {
  using Real = accumulator_t<T>;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * threads_per_block + threadIdx.x;
  if (index >= vectors) return;
  std::int64_t at[3];
  walk.offsets(index, at);
  const auto gates = load_vector<n>(gate + at[0]), ups = load_vector<n>(up + at[1]);
  Real result[n];
#pragma unroll
  for (int e = 0; e < n; ++e) {
    const Real g = widen(gates.element[e]);
    result[e] = g * Sigmas<T>(g).value * widen(ups.element[e]);
  }
  store_vector<n>(result, y + at[2]);
}

/// An absent gradient is null.
template <class T, int n>
__global__ void __launch_bounds__(threads_per_block)
    swiglu_backward_kernel(Walk<5> walk, std::int64_t vectors, const T* gate, const T* up, const T* dy, T* dgate,
                           T* dup) {
  using Real = accumulator_t<T>;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * threads_per_block + threadIdx.x;
  if (index >= vectors) return;
  std::int64_t at[5];
  walk.offsets(index, at);
  const auto gates = load_vector<n>(gate + at[0]), ups = load_vector<n>(up + at[1]), dys = load_vector<n>(dy + at[2]);
  Real dgates[n], dups[n];
#pragma unroll
  for (int e = 0; e < n; ++e) {
    const Real g = widen(gates.element[e]), along = widen(dys.element[e]);
    const Sigmas<T> sigma(g);
    dgates[e] = along * sigma.value * fma(g, sigma.complement, Real{1}) * widen(ups.element[e]);
    dups[e] = g * sigma.value * along;
  }
  if (dgate != nullptr) store_vector<n>(dgates, dgate + at[3]);
  if (dup != nullptr) store_vector<n>(dups, dup + at[4]);
}

template <class T>
T* pointer(const TensorView& view) {
  return static_cast<T*>(view.data);
}

std::int64_t blocks_for(std::int64_t vectors) { return ceil_div(vectors, threads_per_block); }

}  // namespace

void CudaBackend::swiglu_forward(const SwigluInputs& in, const TensorView& y) {
  const CurrentDevice current(context_.device);
  for_floating(in.gate.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto walk = walk_over(in.gate.rank, in.gate, in.up, y);
    constexpr int n = vector_length<T>;
    const bool vectorised = aligned(n, in.gate, in.up, y) && walk.group(n);
    const std::int64_t vectors = walk.size();
    launch(context_, "swiglu_forward", vectorised ? swiglu_kernel<T, n> : swiglu_kernel<T, 1>, blocks_for(vectors),
           threads_per_block, 0, walk, vectors, pointer<T>(in.gate), pointer<T>(in.up), pointer<T>(y));
  });
}

void CudaBackend::swiglu_backward(const SwigluInputs& in, const TensorView& dy, const SwigluGradients& gradients) {
  const CurrentDevice current(context_.device);
  const bool wants_dgate = gradients.dgate.present(), wants_dup = gradients.dup.present();
  if (!wants_dgate && !wants_dup) return;
  // An absent gradient lends its place in the walk to the present one.
  const TensorView& dgate = wants_dgate ? gradients.dgate : gradients.dup;
  const TensorView& dup = wants_dup ? gradients.dup : gradients.dgate;
  for_floating(in.gate.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto walk = walk_over(in.gate.rank, in.gate, in.up, dy, dgate, dup);
    constexpr int n = vector_length<T>;
    const bool vectorised = aligned(n, in.gate, in.up, dy, dgate, dup) && walk.group(n);
    const std::int64_t vectors = walk.size();
    launch(context_, "swiglu_backward", vectorised ? swiglu_backward_kernel<T, n> : swiglu_backward_kernel<T, 1>,
           blocks_for(vectors), threads_per_block, 0, walk, vectors, pointer<T>(in.gate), pointer<T>(in.up),
           pointer<T>(dy), pointer<T>(gradients.dgate), pointer<T>(gradients.dup));
  });
}

}  // namespace dsalt::cuda
