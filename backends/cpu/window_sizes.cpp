// w(b,h,i) = n_min + sigma(z) (n_max - n_min), z = <x_bi, a_h> + c_h, floored when asked:
//   dz = dw (n_max - n_min) sigma(z) sigma(-z), 0 with floor
//   dx_bi = sum_h dz a_h        da_h = sum_{b,i} dz x_bi        dc_h = sum_{b,i} dz
//
// z, sigma and w in double, so that a floored window is the reference's. The gradients are float32 products of rounded
// dz, added over a fixed number of rows before they enter a double sum.
#include <cmath>
#include <vector>

#include "cpu_backend.hpp"
#include "internal/admitted.hpp"
#include "internal/elements.hpp"
#include "panel_kernels.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {
namespace {

constexpr std::int64_t block_rows = 64;  // added up in float32 in the weight gradient

/// Both forms as rows: x [rows,d], and per head the offset of a row's window.
class WindowRows {
 public:
  WindowRows(const WindowInputs& in, const TensorView& window)
      : d(in.x.shape[in.x.rank - 1]), heads(in.weight.shape[0]), head_stride(window.strides[1]) {
    TensorView tokens = window;  // [B,N] or [R]
    tokens.rank = in.x.rank - 1;
    tokens.shape[0] = in.x.shape[0];
    tokens.strides[0] = window.strides[0];
    if (in.x.rank == 3) {
      tokens.shape[1] = in.x.shape[1];
      tokens.strides[1] = window.strides[2];
    }
    walk_ = row_walk(in.x.rank - 1, in.x, tokens);
    rows = walk_.size();
  }

  std::int64_t x_offset(std::int64_t row) const { return walk_.offsets(row)[0]; }
  /// Of head 0; the next head is head_stride further.
  std::int64_t window_offset(std::int64_t row) const { return walk_.offsets(row)[1]; }

  std::int64_t rows, d, heads, head_stride;

 private:
  RowWalk<2> walk_;
};

std::vector<float> load_weight(const WindowInputs& in) {
  const std::int64_t heads = in.weight.shape[0], d = in.weight.shape[1];
  std::vector<float> weight(heads * d);
  for (std::int64_t h = 0; h < heads; ++h)
    load_row(in.weight, h * in.weight.strides[0], in.weight.strides[1], d, weight.data() + h * d);
  return weight;
}

/// z of a block of rows, in double.
class Logits {
 public:
  Logits(const RowIo& io, const WindowInputs& in, const WindowRows& rows, const std::vector<float>& weight)
      : io_(io), in_(in), rows_(rows), weight_(weight.begin(), weight.end()), bias_(rows.heads) {
    for (std::int64_t h = 0; h < rows.heads; ++h) bias_[h] = load_double(in.bias, h * in.bias.strides[0]);
  }

  struct Block {
    explicit Block(const WindowRows& rows) : x(block_rows, rows.d), z(block_rows * rows.heads) {}
    RowBuffers x;
    std::vector<double> z;  // [rows of the block, heads]
  };

  void compute(std::int64_t first, std::int64_t count, Block& block) const {
    const std::int64_t d = rows_.d, heads = rows_.heads, stride = in_.x.strides[in_.x.rank - 1];
    const float* x[block_rows];
    for (std::int64_t i = 0; i < count; ++i) {
      x[i] = io_.read(in_.x, rows_.x_offset(first + i), stride, d, block.x[i]);
      std::copy(bias_.begin(), bias_.end(), block.z.begin() + i * heads);
    }
    io_.rows.dots(count, heads, d, x, weight_.data(), block.z.data());
  }

 private:
  const RowIo& io_;
  const WindowInputs& in_;
  const WindowRows& rows_;
  std::vector<double> weight_, bias_;
};

}  // namespace

void CpuBackend::window_sizes_forward(const WindowProblem& problem, const WindowInputs& in, const TensorView& window) {
  const WindowRows rows(in, window);
  const RowIo io(kernels_);
  const Logits logits(io, in, rows, load_weight(in));
  parallel_for(
      threads(), (rows.rows + block_rows - 1) / block_rows, 1 + 1024 / (rows.d + 1),
      [&] { return Logits::Block(rows); },
      [&](Logits::Block& block, std::int64_t index) {
        const std::int64_t first = index * block_rows, count = std::min(block_rows, rows.rows - first);
        logits.compute(first, count, block);
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = rows.window_offset(first + i);
          for (std::int64_t h = 0; h < rows.heads; ++h) {
            const double w = problem.n_min + sigmoid(block.z[i * rows.heads + h]) * (problem.n_max - problem.n_min);
            store_double(window, at + h * rows.head_stride, problem.floor ? std::floor(w) : w);
          }
        }
      });
}

void CpuBackend::window_sizes_backward(const WindowProblem& problem, const WindowInputs& in, const TensorView& dwindow,
                                       const WindowGradients& gradients) {
  const WindowRows rows(in, dwindow);
  const std::int64_t d = rows.d, heads = rows.heads, stride = in.x.strides[in.x.rank - 1];
  const PanelKernels& panels = panel_kernels_for(kernels_);
  const std::vector<float> weight = load_weight(in);
  const RowIo io(kernels_);
  const Logits logits(io, in, rows, weight);
  const auto dx_walk = row_walk(in.x.rank - 1, in.x, gradients.dx);
  std::vector<float> dz(rows.rows * heads);  // [rows,heads]

  // The weights as panels: block c, head h, column: panel(c)[h * panel_width + column].
  const std::int64_t column_blocks = (d + panel_width - 1) / panel_width, dx_stride = column_blocks * panel_width + 16;
  RowBuffers weight_panels(gradients.dx.present() ? column_blocks : 0, heads * panel_width);
  for (std::int64_t c = 0; c < column_blocks && gradients.dx.present(); ++c)
    for (std::int64_t h = 0; h < heads; ++h)
      std::copy_n(weight.data() + h * d + c * panel_width, std::min(panel_width, d - c * panel_width),
                  weight_panels[c] + h * panel_width);

  struct Scratch : Logits::Block {
    Scratch(const WindowRows& rows, std::int64_t stride) : Block(rows), dx(1, block_rows * stride) {}
    RowBuffers dx;
  };
  parallel_for(
      threads(), (rows.rows + block_rows - 1) / block_rows, 1 + 1024 / (d + 1),
      [&] { return Scratch(rows, dx_stride); },
      [&](Scratch& scratch, std::int64_t index) {
        const std::int64_t first = index * block_rows, count = std::min(block_rows, rows.rows - first);
        float* block_dz = dz.data() + first * heads;
        if (!problem.floor) {
          logits.compute(first, count, scratch);
          for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t at = rows.window_offset(first + i);
            for (std::int64_t h = 0; h < heads; ++h) {
              const double z = scratch.z[i * heads + h];
              const double slope = sigmoid(z) * sigmoid(-z) * (problem.n_max - problem.n_min);
              block_dz[i * heads + h] = static_cast<float>(load_double(dwindow, at + h * rows.head_stride) * slope);
            }
          }
        }
        if (!gradients.dx.present()) return;
        for (std::int64_t c = 0; c < column_blocks; ++c)
          for (std::int64_t h = 0; h < heads; h += block_rows)
            panels.product(count, std::min(block_rows, heads - h), panel_width, block_dz + h, heads, 1,
                           weight_panels[c] + h * panel_width, scratch.dx[0] + c * panel_width, dx_stride, h > 0);
        for (std::int64_t i = 0; i < count; ++i)
          io.write_all(gradients.dx, dx_walk.offsets(first + i)[1], gradients.dx.strides[in.x.rank - 1], d,
                       scratch.dx[0] + i * dx_stride);
      });

  if (gradients.dbias.present())
    parallel_for(threads(), heads, 1 + 32768 / (rows.rows + 1), [&](std::int64_t h) {
      double sum = 0;
      for (std::int64_t r = 0; r < rows.rows; ++r) sum += static_cast<double>(dz[r * heads + h]);
      store_double(gradients.dbias, h * gradients.dbias.strides[0], sum);
    });

  if (!gradients.dweight.present()) return;
  struct WeightScratch {
    explicit WeightScratch(std::int64_t heads)
        : x(1, block_rows * panel_width), part(1, heads * panel_width), total(heads * panel_width) {}
    RowBuffers x, part;
    std::vector<double> total;
  };
  parallel_for(
      threads(), column_blocks, 1 + 1024 / (rows.rows + 1), [&] { return WeightScratch(heads); },
      [&](WeightScratch& scratch, std::int64_t index) {
        const std::int64_t column = index * panel_width, columns = std::min(panel_width, d - column);
        std::fill(scratch.total.begin(), scratch.total.end(), 0.0);
        for (std::int64_t first = 0; first < rows.rows; first += block_rows) {
          const std::int64_t count = std::min(block_rows, rows.rows - first);
          for (std::int64_t i = 0; i < count; ++i) {
            float* to = scratch.x[0] + i * panel_width;
            const float* from = io.read(in.x, rows.x_offset(first + i) + column * stride, stride, columns, to);
            if (from != to) std::copy_n(from, columns, to);
          }
          panels.product(heads, count, panel_width, dz.data() + first * heads, 1, heads, scratch.x[0], scratch.part[0],
                         panel_width, false);
          panels.flush(scratch.part[0], scratch.total.data(), heads * panel_width);
        }
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t c = 0; c < columns; ++c)
            store_double(gradients.dweight,
                         h * gradients.dweight.strides[0] + (column + c) * gradients.dweight.strides[1],
                         scratch.total[h * panel_width + c]);
      });
}

}  // namespace dsalt::internal
