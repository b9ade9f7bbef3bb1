// z_rv = <h_r, w_v>, loss = mean over counted rows of lse_r - (1-s) z_label - s mean_v z_v   (s: label smoothing).
// With |z| = sum |h w| + g(d) |sum h w| (partial sums grow with the sum itself) and size_r = max_v |z_rv|:
//   loss     1/n sum_r u ((1 + size_r + g(V)) + |lse_r| + (1-s) |z_label| + s mean|z| + g(n) |terms_r|)
//   dz       |dloss|/n (p + (1-s) [v = label] + s/V), relative error r = u_in + u (2 + size_r + |lse_r| + g(V))
//   dhidden  sum_v |dz| |w| r       dweight  sum_r |dz| |h| (r + u g(n))
// dz may be rounded to the main dtype before the second matrix product: u_in. Where p or dz is below the smallest
// normal number (16-bit: the subnormal spacing) it rounds absolutely, not relatively: `floor`.
#include <algorithm>
#include <cmath>

#include "condition/condition.hpp"

namespace dsalt::verification {

Tensors cross_entropy_condition(const Case& c, const Tensors&, const Units& u) {
  const Array hidden = dense_input(c, "hidden"), weight = dense_input(c, "weight"), labels = dense_input(c, "labels");
  const double smoothing = number_or(c, "label_smoothing", 0);
  const std::int64_t ignored = integer_or(c, "ignore_index", -100);
  const std::int64_t rows = hidden.shape[0], d = hidden.shape[1], vocabulary = weight.shape[0];
  const bool backward = has_input(c, "dloss");
  Tensors condition{{"loss", Tensor::zeros({}, DType::f64)}};
  double *dhidden = nullptr, *dweight = nullptr;
  if (backward) {
    dhidden = values(condition["dhidden"] = zeros_like(hidden));
    dweight = values(condition["dweight"] = zeros_like(weight));
  }
  const std::int64_t counted = std::count_if(labels.data.begin(), labels.data.end(),
                                             [&](double label) { return label != static_cast<double>(ignored); });
  if (counted == 0) return condition;
  const auto n = static_cast<double>(counted), v_count = static_cast<double>(vocabulary);
  const double upstream = backward ? std::fabs(dense_input(c, "dloss")[0]) / n : 0;
  const double floor = (u.in > u.acc ? u.in_floor : 0) + u.acc_floor * (1 + upstream);

  std::vector<double> z(static_cast<std::size_t>(vocabulary)), z_terms(z);
  double loss = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (labels[r] == static_cast<double>(ignored)) continue;
    const auto label = static_cast<std::size_t>(labels[r]);
    const double* h = hidden.data.data() + r * d;
    double size = 0, largest = -INFINITY, mean_terms = 0;
    for (std::size_t v = 0; v < z.size(); ++v) {
      const double* w = weight.data.data() + static_cast<std::int64_t>(v) * d;
      z[v] = z_terms[v] = 0;
      for (std::int64_t t = 0; t < d; ++t) {
        z[v] += h[t] * w[t];
        z_terms[v] += std::fabs(h[t] * w[t]);
      }
      z_terms[v] += growth(d) * std::fabs(z[v]);
      size = std::max(size, z_terms[v]);
      largest = std::max(largest, z[v]);
      mean_terms += z_terms[v] / v_count;
    }
    double sum = 0;
    for (const double value : z) sum += std::exp(value - largest);
    const double lse = largest + std::log(sum);
    const double row_terms = std::fabs(lse) + (1 - smoothing) * z_terms[label] + smoothing * mean_terms;
    loss += u.acc * (1 + size + growth(vocabulary) + row_terms * (1 + growth(counted)));
    if (!backward) continue;
    const double relative = u.in + u.acc * (2 + size + std::fabs(lse) + growth(vocabulary));
    for (std::size_t v = 0; v < z.size(); ++v) {
      const double p = std::exp(z[v] - lse);
      const double dz = upstream * (p + (v == label ? 1 - smoothing : 0) + smoothing / v_count);
      const double error = dz * relative + floor;
      const double* w = weight.data.data() + static_cast<std::int64_t>(v) * d;
      double* dw = dweight + static_cast<std::int64_t>(v) * d;
      for (std::int64_t t = 0; t < d; ++t) {
        dhidden[r * d + t] += error * std::fabs(w[t]);
        dw[t] += (error + dz * u.acc * growth(counted)) * std::fabs(h[t]);
      }
    }
  }
  values(condition["loss"])[0] = loss / n;
  return condition;
}

}  // namespace dsalt::verification
