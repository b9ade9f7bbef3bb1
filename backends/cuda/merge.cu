// out = (e1 out1 + e2 out2) / (e1 + e2),  lse = m + log(e1 + e2),  e = exp(lse_part - m),  m = max(lse1, lse2)
//                                                                                   (docs/semantics.md, "Merge")
// A part with lse = -inf does not exist: its out is not loaded, and the other part comes back bit for bit, since its
// weight is exactly 1 and nothing is added to it.
#include <cmath>
#include <limits>

#include "cuda_backend.hpp"
#include "launch.cuh"
#include "vectors.cuh"
#include "walk.cuh"

namespace dsalt::cuda {
namespace {

constexpr int threads_per_block = 256;

/// A thread makes one vector of `out`; the first of each row also writes `lse`. Every thread weighs the parts itself:
/// two exponentials cost less than passing the weights on.
template <class T, int n>
__global__ void __launch_bounds__(threads_per_block)
    merge_kernel(Walk<6> rows, std::int64_t vectors, std::int64_t channels, Row<const T> out1, Row<const T> out2,
                 Row<T> out, const accumulator_t<T>* lse1, const accumulator_t<T>* lse2, accumulator_t<T>* lse) {
  using Real = accumulator_t<T>;
  constexpr Real nothing = -std::numeric_limits<Real>::infinity();
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * threads_per_block + threadIdx.x;
  if (row >= vectors) return;
  const std::int64_t first = take_remainder(row, channels / n) * n;
  std::int64_t at[6];
  rows.offsets(row, at);

  const Real part1 = lse1[at[3]], part2 = lse2[at[4]];
  const bool some1 = part1 != nothing, some2 = part2 != nothing;
  const Real largest = part1 > part2 ? part1 : part2;
  const Real e1 = some1 ? std::exp(part1 - largest) : 0, e2 = some2 ? std::exp(part2 - largest) : 0;
  const Real total = e1 + e2;
  Real result[n] = {}, values[n];
  if (some1) {
    widen_vector(load_vector<n>(out1.data + at[0] + first * out1.step), result);
#pragma unroll
    for (int e = 0; e < n; ++e) result[e] *= e1 / total;
  }
  if (some2) {
    widen_vector(load_vector<n>(out2.data + at[1] + first * out2.step), values);
    const Real weight = e2 / total;
#pragma unroll
    for (int e = 0; e < n; ++e) result[e] = some1 ? fma(values[e], weight, result[e]) : values[e] * weight;
  }
  store_vector<n>(result, out.data + at[2] + first * out.step);
  if (lse != nullptr && first == 0) lse[at[5]] = some1 || some2 ? largest + std::log(total) : nothing;
}

}  // namespace

void CudaBackend::merge(const MergeInputs& in, const AttentionOutputs& outputs) {
  const CurrentDevice current(context_.device);
  for_floating(in.out1.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Real = accumulator_t<T>;
    const int row_rank = in.lse1.rank;
    const auto rows = walk_over(row_rank, in.out1, in.out2, outputs.out, in.lse1, in.lse2, outputs.lse);
    const std::int64_t channels = in.out1.shape[static_cast<std::size_t>(row_rank)];
    constexpr int n = vector_length<T>;
    const bool packed = rows_are_packed(in.out1, n) && rows_are_packed(in.out2, n) && rows_are_packed(outputs.out, n);
    const std::int64_t vectors = rows.size() * (packed ? channels / n : channels);
    launch(context_, "merge", packed ? merge_kernel<T, n> : merge_kernel<T, 1>, ceil_div(vectors, threads_per_block),
           threads_per_block, 0, rows, vectors, channels, row_of<const T>(in.out1), row_of<const T>(in.out2),
           row_of<T>(outputs.out), static_cast<const Real*>(in.lse1.data), static_cast<const Real*>(in.lse2.data),
           static_cast<Real*>(outputs.lse.data));
  });
}

}  // namespace dsalt::cuda
