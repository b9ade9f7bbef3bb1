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
#include "rows.hpp"

namespace dsalt::internal {
namespace {

struct Buffers {
  explicit Buffers(std::int64_t d) : x(d), dy(d), out(d) {}
  std::vector<float> x, dy, out;
};

std::int64_t rows_per_thread(std::int64_t d) { return 1 + 32768 / (d + 1); }

double inverse_rms(const float* x, std::int64_t d, double eps) {
  return 1 / std::sqrt(dot_double(x, x, d) / static_cast<double>(d) + eps);
}

/// dx of one row.
void input_gradient(const float* x, const float* dy, const float* gamma, double r, std::int64_t d, float* dx) {
  double lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= d; i += 8)
    for (int l = 0; l < 8; ++l)
      lanes[l] += static_cast<double>(dy[i + l]) * static_cast<double>(gamma[i + l]) * static_cast<double>(x[i + l]);
  for (int l = 0; i < d; ++i, ++l)
    lanes[l] += static_cast<double>(dy[i]) * static_cast<double>(gamma[i]) * static_cast<double>(x[i]);
  const double ux = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  const double along = ux / static_cast<double>(d) * r * r * r;
#pragma omp simd
  for (std::int64_t c = 0; c < d; ++c)
    dx[c] = static_cast<float>(static_cast<double>(dy[c]) * static_cast<double>(gamma[c]) * r -
                               static_cast<double>(x[c]) * along);
}

}  // namespace

void CpuBackend::rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& y) {
  const int last = in.x.rank - 1;
  const std::int64_t d = in.x.shape[last], x_stride = in.x.strides[last], y_stride = y.strides[last];
  const auto walk = row_walk(last, in.x, y);
  std::vector<float> gamma(d);
  load_row(in.gamma, 0, in.gamma.strides[0], d, gamma.data());
  parallel_for(
      threads(), walk.size(), rows_per_thread(d), [&] { return Buffers(d); },
      [&](Buffers& buffers, std::int64_t row) {
        const auto [x_at, y_at] = walk.offsets(row);
        const float* x = float_row(in.x, x_at, x_stride, d, buffers.x.data());
        const double r = inverse_rms(x, d, problem.eps);
        float* out = buffers.out.data();
        const float* scale = gamma.data();
#pragma omp simd
        for (std::int64_t i = 0; i < d; ++i)
          out[i] = static_cast<float>(static_cast<double>(x[i]) * r * static_cast<double>(scale[i]));
        store_row(y, y_at, y_stride, d, out);
      });
}

void CpuBackend::rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& dy,
                                  const RmsNormGradients& gradients) {
  const int last = in.x.rank - 1;
  const std::int64_t d = in.x.shape[last];
  const auto walk = row_walk(last, in.x, dy, gradients.dx);
  const std::int64_t rows = walk.size();
  const bool wants_dx = gradients.dx.present(), wants_dgamma = gradients.dgamma.present();
  std::vector<float> gamma(d);
  load_row(in.gamma, 0, in.gamma.strides[0], d, gamma.data());

  const std::int64_t per_block = std::max<std::int64_t>(32, (rows + 255) / 256);
  const std::int64_t blocks = (rows + per_block - 1) / per_block;
  std::vector<double> partial(wants_dgamma ? blocks * d : 0);
  parallel_for(
      threads(), blocks, 1, [&] { return Buffers(d); },
      [&](Buffers& buffers, std::int64_t block) {
        double* sum = partial.data() + (wants_dgamma ? block * d : 0);
        for (std::int64_t row = block * per_block; row < std::min(rows, (block + 1) * per_block); ++row) {
          const auto [x_at, dy_at, dx_at] = walk.offsets(row);
          const float* x = float_row(in.x, x_at, in.x.strides[last], d, buffers.x.data());
          const float* g = float_row(dy, dy_at, dy.strides[last], d, buffers.dy.data());
          const double r = inverse_rms(x, d, problem.eps);
          if (wants_dx) {
            input_gradient(x, g, gamma.data(), r, d, buffers.out.data());
            store_row(gradients.dx, dx_at, gradients.dx.strides[last], d, buffers.out.data());
          }
          if (!wants_dgamma) continue;
#pragma omp simd
          for (std::int64_t i = 0; i < d; ++i) sum[i] += static_cast<double>(g[i]) * (static_cast<double>(x[i]) * r);
        }
      });
  if (!wants_dgamma) return;
  std::vector<double> total(d);
  for (std::int64_t block = 0; block < blocks; ++block)
    for (std::int64_t i = 0; i < d; ++i) total[i] += partial[block * d + i];
  for (std::int64_t i = 0; i < d; ++i) store_double(gradients.dgamma, i * gradients.dgamma.strides[0], total[i]);
}

}  // namespace dsalt::internal
