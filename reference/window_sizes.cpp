// w(b,h,i) = n_min + sigma(z) (n_max - n_min), z = <x_bi, a_h> + c_h: docs/semantics.md, "Selectors".
//
//   dz = dw (n_max - n_min) sigma(z) (1 - sigma(z))     dx_bi = sum_h dz a_h     da_h = sum_{b,i} dz x_bi
//   dc_h = sum_{b,i} dz
//
// With `floor` the double value is floored before it is stored, and every gradient is 0.
#include <cmath>

#include "dense.hpp"
#include "internal/admitted.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

struct Predictor {
  Matrix weight;   // a [Hw,d_model]
  RowVector bias;  // c [Hw]
  explicit Predictor(const WindowInputs& inputs) : weight(load_matrix(inputs.weight)), bias(load_vector(inputs.bias)) {}
  double z(std::int64_t h, const RowVector& x) const { return x.dot(weight.row(h)) + bias[h]; }
};

/// Calls body(sequence) for each of the B sequences, or once with 0 for a pack: tokens are independent here.
template <class Body>
void for_each_sequence(const TensorView& x, Body&& body) {
  const std::int64_t count = x.rank == 3 ? x.shape[0] : 1;
  for (std::int64_t b = 0; b < count; ++b) body(b);
}
/// [N,d_model] of sequence b.
TensorView tokens(const TensorView& x, std::int64_t b) { return x.rank == 3 ? x.select(0, b) : x; }
/// [N,Hw] of sequence b.
TensorView token_windows(const TensorView& w, std::int64_t b) {
  return w.rank == 3 ? w.select(0, b).transpose(0, 1) : w;
}

}  // namespace

void ReferenceBackend::window_sizes_forward(const WindowProblem& problem, const WindowInputs& inputs,
                                            const TensorView& window) {
  const Predictor predictor(inputs);
  RowVector x, w;
  for_each_sequence(inputs.x, [&](std::int64_t b) {
    const TensorView xs = tokens(inputs.x, b), ws = token_windows(window, b);
    for (std::int64_t i = 0; i < xs.shape[0]; ++i) {
      load_vector(xs.select(0, i), x);
      w.resize(predictor.bias.size());
      for (std::int64_t h = 0; h < w.size(); ++h) {
        w[h] = problem.n_min + sigmoid(predictor.z(h, x)) * (problem.n_max - problem.n_min);
        if (problem.floor) w[h] = std::floor(w[h]);
      }
      store_vector(w, ws.select(0, i));
    }
  });
}

void ReferenceBackend::window_sizes_backward(const WindowProblem& problem, const WindowInputs& inputs,
                                             const TensorView& dwindow, const WindowGradients& gradients) {
  if (problem.floor) {
    for (const TensorView* gradient : {&gradients.dx, &gradients.dweight, &gradients.dbias})
      if (gradient->present()) store_zeros(*gradient);
    return;
  }
  const Predictor predictor(inputs);
  Matrix dweight = Matrix::Zero(predictor.weight.rows(), predictor.weight.cols());
  RowVector dbias = RowVector::Zero(predictor.bias.size());
  RowVector x, dw, dx;
  for_each_sequence(inputs.x, [&](std::int64_t b) {
    const TensorView xs = tokens(inputs.x, b), dws = token_windows(dwindow, b);
    for (std::int64_t i = 0; i < xs.shape[0]; ++i) {
      load_vector(xs.select(0, i), x);
      load_vector(dws.select(0, i), dw);
      dx.setZero(x.size());
      for (std::int64_t h = 0; h < dw.size(); ++h) {
        const double z = predictor.z(h, x);
        const double dz = dw[h] * (problem.n_max - problem.n_min) * sigmoid(z) * sigmoid(-z);
        dx += dz * predictor.weight.row(h);
        dweight.row(h) += dz * x;
        dbias[h] += dz;
      }
      if (gradients.dx.present()) store_vector(dx, tokens(gradients.dx, b).select(0, i));
    }
  });
  if (gradients.dweight.present()) store_matrix(dweight, gradients.dweight);
  if (gradients.dbias.present()) store_vector(dbias, gradients.dbias);
}

}  // namespace dsalt::internal
