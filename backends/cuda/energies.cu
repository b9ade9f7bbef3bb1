// nx = ||x_bj||, nv = ||v_bgj|| over the last dimension:  dx = dnx x / ||x||, 0 where the norm is 0; dv alike.
// docs/semantics.md, "Token energies".
//
// Both tensors go in one launch, and each byte is read once. How rows are held is in energies_rows.cuh.
#include "cuda_backend.hpp"
#include "dependent_launch.cuh"
#include "energies_rows.cuh"

namespace dsalt::cuda {
namespace {

template <int together, class T>
__device__ void write_norms(const EnergyRows<T>& rows, unsigned block) {
  const HeldRows<T, together, energy_vectors> held(rows, block);
  const double norm = held.norm();
  if (held.lane() < together && held.exists(held.lane())) *held.row(held.lane()).norm = narrow<accumulator_t<T>>(norm);
}

template <int together, class T>
__device__ void write_gradients(const EnergyRows<T>& rows, unsigned block) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>;
  const HeldRows<T, together, 2> held(rows, block);
  const accumulator_t<T>* const arrives = held.row(held.own_row()).norm;
  const double arriving = arrives != nullptr ? static_cast<double>(*arrives) : 0, norm = held.norm();
  const bool zero = norm == 0 || arrives == nullptr;
  const double factor = zero ? 0 : arriving / norm;
  // As a number of the type the factor could overflow, or lose digits, where the gradient does not.
  const bool in_range = sizeof(Real) == 4 && (factor == 0 || (fabs(factor) > 0x1p-100 && fabs(factor) < 0x1p100));
  const bool usual = __all_sync(0xffffffffu, in_range && !zero);
#pragma unroll
  for (int r = 0; r < together; ++r) {
    const auto of_row = [&](auto own) {
      return __shfl_sync(0xffffffffu, own, (static_cast<int>(threadIdx.x) % 32 - held.lane()) + r);
    };
    const auto scale = of_row(static_cast<Real>(factor));
    const bool row_zero = !usual && of_row(static_cast<int>(zero)) != 0;
    const bool row_in_range = usual || of_row(static_cast<int>(in_range)) != 0;
    const double row_arriving = usual ? 0 : of_row(arriving), row_norm = usual ? 1 : of_row(norm);
    if (!held.exists(r)) continue;
    T* const to = held.row(r).gradients;
    held.visit(r, [&](std::int64_t m, const Real(&values)[n]) {
      if (m >= rows.vectors) return;
      Real result[n];
#pragma unroll
      for (int e = 0; e < n; ++e) result[e] = values[e] * scale;
      if (!usual) {
#pragma unroll
        for (int e = 0; e < n; ++e)
          if (row_zero)
            result[e] = 0;
          else if (!row_in_range)
            result[e] = static_cast<Real>(row_arriving * (values[e] / row_norm));
      }
      if (rows.whole_vectors)
        store_streamed<n>(result, to + m * n);
      else
        store_part<n, false>(result, to, rows.gradients.strides[3], m * n, rows.values.shape[3]);
    });
  }
}

template <class T>
__global__ __launch_bounds__(energy_threads, 8) void energies_kernel(EnergyRows<T> x, EnergyRows<T> v) {
  let_later_kernels_start();  // when the last blocks of this one run
  wait_for_earlier_kernels();
  const auto write = [](const EnergyRows<T>& rows, unsigned block) {
    for_layout(rows, [&](auto together) { write_norms<decltype(together)::value>(rows, block); });
  };
  if (blockIdx.x < x.blocks)
    write(x, blockIdx.x);
  else
    write(v, blockIdx.x - x.blocks);
}

template <class T>
__global__ __launch_bounds__(energy_threads, 4) void energies_backward_kernel(EnergyRows<T> x, EnergyRows<T> v) {
  const auto write = [](const EnergyRows<T>& rows, unsigned block) {
    for_layout(rows, [&](auto together) { write_gradients<decltype(together)::value>(rows, block); });
  };
  if (blockIdx.x < x.blocks)
    write(x, blockIdx.x);
  else
    write(v, blockIdx.x - x.blocks);
}

/// `view` with its leading dimensions filled up with ones to the given rank.
template <class T, int rank>
View<T, rank> padded_view(const TensorView& view) {
  if (!view.present()) return {};
  TensorView padded = view;
  for (; padded.rank < rank; ++padded.rank) {
    for (auto dim = static_cast<std::size_t>(padded.rank); dim > 0; --dim) {
      padded.shape[dim] = padded.shape[dim - 1];
      padded.strides[dim] = padded.strides[dim - 1];
    }
    padded.shape[0] = 1;
    padded.strides[0] = 0;
  }
  return device_view<T, rank>(padded);
}

/// Leading dimensions that follow on each other in memory become one: finding a row then takes no division.
template <class T>
void collapse(EnergyRows<T>& rows) {
  for (int dim = 1; dim >= 0; --dim) {
    const auto follows = [&](const auto& view) {
      return !view.present() || view.strides[dim] == view.strides[2] * rows.values.shape[2];
    };
    const std::int64_t length = rows.values.shape[dim];
    if (length != 1 && !(follows(rows.values) && follows(rows.gradients) && follows(rows.norms))) return;
    rows.values.shape[2] *= length;
    rows.values.shape[dim] = 1;
  }
}

/// No rows where `output`, which is wanted of them, is absent.
template <class T>
EnergyRows<T> rows_of(const TensorView& values, const TensorView& norms, const TensorView& gradients,
                      const TensorView& output) {
  EnergyRows<T> rows;
  if (!output.present()) return rows;
  rows.values = padded_view<T, 4>(values);
  rows.gradients = padded_view<T, 4>(gradients);
  rows.norms = padded_view<accumulator_t<T>, 3>(norms);
  rows.whole_vectors = rows_are_packed(values, vector_length<T>) && rows_are_packed(gradients, vector_length<T>);
  rows.count = rows.values.shape[0] * rows.values.shape[1] * rows.values.shape[2];
  collapse(rows);
  // The order of sums depends on the length alone.
  rows.vectors = ceil_div(rows.values.shape[3], vector_length<T>);
  rows.lanes = rows.vectors <= 16 ? 8 : rows.vectors <= 32 ? 16 : 32;
  rows.together = rows.vectors <= 8 ? 8 : rows.vectors <= 64 ? 4 : rows.vectors <= 128 ? 2 : 1;
  rows.blocks = ceil_div(ceil_div(rows.count, rows.together) * rows.lanes, energy_threads);
  return rows;
}

}  // namespace

void CudaBackend::energies_forward(const EnergyInputs& in, const Energies& energies) {
  const CurrentDevice current(context_.device);
  for_floating(in.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = rows_of<T>(in.x, energies.nx, {}, energies.nx), v = rows_of<T>(in.v, energies.nv, {}, energies.nv);
    if (context_.hopper())
      launch_clusters(context_, "energies_forward", energies_kernel<T>, x.blocks + v.blocks, 1, energy_threads, 0, x,
                      v);
    else
      launch(context_, "energies_forward", energies_kernel<T>, x.blocks + v.blocks, dim3(energy_threads), 0, x, v);
  });
}

void CudaBackend::energies_backward(const EnergyInputs& in, const Energies& arriving,
                                    const EnergyGradients& gradients) {
  const CurrentDevice current(context_.device);
  for_floating(in.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = rows_of<T>(in.x, arriving.nx, gradients.dx, gradients.dx),
               v = rows_of<T>(in.v, arriving.nv, gradients.dv, gradients.dv);
    launch(context_, "energies_backward", energies_backward_kernel<T>, x.blocks + v.blocks, dim3(energy_threads), 0, x,
           v);
  });
}

}  // namespace dsalt::cuda
