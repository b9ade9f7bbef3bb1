// The best k candidates of a landmark list without looking at most of them.
//
// A score is a non-decreasing function of both energies, in exact arithmetic and in the kernel's. So the largest
// energies of a block of tokens bound its scores, and a block whose bound does not pass the worst of k scores already
// found is skipped. Lists of a sequence are prefixes of one another: the k that won the list before have some scores in
// this one, and the lowest of them is such a bound from the start. The result is the k highest scores, ties to the
// lower index, however it was found. O(n log k) for a list at worst, about n / 16 comparisons in practice.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "list_statistics.hpp"
#include "row_kernels.hpp"

namespace dsalt::internal {

/// The energies of one kv head of a sequence as unit-stride float32, and the largest of each block that are numbers
/// (-infinity where there is none).
class ScoredEnergies {
 public:
  ScoredEnergies() = default;
  ScoredEnergies(const RowKernels& kernels, const SelectionSequence& sequence, std::int64_t g)
      : x_(unit_stride(sequence.nx, 0, sequence.nx.strides[0], sequence.n, x_copy_)),
        v_(unit_stride(sequence.nv, g * sequence.nv.strides[0], sequence.nv.strides[1], sequence.n, v_copy_)),
        x_bounds_(bounds(kernels, x_, sequence.n)),
        v_bounds_(bounds(kernels, v_, sequence.n)) {}
  ScoredEnergies(ScoredEnergies&&) = default;
  ScoredEnergies& operator=(ScoredEnergies&&) = default;

  double score(const RowKernels& kernels, const ScoreRule& rule, std::int64_t j) const {
    double value = 0;
    kernels.scores(rule, v_ + j, x_ + j, &value, 1);
    return value;
  }
  std::int64_t first_above(const RowKernels& kernels, const ScoreRule& rule, double threshold, std::int64_t begin,
                           std::int64_t end) const {
    return kernels.first_above(rule, v_, x_, v_bounds_.data(), x_bounds_.data(), threshold, begin, end);
  }

 private:
  static const float* unit_stride(const TensorView& view, std::int64_t offset, std::int64_t stride, std::int64_t n,
                                  std::vector<float>& copy) {
    if (stride != 1) copy.resize(n);
    return float_row(view, offset, stride, n, copy.data());
  }
  static std::vector<float> bounds(const RowKernels& kernels, const float* values, std::int64_t n) {
    std::vector<float> result((n + energy_block - 1) / energy_block);
    kernels.block_bounds(values, n, result.data());
    return result;
  }

  std::vector<float> x_copy_, v_copy_;
  const float* x_ = nullptr;
  const float* v_ = nullptr;
  std::vector<float> x_bounds_, v_bounds_;
};

struct Candidate {
  double score;
  std::int64_t j;
};

/// Finds the lists of one (sequence, head) one after the other.
class ListSelector {
 public:
  ListSelector(const RowKernels& kernels, std::int64_t k) : kernels_(kernels), k_(k) {}

  /// The next list is not a longer one of the same sequence and head.
  void restart() { best_.clear(); }

  /// The best k candidates, ascending by index.
  const std::vector<Candidate>& select(const ScoredEnergies& energies, const ListStatistics& list, double alpha) {
    const ScoreRule rule{.per_v = alpha * list.v.inverse(),
                         .mean_v = list.v.mean,
                         .per_x = (1 - alpha) * list.x.inverse(),
                         .mean_x = list.x.mean};
    const auto capacity = static_cast<std::size_t>(std::min(k_, list.count));
    // A score that is not above the threshold has no place: below the last list's winners, and not above the worst of
    // a full heap, which has the lower index.
    double threshold = std::nextafter(lowest_of_last(energies, rule, capacity), -infinity);
    best_.clear();
    for (std::int64_t j = 0; capacity > 0; ++j) {
      j = energies.first_above(kernels_, rule, threshold, j, list.end);
      if (j == list.end) break;
      const double score = energies.score(kernels_, rule, j);
      if (std::isnan(score)) continue;  // no candidate, or no rank because of infinite energies
      if (best_.size() < capacity) {
        best_.push_back({score, j});
        if (best_.size() == capacity) std::make_heap(best_.begin(), best_.end(), better);
      } else {
        std::pop_heap(best_.begin(), best_.end(), better);
        best_.back() = {score, j};
        std::push_heap(best_.begin(), best_.end(), better);
      }
      if (best_.size() == capacity) threshold = best_.front().score;
    }
    std::sort(best_.begin(), best_.end(), [](const Candidate& a, const Candidate& b) { return a.j < b.j; });
    return best_;
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();

  /// Heap order: the worst candidate on top.
  static bool better(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.j < b.j;
  }

  /// The lowest score in this list of the last one's winners; -infinity when they are too few or a score is NaN.
  double lowest_of_last(const ScoredEnergies& energies, const ScoreRule& rule, std::size_t capacity) const {
    if (best_.size() < capacity) return -infinity;
    double lowest = infinity;
    for (const Candidate& candidate : best_) {
      const double score = energies.score(kernels_, rule, candidate.j);
      if (std::isnan(score)) return -infinity;
      lowest = std::min(lowest, score);
    }
    return lowest;
  }

  const RowKernels& kernels_;
  std::int64_t k_;
  std::vector<Candidate> best_;
};

}  // namespace dsalt::internal
