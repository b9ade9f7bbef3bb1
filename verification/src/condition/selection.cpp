// z = (n - mean)/std over m candidates, unbiased std in two passes; with kappa = mean|n|/std and u = u_acc:
//   mean   u mean|n| (1 + g(m))
//   z_j    u ((|n_j| + mean|n| (1 + g(m)))/std + |z_j| (3 + kappa + g(m)))     the cancellation in n - mean, then std
//   score  alpha dz_v + (1-alpha) dz_x + 3 u (alpha |z_v| + (1-alpha) |z_x|) + alpha (1-alpha) u (2 + |raw|)
//   |z_v|+|z_x|
#include "condition/selection.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "internal/admitted.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {

std::int64_t ScoredList::find(std::int64_t j) const {
  const auto found = std::lower_bound(candidates.begin(), candidates.end(), j);
  return found != candidates.end() && *found == j ? found - candidates.begin() : -1;
}

std::vector<std::size_t> ScoredList::highest(std::int64_t k) const {
  std::vector<std::size_t> order;
  for (std::size_t n = 0; n < score.size(); ++n)
    if (!std::isnan(score[n])) order.push_back(n);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
  if (static_cast<std::int64_t>(order.size()) > k) order.resize(static_cast<std::size_t>(k));
  return order;
}

Selection::Selection(const CallRecorder& call, const Units& u)
    : problem_(call.selection_problem),
      u_(u),
      nx_(dense(call.selection_inputs.nx)),
      nv_(dense(call.selection_inputs.nv)),
      alpha_raw_(dense(call.selection_inputs.alpha_raw)),
      packed_(call.selection_inputs.cu_seqlens.present()) {
  hkv_ = nv_.shape[1];
  const TensorView& starts = call.selection_inputs.cu_seqlens;
  const std::int64_t count = packed_ ? starts.shape[0] - 1 : nx_.shape[0];
  for (std::int64_t b = 0; b < count; ++b) {
    start_.push_back(packed_ ? internal::load_i32(starts, b) : 0);
    length_.push_back(packed_ ? internal::load_i32(starts, b + 1) - start_.back() : nx_.shape[1]);
  }
  const auto longest = std::max_element(length_.begin(), length_.end());
  lists_ = landmark_list_count(problem_, longest == length_.end() ? 0 : *longest);
}

std::int64_t Selection::nx_element(std::int64_t b, std::int64_t j) const {
  return packed_ ? start_[static_cast<std::size_t>(b)] + j : b * nx_.shape[1] + j;
}

std::int64_t Selection::nv_element(std::int64_t b, std::int64_t h, std::int64_t j) const {
  const std::int64_t g = h / (heads() / hkv_);
  return packed_ ? nx_element(b, j) * hkv_ + g : (b * hkv_ + g) * nv_.shape[2] + j;
}

void Selection::standardise(const std::vector<double>& energy, ZScores& scores) const {
  const auto m = static_cast<std::int64_t>(energy.size());
  const auto count = static_cast<double>(m);
  // In extended precision: rounded to double, sums over thousands of candidates lose more than a backend under test.
  long double mean = 0, squares = 0;
  double mean_terms = 0;
  for (const double n : energy) {
    mean += n;
    mean_terms += std::fabs(n) / count;
  }
  mean /= count;
  for (const double n : energy) squares += (n - mean) * (n - mean);
  scores.std = static_cast<double>(m > 1 ? std::sqrt(squares / (count - 1)) : 0);
  scores.constant = scores.std <= 1e-6;
  scores.z.assign(energy.size(), 0);
  scores.error.assign(energy.size(), 0);
  if (scores.constant) return;
  scores.relative = u_.acc * (3 + mean_terms / scores.std + growth(m));
  for (std::size_t n = 0; n < energy.size(); ++n) {
    scores.z[n] = static_cast<double>((energy[n] - mean) / scores.std);
    scores.error[n] = u_.acc * (std::fabs(energy[n]) + mean_terms * (1 + growth(m))) / scores.std +
                      std::fabs(scores.z[n]) * scores.relative;
  }
}

void Selection::score(std::int64_t b, std::int64_t h, std::int64_t t, ScoredList& list) const {
  const std::int64_t n = length_[static_cast<std::size_t>(b)];
  const std::int64_t limit = problem_.policy == SelectionPolicy::global
                                 ? n - problem_.recent
                                 : std::min(n, t * *problem_.chunk - problem_.recent);
  list.alpha_raw = alpha_raw_[h];
  list.alpha = internal::sigmoid(list.alpha_raw);
  list.candidates.clear();
  list.nx.clear();
  list.nv.clear();
  for (std::int64_t j = 0; j < limit; ++j) {
    const double x = nx_[nx_element(b, j)], v = nv_[nv_element(b, h, j)];
    if (std::isnan(x) || std::isnan(v)) continue;  // no candidate
    list.candidates.push_back(j);
    list.nx.push_back(x);
    list.nv.push_back(v);
  }
  standardise(list.nx, list.x);
  standardise(list.nv, list.v);
  const double alpha = list.alpha, rest = internal::sigmoid(-list.alpha_raw);
  list.score.resize(list.candidates.size());
  list.error.resize(list.candidates.size());
  for (std::size_t c = 0; c < list.score.size(); ++c) {
    const double zx = std::fabs(list.x.z[c]), zv = std::fabs(list.v.z[c]);
    list.score[c] = alpha * list.v.z[c] + rest * list.x.z[c];
    list.error[c] = alpha * list.v.error[c] + rest * list.x.error[c] + 3 * u_.acc * (alpha * zv + rest * zx) +
                    alpha * rest * u_.acc * (2 + std::fabs(list.alpha_raw)) * (zv + zx);
  }
}

}  // namespace dsalt::verification
