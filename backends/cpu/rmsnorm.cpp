// y = gamma x r with r = 1 / sqrt(mean(x^2) + eps); with u = gamma dy:
//   dx = r u - x r^3 mean(u x)          dgamma = sum over rows of dy x r
//
// The sums of a row are exact products added in double, and each element is computed in double and rounded once, so no
// scale of x over- or underflows on the way. dgamma adds blocks of rows whose size depends on the row count alone.
#include <cmath>
#include <vector>

#include "cpu_backend.hpp"
#include "internal/elements.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {
namespace {

std::int64_t rows_per_thread(std::int64_t d) { return 1 + 32768 / (d + 1); }

double inverse_rms(double squares, std::int64_t d, double eps) {
  return 1 / std::sqrt(squares / static_cast<double>(d) + eps);
}

}  // namespace

void CpuBackend::rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& y) {
  const int last = in.x.rank - 1;
  const std::int64_t d = in.x.shape[last], x_stride = in.x.strides[last], y_stride = y.strides[last];
  const RowIo io(kernels_);
  const auto walk = row_walk(last, in.x, y);
  RowBuffers parameters(1, d);
  float* gamma = parameters[0];
  load_row(in.gamma, 0, in.gamma.strides[0], d, gamma);
  parallel_for(
      threads(), walk.size(), rows_per_thread(d), [&] { return RowBuffers(3, d); },
      [&](RowBuffers& buffers, std::int64_t row) {
        const auto [x_at, y_at] = walk.offsets(row);
        const float* x = io.read(in.x, x_at, x_stride, d, buffers[0]);
        float* out = io.target(y, y_at, y_stride, d, buffers[2]);
        io.rows.rmsnorm(x, gamma, inverse_rms(io.rows.squares(x, d), d, problem.eps), out, d);
        io.write(y, y_at, y_stride, d, out);
      });
}

void CpuBackend::rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& dy,
                                  const RmsNormGradients& gradients) {
  const int last = in.x.rank - 1;
  const std::int64_t d = in.x.shape[last];
  const RowIo io(kernels_);
  const auto walk = row_walk(last, in.x, dy, gradients.dx);
  const std::int64_t rows = walk.size();
  const bool wants_dx = gradients.dx.present(), wants_dgamma = gradients.dgamma.present();
  RowBuffers parameters(1, d);
  float* gamma = parameters[0];
  load_row(in.gamma, 0, in.gamma.strides[0], d, gamma);

  const std::int64_t per_block = std::max<std::int64_t>(32, (rows + 255) / 256);
  const std::int64_t blocks = (rows + per_block - 1) / per_block;
  std::vector<double> partial(wants_dgamma ? blocks * d : 0);
  parallel_for(
      threads(), blocks, 1, [&] { return RowBuffers(3, d); },
      [&](RowBuffers& buffers, std::int64_t block) {
        double* sum = partial.data() + (wants_dgamma ? block * d : 0);
        for (std::int64_t row = block * per_block; row < std::min(rows, (block + 1) * per_block); ++row) {
          const auto [x_at, dy_at, dx_at] = walk.offsets(row);
          const float* x = io.read(in.x, x_at, in.x.strides[last], d, buffers[0]);
          const float* g = io.read(dy, dy_at, dy.strides[last], d, buffers[1]);
          double squares = 0, products = 0;
          io.rows.rmsnorm_sums(x, g, gamma, d, &squares, &products);
          const double r = inverse_rms(squares, d, problem.eps), along = products / static_cast<double>(d) * r * r * r;
          const std::int64_t dx_stride = wants_dx ? gradients.dx.strides[last] : 1;
          float* dx = wants_dx ? io.target(gradients.dx, dx_at, dx_stride, d, buffers[2]) : nullptr;
          io.rows.rmsnorm_gradients(x, g, gamma, r, along, dx, wants_dgamma ? sum : nullptr, d);
          io.write(gradients.dx, dx_at, dx_stride, d, dx);
        }
      });
  if (!wants_dgamma) return;
  std::vector<double> total(d);
  for (std::int64_t block = 0; block < blocks; ++block)
    for (std::int64_t i = 0; i < d; ++i) total[i] += partial[block * d + i];
  for (std::int64_t i = 0; i < d; ++i) store_double(gradients.dgamma, i * gradients.dgamma.strides[0], total[i]);
}

}  // namespace dsalt::internal
