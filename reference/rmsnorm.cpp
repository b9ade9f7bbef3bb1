// y = gamma x r, r = 1 / sqrt(mean(x^2) + eps), over the last dimension d: docs/semantics.md, "Network pieces".
//
//   g = dy gamma     dx = r (g - x r^2 <g, x> / d)     dgamma = sum over rows of dy x r
#include <cmath>

#include "dense.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

double inverse_rms(const RowVector& x, double eps) {
  return 1 / std::sqrt(x.dot(x) / static_cast<double>(x.size()) + eps);
}

}  // namespace

void ReferenceBackend::rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& inputs,
                                       const TensorView& y) {
  const RowVector gamma = load_vector(inputs.gamma);
  RowVector x;
  for_each_element(
      [&](std::int64_t x_at, std::int64_t y_at) {
        load_row(inputs.x, x_at, x);
        const double r = inverse_rms(x, problem.eps);
        store_row(gamma.cwiseProduct(x) * r, y, y_at);
      },
      row_starts(inputs.x), row_starts(y));
}

void ReferenceBackend::rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& inputs,
                                        const TensorView& dy, const RmsNormGradients& gradients) {
  const RowVector gamma = load_vector(inputs.gamma);
  const TensorView& dx = gradients.dx.present() ? gradients.dx : inputs.x;  // offsets only, when absent
  RowVector dgamma = RowVector::Zero(gamma.size());
  RowVector x, dy_row;
  for_each_element(
      [&](std::int64_t x_at, std::int64_t dy_at, std::int64_t dx_at) {
        load_row(inputs.x, x_at, x);
        load_row(dy, dy_at, dy_row);
        const double r = inverse_rms(x, problem.eps);
        const RowVector g = dy_row.cwiseProduct(gamma);
        dgamma += dy_row.cwiseProduct(x) * r;
        if (gradients.dx.present())
          store_row(r * (g - x * (r * r * g.dot(x) / static_cast<double>(x.size()))), dx, dx_at);
      },
      row_starts(inputs.x), row_starts(dy), row_starts(dx));
  if (gradients.dgamma.present()) store_vector(dgamma, gradients.dgamma);
}

}  // namespace dsalt::internal
