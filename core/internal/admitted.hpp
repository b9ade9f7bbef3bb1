// The admitted set A(i) of one query and the log-bias of each of its keys (docs/semantics.md, "Attention").
//
// The window is a contiguous key range; landmarks are the listed keys outside it, each once, by its lowest slot.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "internal/sequence.hpp"

namespace dsalt::internal {

struct KeyRange {
  std::int64_t begin = 0, end = 0;  // [begin, end); empty when begin >= end
  bool contains(std::int64_t j) const { return j >= begin && j < end; }
};

/// W(i) for a query at position p: 0 <= e <= w. Distances are whole, so w counts as floor(w).
inline KeyRange window_range(double w, std::int64_t p, std::int64_t nk, bool bidirectional) {
  if (!(w >= 0)) return {};  // negative or NaN
  const auto whole = static_cast<std::int64_t>(std::min(w, 4.0e18));
  const std::int64_t begin = std::max<std::int64_t>(0, p - whole);
  const std::int64_t last = bidirectional ? (whole >= nk - p ? nk - 1 : p + whole) : p;
  return {begin, std::min(nk, last + 1)};
}

/// The contiguous part of A(i): all keys, the causal prefix, or the window.
inline KeyRange dense_range(Mask mask, double w, std::int64_t p, std::int64_t nk, bool bidirectional) {
  switch (mask) {
    case Mask::full: return {0, nk};
    case Mask::causal: return {0, std::min(nk, p + 1)};
    case Mask::sparse: return window_range(w, p, nk, bidirectional);
  }
  return {};
}

/// log sigma(z), stable at both ends.
inline double log_sigmoid(double z) { return z >= 0 ? -std::log1p(std::exp(-z)) : z - std::log1p(std::exp(z)); }

/// sigma(z), stable at both ends.
inline double sigmoid(double z) { return z >= 0 ? 1 / (1 + std::exp(-z)) : std::exp(z) / (1 + std::exp(z)); }

/// Whether key distance e lies in the soft edge of a window of size w.
inline bool in_soft_edge(const SoftEdge& soft, double w, std::int64_t e) {
  return static_cast<double>(e) > w - soft.edge;
}

struct AdmittedKey {
  std::int64_t j;
  double bias;        // beta_ij
  std::int64_t slot;  // landmark slot that admitted it, or -1: window, full or causal
};

/// Everything about one sequence's mask, ready to be asked row by row.
struct RowMask {
  const AttentionProblem& problem;
  const AttentionSequence& sequence;

  std::int64_t position(std::int64_t i) const { return i + sequence.nk - sequence.nq; }
  std::int64_t list_of(std::int64_t i) const {
    return problem.landmark_chunk ? (i + problem.landmark_offset) / *problem.landmark_chunk : 0;
  }
  /// w(b,h,i); -1 (the empty window) when the call has none.
  double window(std::int64_t h, std::int64_t i) const {
    const TensorView& w = sequence.window;
    if (!w.present()) return -1;
    return load_double(w, (w.shape[0] == 1 ? 0 : h) * w.strides[0] + i * w.strides[1]);
  }
  std::int64_t distance(std::int64_t i, std::int64_t j) const {
    const std::int64_t d = position(i) - j;
    return problem.bidirectional ? std::abs(d) : d;
  }

  /// A(i) of query head h: the contiguous part ascending, then landmarks in slot order.
  void admitted(std::int64_t h, std::int64_t i, std::vector<AdmittedKey>& keys) const {
    keys.clear();
    const std::int64_t p = position(i);
    const double w = window(h, i);
    const KeyRange dense = dense_range(problem.mask, w, p, sequence.nk, problem.bidirectional);
    for (std::int64_t j = dense.begin; j < dense.end; ++j) {
      double bias = 0;
      if (problem.soft_edge) {
        const std::int64_t e = distance(i, j);
        if (in_soft_edge(*problem.soft_edge, w, e))
          bias = log_sigmoid((w - static_cast<double>(e)) / problem.soft_edge->tau);
      }
      keys.push_back({j, bias, -1});
    }
    const TensorView& lists = sequence.landmarks;
    if (!lists.present()) return;
    const std::size_t first_landmark = keys.size();
    const std::int64_t hl = lists.shape[0] == 1 ? 0 : h, t = list_of(i);
    for (std::int64_t slot = 0; slot < lists.shape[2]; ++slot) {
      const std::int64_t l =
          *lists.at<std::int32_t>(hl * lists.strides[0] + t * lists.strides[1] + slot * lists.strides[2]);
      if (l < 0 || l >= sequence.nk || dense.contains(l)) continue;
      if (l > p && !problem.bidirectional) continue;
      keys.push_back({l, 0, slot});
    }
    drop_repeats(keys, first_landmark);
    const TensorView& weight = sequence.landmark_log_weight;
    if (!weight.present()) return;
    for (std::size_t n = first_landmark; n < keys.size(); ++n)
      keys[n].bias =
          load_double(weight, hl * weight.strides[0] + t * weight.strides[1] + keys[n].slot * weight.strides[2]);
  }

 private:
  /// Keeps the lowest slot of each index, in slot order; O(K log K).
  static void drop_repeats(std::vector<AdmittedKey>& keys, std::size_t first) {
    const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
    const auto by_index = [](const AdmittedKey& a, const AdmittedKey& b) {
      return a.j != b.j ? a.j < b.j : a.slot < b.slot;
    };
    std::sort(begin, keys.end(), by_index);
    keys.erase(std::unique(begin, keys.end(), [](const AdmittedKey& a, const AdmittedKey& b) { return a.j == b.j; }),
               keys.end());
    std::sort(keys.begin() + static_cast<std::ptrdiff_t>(first), keys.end(),
              [](const AdmittedKey& a, const AdmittedKey& b) { return a.slot < b.slot; });
  }
};

}  // namespace dsalt::internal
