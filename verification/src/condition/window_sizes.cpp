// w = n_min + sigma(z) span, z = <x,a> + c, span = n_max - n_min. With |z| = sum |x a| + |c| and s = sigma(z):
//   window   u (n_min + span (2 s + s (1-s) (1 + |z| (1 + g(d)))))
//   dz       |dw| span s (1-s), relative error r = u (4 + |z| (1 + g(d)))
//   dx       sum_h |dz a| (r + u g(Hw))     dweight  sum |dz x| (r + u g(B N))     dbias  sum |dz| (r + u g(B N))
// A floored window has gradient exactly 0. Its value may be the neighbouring integer where w lies within rounding of a
// whole number: that second value is returned in `alternative`.
#include <algorithm>
#include <cmath>

#include "condition/condition.hpp"
#include "internal/admitted.hpp"

namespace dsalt::verification {
namespace {

/// One row of x for one head.
struct Row {
  double z = 0, size = 0;  // <x,a> + c and the sum of its absolute terms
  Row(const double* x, const double* a, double bias, std::int64_t d) : z(bias), size(std::fabs(bias)) {
    for (std::int64_t t = 0; t < d; ++t) {
      z += x[t] * a[t];
      size += std::fabs(x[t] * a[t]);
    }
  }
};

double other_integer(double window, double rounding, double floored, double n_min, double n_max) {
  const double nearest = std::nearbyint(window);
  if (!(std::fabs(window - nearest) <= rounding)) return floored;
  const double other = floored == nearest ? nearest - 1 : nearest;
  return other >= std::floor(n_min) && other <= std::floor(n_max) ? other : floored;
}

}  // namespace

Tensors window_sizes_condition(const Case& c, const Tensors& reference, const Units& u, Tensors& alternative) {
  const Array x = dense_input(c, "x"), weight = dense_input(c, "weight"), bias = dense_input(c, "bias");
  const Array window = dense(reference.at("window")), dwindow = dense_input(c, "dwindow");
  const double n_min = number_or(c, "n_min", 1), n_max = number_or(c, "n_max", 1), span = n_max - n_min;
  const bool floored = find_boolean(c, "floor"), backward = has_input(c, "dwindow");
  const std::int64_t d = x.last(), heads = weight.shape[0], rows = d == 0 ? 0 : x.rows();
  const std::int64_t tokens = x.shape.size() == 3 ? x.shape[1] : 0;  // 0: packed, heads are innermost

  Tensors condition{{"window", zeros_like(window)}};
  double* w = values(condition["window"]);
  double *dx = nullptr, *dweight = nullptr, *dbias = nullptr, *other = nullptr;
  if (backward) {
    dx = values(condition["dx"] = zeros_like(x));
    dweight = values(condition["dweight"] = zeros_like(weight));
    dbias = values(condition["dbias"] = zeros_like(bias));
  }
  if (floored) {
    alternative["window"] = zeros_like(window);
    other = values(alternative["window"]);
    std::copy(window.data.begin(), window.data.end(), other);
  }

  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t at = tokens == 0 ? n * heads + h : ((n / tokens) * heads + h) * tokens + n % tokens;
      const Row row(x.row(n), weight.row(h), bias[h], d);
      const double s = internal::sigmoid(row.z), slope = s * internal::sigmoid(-row.z);
      const double argument = row.size * (1 + growth(d));
      const double rounding = u.acc * (n_min + span * (2 * s + slope * (1 + argument)));
      if (floored) {
        const double value = n_min + s * span;
        other[at] = other_integer(value, 4 * (rounding + u.acc * value), window[at], n_min, n_max);
        continue;
      }
      w[at] = rounding;
      if (!backward) continue;
      const double dz = std::fabs(dwindow[at]) * span * slope;
      const double relative = u.acc * (4 + argument);
      for (std::int64_t t = 0; t < d; ++t) {
        dx[n * d + t] += dz * std::fabs(weight[h * d + t]) * (relative + u.acc * growth(heads));
        dweight[h * d + t] += dz * std::fabs(x[n * d + t]) * (relative + u.acc * growth(rows));
      }
      dbias[h] += dz * (relative + u.acc * growth(rows));
    }
  return condition;
}

}  // namespace dsalt::verification
