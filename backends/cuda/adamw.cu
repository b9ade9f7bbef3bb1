// One AdamW step (docs/semantics.md, "Training pieces"):
//   m <- beta1 m + (1 - beta1) g          v <- beta2 v + (1 - beta2) g^2
//   p <- p (1 - lr weight_decay) - lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
//
// One pass over the bytes: a thread loads a vector of all four tensors before it stores, so the outputs may be the
// inputs. p uses the unrounded m and v. The scalars are made in double and rounded once to the type of the arithmetic.
#include <cmath>

#include "cuda_backend.hpp"
#include "launch.cuh"
#include "vectors.cuh"
#include "walk.cuh"

namespace dsalt::cuda {
namespace {

constexpr int threads_per_block = 256;
constexpr int tensors = 7;  // param, grad, m, v, then the new param, m, v

template <class Real>
struct Scalars {
  Real beta1, rest1, beta2, rest2;  // rest = 1 - beta
  Real inverse_correction2;         // 1 / (1 - beta2^step)
  Real rate;                        // lr / (1 - beta1^step)
  Real decay;                       // 1 - lr weight_decay
  Real eps;
};

template <class Real>
Scalars<Real> scalars_of(const AdamWProblem& problem) {
  const auto step = static_cast<double>(problem.step);
  const auto rounded = [](double value) { return static_cast<Real>(value); };
  return {.beta1 = rounded(problem.beta1),
          .rest1 = rounded(1 - problem.beta1),
          .beta2 = rounded(problem.beta2),
          .rest2 = rounded(1 - problem.beta2),
          .inverse_correction2 = rounded(1 / (1 - std::pow(problem.beta2, step))),
          .rate = rounded(problem.lr / (1 - std::pow(problem.beta1, step))),
          .decay = rounded(1 - problem.lr * problem.weight_decay),
          .eps = rounded(problem.eps)};
}

/// A tensor whose dtype is looked at when it is read: the dtypes mix freely, and a kernel for each combination would be
/// many kernels for one that waits for memory anyway.
struct Elements {
  void* data;
  DType dtype;
};

template <int n>
__device__ inline void load(const Elements& from, std::int64_t at, float (&to)[n]) {
  if (from.dtype == DType::f32)
    widen_vector(load_vector<n>(static_cast<const float*>(from.data) + at), to);
  else if (from.dtype == DType::bf16)
    widen_vector(load_vector<n>(static_cast<const bf16*>(from.data) + at), to);
  else
    widen_vector(load_vector<n>(static_cast<const f16*>(from.data) + at), to);
}
template <int n>
__device__ inline void load(const Elements& from, std::int64_t at, double (&to)[n]) {
  widen_vector(load_vector<n>(static_cast<const double*>(from.data) + at), to);
}

template <int n>
__device__ inline void store(const float (&from)[n], const Elements& to, std::int64_t at) {
  if (to.dtype == DType::f32)
    store_vector<n>(from, static_cast<float*>(to.data) + at);
  else if (to.dtype == DType::bf16)
    store_vector<n>(from, static_cast<bf16*>(to.data) + at);
  else
    store_vector<n>(from, static_cast<f16*>(to.data) + at);
}
template <int n>
__device__ inline void store(const double (&from)[n], const Elements& to, std::int64_t at) {
  store_vector<n>(from, static_cast<double*>(to.data) + at);
}

template <class Real, int n>
__global__ void __launch_bounds__(threads_per_block)
    adamw_kernel(Walk<tensors> walk, std::int64_t vectors, Scalars<Real> s, Elements param, Elements grad, Elements m,
                 Elements v, Elements new_param, Elements new_m, Elements new_v) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * threads_per_block + threadIdx.x;
  if (index >= vectors) return;
  std::int64_t at[tensors];
  walk.offsets(index, at);
  Real p[n], g[n], mean[n], square[n];
  load(param, at[0], p);
  load(grad, at[1], g);
  load(m, at[2], mean);
  load(v, at[3], square);
#pragma unroll
  for (int e = 0; e < n; ++e) {
    mean[e] = fma(s.beta1, mean[e], s.rest1 * g[e]);
    square[e] = fma(s.beta2, square[e], s.rest2 * g[e] * g[e]);
    const Real update = s.rate * mean[e] / (std::sqrt(square[e] * s.inverse_correction2) + s.eps);
    p[e] = fma(p[e], s.decay, -update);
  }
  store(p, new_param, at[4]);
  store(mean, new_m, at[5]);
  store(square, new_v, at[6]);
}

}  // namespace

void CudaBackend::adamw_step(const AdamWProblem& problem, const AdamWInputs& in, const AdamWOutputs& out) {
  const CurrentDevice current(context_.device);
  auto walk = walk_over(in.param.rank, in.param, in.grad, in.m, in.v, out.param, out.m, out.v);
  const auto elements = [](const TensorView& view) { return Elements{view.data, view.dtype}; };
  const auto step = [&]<class Real>(Real) {
    constexpr int n = vector_length<Real>;  // 16-bit tensors: accesses of 8 bytes
    const bool vectorised = aligned(n, in.param, in.grad, in.m, in.v, out.param, out.m, out.v) && walk.group(n);
    const std::int64_t vectors = walk.size();
    launch(context_, "adamw_step", vectorised ? adamw_kernel<Real, n> : adamw_kernel<Real, 1>,
           ceil_div(vectors, threads_per_block), threads_per_block, 0, walk, vectors, scalars_of<Real>(problem),
           elements(in.param), elements(in.grad), elements(in.m), elements(in.v), elements(out.param), elements(out.m),
           elements(out.v));
  };
  if (in.param.dtype == DType::f64)
    step(double{});
  else
    step(float{});
}

}  // namespace dsalt::cuda
