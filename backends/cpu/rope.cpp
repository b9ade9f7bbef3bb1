// Rotary position embedding on half-split pairs (t, t + D/2) at position pos:
//   angle_t = pos base^(-2t/D) / rope_scale
//   y_t = x_t cos - x_{t+D/2} sin        y_{t+D/2} = x_{t+D/2} cos + x_t sin
// backward: the inverse rotation of dy. Angles, cos and sin in double, rounded to float32; the rotation in float32.
//
// cos and sin of a position are computed once and used for every head, and for every sequence where all sequences start
// at the same position.
#include <cmath>
#include <vector>

#include "cpu_backend.hpp"
#include "internal/elements.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {
namespace {

/// Up to this many consecutive tokens share a table, so that the rows of a head are read in runs.
constexpr std::int64_t tokens_per_task = 64;
constexpr std::int64_t joined_rows = 16;  // converted in one go

/// Tokens [first, first + count) of sequences [b, b + sequences), at position `position` and on.
struct Run {
  std::int64_t b, sequences, first, count, position;
};

/// The tensors as [B,H,N,D]; a packed one is a batch of 1.
TensorView batched(const TensorView& view) {
  if (view.rank == 4) return view;
  const TensorView heads_first = view.transpose(0, 1);
  TensorView result = heads_first;
  result.rank = 4;
  result.shape[0] = 1;
  result.strides[0] = 0;
  for (int d = 0; d < 3; ++d) {
    result.shape[d + 1] = heads_first.shape[d];
    result.strides[d + 1] = heads_first.strides[d];
  }
  return result;
}

std::vector<Run> runs_of(const RopeProblem& problem, const RopeInputs& in, const TensorView& x) {
  std::vector<Run> runs;
  const auto add = [&](std::int64_t b, std::int64_t sequences, std::int64_t first, std::int64_t length,
                       std::int64_t position) {
    for (std::int64_t n = 0; n < length; n += tokens_per_task)
      runs.push_back({b, sequences, first + n, std::min(tokens_per_task, length - n), position + n});
  };
  const auto start = [&](std::int64_t s) {
    return in.positions.present() ? load_i32(in.positions, s) : problem.position;
  };
  if (in.cu_seqlens.present()) {
    for (std::int64_t s = 0; s + 1 < in.cu_seqlens.shape[0]; ++s) {
      const std::int64_t first = load_i32(in.cu_seqlens, s);
      add(0, 1, first, load_i32(in.cu_seqlens, s + 1) - first, start(s));
    }
  } else if (in.positions.present()) {
    for (std::int64_t b = 0; b < x.shape[0]; ++b) add(b, 1, 0, x.shape[2], start(b));
  } else {
    add(0, x.shape[0], 0, x.shape[2], problem.position);
  }
  return runs;
}

struct Scratch {
  explicit Scratch(std::int64_t d)
      : cos(tokens_per_task, d / 2), sin(tokens_per_task, d / 2), x(joined_rows, d), y(joined_rows, d) {}
  RowBuffers cos, sin, x, y;
};

/// `direction` is 1 for the rotation, -1 for its inverse.
void rotate(int threads, const RowIo& io, const RopeProblem& problem, const RopeInputs& in, const TensorView& from,
            const TensorView& to, double direction) {
  const TensorView x = batched(from), y = batched(to);
  const std::int64_t d = x.shape[3], half = d / 2;
  std::vector<double> frequency(half);
  for (std::int64_t t = 0; t < half; ++t)
    frequency[t] = std::pow(problem.base, -2 * static_cast<double>(t) / static_cast<double>(d));
  const std::vector<Run> runs = runs_of(problem, in, x);

  const auto rotate_rows = [&](Scratch& scratch, std::int64_t x_at, std::int64_t y_at, std::int64_t rows) {
    const std::int64_t table = scratch.cos.stride();
    if (io.in_place(x, x.strides[3], d) && io.in_place(y, y.strides[3], d))
      return io.rows.rotate(rows, half, x.at<float>(x_at), x.strides[2], scratch.cos[0], scratch.sin[0], table,
                            y.at<float>(y_at), y.strides[2]);
    // Rows that follow each other are converted in one go.
    const bool joined =
        d == scratch.x.stride() && x.strides[3] == 1 && y.strides[3] == 1 && x.strides[2] == d && y.strides[2] == d;
    for (std::int64_t n = 0, step = 0; n < rows; n += step) {
      step = joined ? std::min(joined_rows, rows - n) : 1;
      const float* from = io.read(x, x_at + n * x.strides[2], x.strides[3], step * d, scratch.x[0]);
      float* to = io.target(y, y_at + n * y.strides[2], y.strides[3], step * d, scratch.y[0]);
      io.rows.rotate(step, half, from, d, scratch.cos[n], scratch.sin[n], table, to, d);
      io.write(y, y_at + n * y.strides[2], y.strides[3], step * d, to);
    }
  };

  const auto count = static_cast<std::int64_t>(runs.size());
  const std::int64_t run_elements = tokens_per_task * d * x.shape[1];
  parallel_for(
      threads, count, 1 + 16384 / (run_elements + 1), [&] { return Scratch(d); },
      [&](Scratch& scratch, std::int64_t index) {
        const Run& run = runs[index];
        for (std::int64_t n = 0; n < run.count; ++n)
          io.rows.angles(static_cast<double>(run.position + n), frequency.data(), problem.rope_scale, direction,
                         scratch.cos[n], scratch.sin[n], half);
        for (std::int64_t b = run.b; b < run.b + run.sequences; ++b)
          for (std::int64_t h = 0; h < x.shape[1]; ++h)
            rotate_rows(scratch, b * x.strides[0] + h * x.strides[1] + run.first * x.strides[2],
                        b * y.strides[0] + h * y.strides[1] + run.first * y.strides[2], run.count);
      });
}

}  // namespace

void CpuBackend::rope_forward(const RopeProblem& problem, const RopeInputs& in, const TensorView& y) {
  rotate(threads(), RowIo(kernels_), problem, in, in.x, y, 1);
}

void CpuBackend::rope_backward(const RopeProblem& problem, const RopeInputs& in, const TensorView& dy,
                               const TensorView& dx) {
  rotate(threads(), RowIo(kernels_), problem, in, dy, dx, -1);
}

}  // namespace dsalt::internal
