// nx = ||x_bj||, nv = ||v_bgj|| over the last dimension, and dx = dnx x / ||x||, 0 where the norm is 0:
// docs/semantics.md, "Selectors".
#include <algorithm>
#include <cmath>

#include "dense.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

/// Euclidean norm whose squares neither overflow nor vanish: scaled by a power of two, which rounds nothing.
double norm(const RowVector& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::fabs(value));
  const int exponent = largest > 0 && std::isfinite(largest) ? std::ilogb(largest) : 0;
  double squares = 0;
  for (const double value : x) {
    const double scaled = std::ldexp(value, -exponent);
    squares += scaled * scaled;
  }
  return std::ldexp(std::sqrt(squares), exponent);
}

void norms_forward(const TensorView& x, const TensorView& norms) {
  if (!norms.present()) return;
  RowVector row;
  for_each_element(
      [&](std::int64_t x_at, std::int64_t norm_at) {
        load_row(x, x_at, row);
        store_double(norms, norm_at, norm(row));
      },
      row_starts(x), norms);
}

void norms_backward(const TensorView& x, const TensorView& dnorms, const TensorView& dx) {
  if (!dx.present()) return;
  if (!dnorms.present()) return store_zeros(dx);
  RowVector row;
  for_each_element(
      [&](std::int64_t x_at, std::int64_t dnorm_at, std::int64_t dx_at) {
        load_row(x, x_at, row);
        const double length = norm(row), dnorm = load_double(dnorms, dnorm_at);
        for (double& value : row) value = length == 0 ? 0 : dnorm * (value / length);
        store_row(row, dx, dx_at);
      },
      row_starts(x), dnorms, row_starts(dx));
}

}  // namespace

void ReferenceBackend::energies_forward(const EnergyInputs& inputs, const Energies& energies) {
  norms_forward(inputs.x, energies.nx);
  norms_forward(inputs.v, energies.nv);
}

void ReferenceBackend::energies_backward(const EnergyInputs& inputs, const Energies& energy_gradients,
                                         const EnergyGradients& gradients) {
  norms_backward(inputs.x, energy_gradients.nx, gradients.dx);
  norms_backward(inputs.v, energy_gradients.nv, gradients.dv);
}

}  // namespace dsalt::internal
