#include "definition.hpp"

#include <algorithm>
#include <cmath>

namespace dsalt::faults {
namespace {

struct Key {
  std::int64_t j;
  double bias;
};

/// A(i), one key at a time: is j in the window, is j listed, what bias does it get?
std::vector<Key> admitted(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t nq,
                          std::int64_t nk, const std::vector<double>& window) {
  const AttentionProblem& p = call.problem;
  std::vector<Key> keys;
  for (std::int64_t j = 0; j < nk; ++j) {
    const std::int64_t d = i + (nk - nq) - j;
    const std::int64_t e = p.bidirectional ? std::abs(d) : d;
    if (p.mask == Mask::full || (p.mask == Mask::causal && d >= 0)) keys.push_back({j, 0});
    if (p.mask != Mask::sparse) continue;
    double w = -1;
    if (call.window.present()) {
      const std::int64_t hw = call.window.view().shape[1];
      w = window[static_cast<std::size_t>((b * hw + (hw == 1 ? 0 : h)) * nq + i)];
    }
    if (e >= 0 && static_cast<double>(e) <= w) {
      double bias = 0;
      if (p.soft_edge && static_cast<double>(e) > w - p.soft_edge->edge)
        bias = -std::log(1 + std::exp(-(w - static_cast<double>(e)) / p.soft_edge->tau));
      keys.push_back({j, bias});
      continue;
    }
    if (!call.landmarks.present() || (d < 0 && !p.bidirectional)) continue;
    const TensorView& lists = call.landmarks;
    const std::int64_t hl = lists.shape[1], count = lists.shape[2], k = lists.shape[3];
    const std::int64_t t = p.landmark_chunk ? (i + p.landmark_offset) / *p.landmark_chunk : 0;
    const std::int64_t first = ((b * hl + (hl == 1 ? 0 : h)) * count + t) * k;
    const std::vector<std::int32_t> all = integers(lists);
    const auto begin = all.begin() + first, end = begin + k, slot = std::find(begin, end, j);
    if (slot == end) continue;
    const double weight = call.landmark_log_weight.present()
                              ? values(call.landmark_log_weight)[static_cast<std::size_t>(slot - all.begin())]
                              : 0;
    keys.push_back({j, weight});
  }
  return keys;
}

}  // namespace

Definition by_definition(const Call& call) {
  const TensorView &q = call.q, &k = call.k, &v = call.v;
  const std::int64_t batch = q.shape[0], hq = q.shape[1], nq = q.shape[2], dim = q.shape[3];
  const std::int64_t hkv = k.shape[1], nk = k.shape[2], dv = v.shape[3];
  const double scale = call.problem.scale ? *call.problem.scale : 1 / std::sqrt(static_cast<double>(dim));
  const std::vector<double> qs = values(q), ks = values(k), vs = values(v);
  const std::vector<double> window = call.window.present() ? values(call.window) : std::vector<double>{};
  Definition result;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < hq; ++h) {
      const std::int64_t g = h / (hq / hkv);
      for (std::int64_t i = 0; i < nq; ++i) {
        const std::vector<Key> keys = admitted(call, b, h, i, nq, nk, window);
        std::vector<double> scores;
        double highest = -infinity;
        for (const Key& key : keys) {
          double dot = 0, absolute = 0;
          for (std::int64_t t = 0; t < dim; ++t) {
            const double term = qs[static_cast<std::size_t>(((b * hq + h) * nq + i) * dim + t)] *
                                ks[static_cast<std::size_t>(((b * hkv + g) * nk + key.j) * dim + t)];
            dot += term;
            absolute += std::fabs(term);
          }
          scores.push_back(scale * dot + key.bias);
          highest = std::max(highest, scores.back());
          result.largest_score = std::max(result.largest_score, std::fabs(scale) * absolute);
        }
        double sum = 0;
        for (const double s : scores) sum += std::exp(s - highest);
        const double lse = keys.empty() ? -infinity : highest + std::log(sum);
        result.lse.push_back(lse);
        for (std::int64_t t = 0; t < dv; ++t) {
          double out = 0, absolute = 0;
          for (std::size_t n = 0; n < keys.size(); ++n) {
            const double term =
                std::exp(scores[n] - lse) * vs[static_cast<std::size_t>(((b * hkv + g) * nk + keys[n].j) * dv + t)];
            out += term;
            absolute += std::fabs(term);
          }
          result.out.push_back(out);
          result.absolute.push_back(absolute);
        }
      }
    }
  }
  return result;
}

double objective(const Call& call, const std::vector<double>& dout, const std::vector<double>& dlse) {
  const Definition d = by_definition(call);
  double sum = 0;
  for (std::size_t n = 0; n < d.out.size(); ++n) sum += dout[n] * d.out[n];
  for (std::size_t n = 0; n < dlse.size(); ++n)
    if (std::isfinite(d.lse[n])) sum += dlse[n] * d.lse[n];
  return sum;
}

std::vector<double> finite_differences(const Call& call, const Tensor& x, const std::vector<double>& dout,
                                       const std::vector<double>& dlse, double step) {
  std::vector<double> gradient;
  for (std::int64_t n = 0; n < x.view().size(); ++n) {
    double& element = *x.view().at<double>(n);
    const double original = element;
    element = original + step;
    const double above = objective(call, dout, dlse);
    element = original - step;
    const double below = objective(call, dout, dlse);
    element = original;
    gradient.push_back((above - below) / (2 * step));
  }
  return gradient;
}

}  // namespace dsalt::faults
