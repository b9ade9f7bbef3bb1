// Scores, log-weights and their gradients at given lists; E(s) is the score's error from selection.cpp, x = s/tau:
//   score    E(s)
//   lambda   (1 - sigma(x)) (E(s)/tau + 2 u |x|) + u (2 + |x|) |lambda|,   lambda = log sigma(x)
//   ds       = dlambda (1 - sigma(x))/tau, relative error r = u (4 + |x|) + E(s)/tau
//   dalpha   sum |ds| a (1-a) ((|z_v| + |z_x|) (r + u (4 + |raw|) + u g(slots)) + E(z_v) + E(z_x))
//   dn_j     (|g_j| + sum|g|/m + |z_j| sum|g z|/(m-1))/std (r' + 2 E(std) + u g(lists)) +
//            (E(z_j) sum|g z| + |z_j| sum|g| E(z))/(m-1)/std,   g = a ds for nv and (1-a) ds for nx
#include <algorithm>
#include <cmath>

#include "condition/selection.hpp"
#include "internal/admitted.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {
namespace {

/// |ds| of the used slots of one list, by position in the candidates.
struct UsedSlots {
  std::vector<std::size_t> candidate;
  std::vector<double> ds, relative;
  void clear() {
    candidate.clear();
    ds.clear();
    relative.clear();
  }
};

/// Adds one list's share to the condition of the gradient of one energy; `factor` is alpha or 1 - alpha.
template <class ElementOf>
void add_energy_gradient(const ScoredList& list, const ZScores& z, const UsedSlots& used, double factor, const Units& u,
                         double lists_growth, double* condition, const ElementOf& element_of) {
  if (z.constant || used.candidate.empty()) return;
  const auto m = static_cast<double>(list.candidates.size());
  double sum = 0, projection = 0, projection_error = 0, relative = 0;
  for (std::size_t n = 0; n < used.candidate.size(); ++n) {
    const double g = factor * used.ds[n];
    sum += g;
    projection += g * std::fabs(z.z[used.candidate[n]]);
    projection_error += g * z.error[used.candidate[n]];
    relative = std::max(relative, used.relative[n]);
  }
  relative += 2 * z.relative + u.acc * (4 + growth(static_cast<std::int64_t>(used.candidate.size())) + lists_growth);
  for (std::size_t c = 0; c < list.candidates.size(); ++c) {
    const double size = std::fabs(z.z[c]);
    const double terms = sum / m + size * projection / (m - 1);
    const double errors = (z.error[c] * projection + size * projection_error) / (m - 1);
    condition[element_of(list.candidates[c])] += (terms * relative + errors) / z.std;
  }
  for (std::size_t n = 0; n < used.candidate.size(); ++n)
    condition[element_of(list.candidates[used.candidate[n]])] += factor * used.ds[n] * relative / z.std;
}

}  // namespace

Tensors select_landmarks_condition(const CallRecorder& call, const TensorView& lists, const Units& u) {
  const Selection selection(call, u);
  const std::int64_t slots = lists.shape[3];
  const std::vector<std::int64_t> shape(lists.shape.begin(), lists.shape.begin() + 4);
  Tensors condition{{"score", Tensor::zeros(shape, DType::f64)},
                    {"landmark_log_weight", Tensor::zeros(shape, DType::f64)}};
  double *score = values(condition["score"]), *lambda = values(condition["landmark_log_weight"]);

  const TensorView& upstream = call.selection_saved.dlandmark_log_weight;
  const bool backward = upstream.present(), energies = backward && !selection.problem().detach_energies;
  double *dalpha = nullptr, *dnx = nullptr, *dnv = nullptr;
  if (backward) dalpha = values(condition["dalpha_raw"] = zeros_like(selection.alpha_raw()));
  if (energies) {
    dnx = values(condition["dnx"] = zeros_like(selection.nx()));
    dnv = values(condition["dnv"] = zeros_like(selection.nv()));
  }
  const Array dlambda = backward ? dense(upstream) : Array{};
  const Array landmarks = dense(lists);
  const double tau = selection.problem().tau;
  const double lists_growth = growth(selection.lists() * selection.heads());
  const double slots_growth = growth(selection.sequences() * selection.lists() * slots);

  ScoredList list;
  UsedSlots used;
  for (std::int64_t b = 0, element = 0; b < selection.sequences(); ++b)
    for (std::int64_t h = 0; h < selection.heads(); ++h)
      for (std::int64_t t = 0; t < selection.lists(); ++t) {
        selection.score(b, h, t, list);
        used.clear();
        for (std::int64_t slot = 0; slot < slots; ++slot, ++element) {
          const std::int64_t found = list.find(static_cast<std::int64_t>(landmarks[element]));
          if (found < 0) continue;  // unused: score, weight and gradient are exactly 0
          const auto c = static_cast<std::size_t>(found);
          const double x = list.score[c] / tau, complement = internal::sigmoid(-x), error = list.error[c] / tau;
          score[element] = list.error[c];
          lambda[element] = complement * (error + 2 * u.acc * std::fabs(x)) +
                            u.acc * (2 + std::fabs(x)) * std::fabs(internal::log_sigmoid(x));
          if (!backward) continue;
          const double ds = std::fabs(dlambda[element]) * complement / tau;
          const double relative = u.acc * (4 + std::fabs(x)) + error;
          used.candidate.push_back(c);
          used.ds.push_back(ds);
          used.relative.push_back(relative);
          const double slope = list.alpha * internal::sigmoid(-list.alpha_raw);
          const double own = relative + u.acc * (4 + std::fabs(list.alpha_raw) + slots_growth);
          dalpha[h] += ds * slope *
                       ((std::fabs(list.v.z[c]) + std::fabs(list.x.z[c])) * own + list.v.error[c] + list.x.error[c]);
        }
        if (!energies) continue;
        add_energy_gradient(list, list.v, used, list.alpha, u, lists_growth, dnv,
                            [&](std::int64_t j) { return selection.nv_element(b, h, j); });
        add_energy_gradient(list, list.x, used, internal::sigmoid(-list.alpha_raw), u, lists_growth, dnx,
                            [&](std::int64_t j) { return selection.nx_element(b, j); });
      }
  return condition;
}

}  // namespace dsalt::verification
