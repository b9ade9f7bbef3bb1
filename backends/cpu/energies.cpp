// nx = ||x||, nv = ||v|| over the last dimension:  dx = dnx x / ||x||, 0 where the norm is 0; dv alike.
// Squares are exact and added in double, so no row over- or underflows.
#include <cmath>
#include <vector>

#include "cpu_backend.hpp"
#include "internal/elements.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace dsalt::internal {
namespace {

std::int64_t rows_per_thread(std::int64_t d) { return 1 + 32768 / (d + 1); }

/// `norms` has the shape of `rows` without its last dimension.
void row_norms(int threads, const TensorView& rows, const TensorView& norms) {
  const int last = rows.rank - 1;
  const std::int64_t d = rows.shape[last], stride = rows.strides[last];
  const auto walk = row_walk(last, rows, norms);
  parallel_for(
      threads, walk.size(), rows_per_thread(d), [&] { return std::vector<float>(d); },
      [&](std::vector<float>& buffer, std::int64_t row) {
        const auto [at, norm_at] = walk.offsets(row);
        const float* x = float_row(rows, at, stride, d, buffer.data());
        store_double(norms, norm_at, std::sqrt(dot_double(x, x, d)));
      });
}

/// An absent `dnorms` counts as zeros.
void row_norm_gradients(int threads, const TensorView& rows, const TensorView& dnorms, const TensorView& drows) {
  const int last = rows.rank - 1;
  const std::int64_t d = rows.shape[last];
  const auto walk = row_walk(last, rows, dnorms, drows);
  parallel_for(
      threads, walk.size(), rows_per_thread(d), [&] { return std::vector<float>(2 * d); },
      [&](std::vector<float>& buffer, std::int64_t row) {
        const auto [at, dnorm_at, drow_at] = walk.offsets(row);
        float* out = buffer.data() + d;
        const float* x = float_row(rows, at, rows.strides[last], d, buffer.data());
        const double norm = dnorms.present() ? std::sqrt(dot_double(x, x, d)) : 0;
        const double scale = norm == 0 ? 0 : load_double(dnorms, dnorm_at) / norm;
        if (norm == 0) {
          std::fill_n(out, d, 0.0f);
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < d; ++i) out[i] = static_cast<float>(static_cast<double>(x[i]) * scale);
        }
        store_row(drows, drow_at, drows.strides[last], d, out);
      });
}

}  // namespace

void CpuBackend::energies_forward(const EnergyInputs& in, const Energies& energies) {
  row_norms(threads(), in.x, energies.nx);
  row_norms(threads(), in.v, energies.nv);
}

void CpuBackend::energies_backward(const EnergyInputs& in, const Energies& arriving, const EnergyGradients& gradients) {
  if (gradients.dx.present()) row_norm_gradients(threads(), in.x, arriving.nx, gradients.dx);
  if (gradients.dv.present()) row_norm_gradients(threads(), in.v, arriving.nv, gradients.dv);
}

}  // namespace dsalt::internal
