// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin: two terms each, and sin and cos themselves.
//   y  (|x1 cos| + |x2 sin|) u + (|x1| + |x2|) (u_table + 4 u_64 |angle|)
// u_table: the contract rounds sin and cos to float32 unless the tensor is float64, while the yardstick, computed in
// float64, does not round them. The last term is the angle, a double formed by a power, two products and a quotient.
// dx is the inverse rotation of dy: the same with sin negated.
#include <cmath>

#include "condition/condition.hpp"

namespace dsalt::verification {
namespace {

constexpr double u64 = 0x1p-53;

/// Position of the first token of sequence s.
std::int64_t first_position(const Case& c, const Array& positions, std::int64_t s) {
  return has_input(c, "positions") ? static_cast<std::int64_t>(positions[s]) : integer_or(c, "position", 0);
}

void rotate(const double* x, double* y, std::int64_t d, std::int64_t position, double base, double scale, double u,
            double u_table) {
  const std::int64_t half = d / 2;
  for (std::int64_t t = 0; t < half; ++t) {
    const double angle =
        static_cast<double>(position) * std::pow(base, -2 * static_cast<double>(t) / static_cast<double>(d)) / scale;
    const double a = std::fabs(x[t]), b = std::fabs(x[t + half]);
    const double cosine = std::fabs(std::cos(angle)), sine = std::fabs(std::sin(angle));
    const double table = (a + b) * (u_table + 4 * u64 * std::fabs(angle));
    y[t] = (a * cosine + b * sine) * u + table;
    y[t + half] = (b * cosine + a * sine) * u + table;
  }
}

Tensor rotation_condition(const Case& c, const Array& x, const Units& u) {
  const Tensor result = zeros_like(x);
  double* y = values(result);
  const Array positions = dense_input(c, "positions"), starts = dense_input(c, "cu_seqlens");
  const double base = number_or(c, "base", 10000), scale = number_or(c, "rope_scale", 1);
  const std::int64_t d = x.last();
  if (has_input(c, "cu_seqlens")) {
    const std::int64_t heads = x.shape[1];
    for (std::int64_t s = 0; s + 1 < starts.size(); ++s) {
      const auto begin = static_cast<std::int64_t>(starts[s]), end = static_cast<std::int64_t>(starts[s + 1]);
      for (std::int64_t row = begin; row < end; ++row)
        for (std::int64_t h = 0; h < heads; ++h)
          rotate(x.row(row * heads + h), y + (row * heads + h) * d, d, first_position(c, positions, s) + row - begin,
                 base, scale, u.acc, u.acc);
    }
    return result;
  }
  const std::int64_t batch = x.shape[0], heads = x.shape[1], tokens = x.shape[2];
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t n = 0; n < tokens; ++n) {
        const std::int64_t row = (b * heads + h) * tokens + n;
        rotate(x.row(row), y + row * d, d, first_position(c, positions, b) + n, base, scale, u.acc, u.acc);
      }
  return result;
}

}  // namespace

Tensors rope_condition(const Case& c, const Tensors&, const Units& u) {
  Tensors condition{{"y", rotation_condition(c, dense_input(c, "x"), u)}};
  if (has_input(c, "dy")) condition["dx"] = rotation_condition(c, dense_input(c, "dy"), u);
  return condition;
}

}  // namespace dsalt::verification
