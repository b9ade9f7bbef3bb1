// Rotary position embedding: docs/semantics.md, "Network pieces". For t < D/2, at position pos,
//
//   theta = pos base^(-2t/D) / rope_scale
//   y_t = x_t cos(theta) - x_{t+D/2} sin(theta)      y_{t+D/2} = x_t sin(theta) + x_{t+D/2} cos(theta)
//
// theta is in double; sin and cos are rounded to float32 unless the tensor is float64. The backward pass is the inverse
// rotation. Positions count from each sequence's first token; rows past the last packed sequence are not written.
#include <cmath>

#include "dense.hpp"
#include "internal/sequence.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

/// One sequence, x and y as [H,n,D]; direction is 1, or -1 for the inverse.
void rotate(const RopeProblem& problem, const TensorView& x, const TensorView& y, std::int64_t position,
            double direction) {
  const std::int64_t heads = x.shape[0], tokens = x.shape[1], half = x.shape[2] / 2;
  const bool narrow = x.dtype != DType::f64;
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t t = 0; t < half; ++t) {
      const double exponent = -static_cast<double>(t) / static_cast<double>(half);  // -2t/D
      const double theta = static_cast<double>(position + i) * std::pow(problem.base, exponent) / problem.rope_scale;
      double cosine = std::cos(theta), sine = std::sin(theta);
      if (narrow) {
        cosine = static_cast<float>(cosine);
        sine = static_cast<float>(sine);
      }
      sine *= direction;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t x_at = h * x.strides[0] + i * x.strides[1] + t * x.strides[2];
        const std::int64_t y_at = h * y.strides[0] + i * y.strides[1] + t * y.strides[2];
        const double first = load_double(x, x_at), second = load_double(x, x_at + half * x.strides[2]);
        store_double(y, y_at, first * cosine - second * sine);
        store_double(y, y_at + half * y.strides[2], first * sine + second * cosine);
      }
    }
  }
}

void rotate_all(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& x, const TensorView& y,
                double direction) {
  const bool packed = inputs.cu_seqlens.present();
  const std::int64_t sequences = packed ? inputs.cu_seqlens.shape[0] - 1 : x.shape[0];
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t start = packed ? load_i32(inputs.cu_seqlens, b) : 0;
    const std::int64_t length = packed ? load_i32(inputs.cu_seqlens, b + 1) - start : x.shape[2];
    const std::int64_t position = inputs.positions.present() ? load_i32(inputs.positions, b) : problem.position;
    rotate(problem, sequence_rows(x, packed, b, start, length), sequence_rows(y, packed, b, start, length), position,
           direction);
  }
}

}  // namespace

void ReferenceBackend::rope_forward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) {
  rotate_all(problem, inputs, inputs.x, y, 1);
}

void ReferenceBackend::rope_backward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& dy,
                                     const TensorView& dx) {
  rotate_all(problem, inputs, dy, dx, -1);
}

}  // namespace dsalt::internal
