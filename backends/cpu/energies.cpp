// nx = ||x||, nv = ||v|| over the last dimension:  dx = dnx x / ||x||, 0 where the norm is 0; dv alike.
// Squares are exact and added in double, so no row over- or underflows.
#include <cmath>

#include "cpu_backend.hpp"
#include "internal/elements.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {
namespace {

std::int64_t rows_per_thread(std::int64_t d) { return 1 + 32768 / (d + 1); }

/// `norms` has the shape of `rows` without its last dimension.
void row_norms(int threads, const RowIo& io, const TensorView& rows, const TensorView& norms) {
  const int last = rows.rank - 1;
  const std::int64_t d = rows.shape[last], stride = rows.strides[last];
  const auto walk = row_walk(last, rows, norms);
  parallel_for(
      threads, walk.size(), rows_per_thread(d), [&] { return RowBuffers(1, d); },
      [&](RowBuffers& buffer, std::int64_t row) {
        const auto [at, norm_at] = walk.offsets(row);
        const float* x = io.read(rows, at, stride, d, buffer[0]);
        store_double(norms, norm_at, std::sqrt(io.rows.squares(x, d)));
      });
}

/// An absent `dnorms` counts as zeros.
void row_norm_gradients(int threads, const RowIo& io, const TensorView& rows, const TensorView& dnorms,
                        const TensorView& drows) {
  const int last = rows.rank - 1;
  const std::int64_t d = rows.shape[last];
  const auto walk = row_walk(last, rows, dnorms, drows);
  parallel_for(
      threads, walk.size(), rows_per_thread(d), [&] { return RowBuffers(2, d); },
      [&](RowBuffers& buffer, std::int64_t row) {
        const auto [at, dnorm_at, drow_at] = walk.offsets(row);
        const float* x = io.read(rows, at, rows.strides[last], d, buffer[0]);
        float* out = io.target(drows, drow_at, drows.strides[last], d, buffer[1]);
        const double norm = dnorms.present() ? std::sqrt(io.rows.squares(x, d)) : 0;
        if (norm == 0)
          std::fill_n(out, d, 0.0f);
        else
          io.rows.scaled(x, load_double(dnorms, dnorm_at) / norm, out, d);
        io.write(drows, drow_at, drows.strides[last], d, out);
      });
}

}  // namespace

void CpuBackend::energies_forward(const EnergyInputs& in, const Energies& energies) {
  const RowIo io(kernels_);
  row_norms(threads(), io, in.x, energies.nx);
  row_norms(threads(), io, in.v, energies.nv);
}

void CpuBackend::energies_backward(const EnergyInputs& in, const Energies& arriving, const EnergyGradients& gradients) {
  const RowIo io(kernels_);
  if (gradients.dx.present()) row_norm_gradients(threads(), io, in.x, arriving.nx, gradients.dx);
  if (gradients.dv.present()) row_norm_gradients(threads(), io, in.v, arriving.nv, gradients.dv);
}

}  // namespace dsalt::internal
