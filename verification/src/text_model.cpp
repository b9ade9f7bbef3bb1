// x_i = sum_s 2^-s E[b_{i-s}],  y = x W, with weights that are pure functions of their names.
#include "text_model.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "internal/elements.hpp"
#include "random_values.hpp"

namespace dsalt::verification {

Tensor seeded_normal(std::string_view name, std::initializer_list<std::int64_t> shape, DType dtype, double std,
                     double mean) {
  Tensor tensor = Tensor::empty(shape, dtype);
  const RandomValues values("text", name);
  for (std::int64_t n = 0; n < tensor.view().size(); ++n)
    internal::store_double(tensor, n, mean + std * values.normal(n));
  return tensor;
}

Tensor embed_text(std::string_view text, std::int64_t d_model, DType dtype) {
  const Tensor table = seeded_normal("embedding", {256, d_model}, DType::f64, 0.02);
  const double* rows = table.view().at<double>(0);
  const auto n = static_cast<std::int64_t>(text.size());
  Tensor x = Tensor::empty({1, n, d_model}, dtype);
  std::vector<double> sum(static_cast<std::size_t>(d_model));
  for (std::int64_t i = 0; i < n; ++i) {
    sum.assign(sum.size(), 0);
    double weight = 1;
    for (std::int64_t s = 0; s <= std::min<std::int64_t>(i, 3); ++s, weight /= 2) {
      const auto byte = static_cast<unsigned char>(text[static_cast<std::size_t>(i - s)]);
      for (std::int64_t m = 0; m < d_model; ++m) sum[static_cast<std::size_t>(m)] += weight * rows[byte * d_model + m];
    }
    for (std::int64_t m = 0; m < d_model; ++m)
      internal::store_double(x, i * d_model + m, sum[static_cast<std::size_t>(m)]);
  }
  return x;
}

Tensor project(std::string_view weight_name, const Tensor& x, std::int64_t heads, std::int64_t d) {
  const TensorView& in = x.view();
  const std::int64_t n = in.shape[1], d_model = in.shape[2], width = heads * d;
  const DType accumulator = in.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Tensor weight =
      seeded_normal(weight_name, {d_model, width}, accumulator, 1 / std::sqrt(static_cast<double>(d_model)));
  Tensor y = Tensor::empty({n, width}, in.dtype);
  const auto multiply = [&]<class Real>(Real) {
    std::vector<Real> row(static_cast<std::size_t>(width));
    for (std::int64_t i = 0; i < n; ++i) {
      row.assign(row.size(), 0);
      for (std::int64_t m = 0; m < d_model; ++m) {
        const auto scalar = static_cast<Real>(internal::load_double(in, i * in.strides[1] + m * in.strides[2]));
        const Real* w = weight.view().at<Real>(m * width);
        for (std::int64_t c = 0; c < width; ++c) row[static_cast<std::size_t>(c)] += scalar * w[c];
      }
      for (std::int64_t c = 0; c < width; ++c)
        internal::store_double(y, i * width + c, static_cast<double>(row[static_cast<std::size_t>(c)]));
    }
  };
  if (accumulator == DType::f64)
    multiply(double{});
  else
    multiply(float{});

  TensorView view = y.view();
  view.rank = 4;
  view.shape = {1, heads, n, d};
  view.strides = {n * width, d, width, 1};
  return Tensor(y.storage(), view);
}

}  // namespace dsalt::verification
