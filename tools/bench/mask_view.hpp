// One sequence and query head of an attention call: each row's key range, and its landmark list sorted, without
// repeats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "internal/admitted.hpp"

namespace dsalt::benchmark {

class MaskView {
 public:
  MaskView(const AttentionProblem& problem, const AttentionInputs& inputs, std::int64_t b, std::int64_t h)
      : problem_(problem), sequence_(internal::attention_sequence(inputs, b)), mask_{problem_, sequence_}, h_(h) {}
  MaskView(const MaskView&) = delete;
  MaskView& operator=(const MaskView&) = delete;

  std::int64_t rows() const { return sequence_.nq; }
  std::int64_t keys() const { return sequence_.nk; }
  std::int64_t position(std::int64_t i) const { return mask_.position(i); }
  std::int64_t list_of(std::int64_t i) const { return mask_.list_of(i); }
  bool has_lists() const { return sequence_.landmarks.present(); }

  /// The contiguous part of A(i): all keys, the causal prefix or the window.
  internal::KeyRange range(std::int64_t i) const {
    internal::KeyRange range =
        internal::dense_range(problem_.mask, mask_.window(h_, i), position(i), keys(), problem_.bidirectional);
    if (range.begin >= range.end) range = {0, 0};
    return range;
  }

  /// Valid indices of list t, ascending, each once.
  void read_list(std::int64_t t, std::vector<std::int64_t>& list) const {
    list.clear();
    const TensorView& lists = sequence_.landmarks;
    const std::int64_t hl = lists.shape[0] == 1 ? 0 : h_;
    for (std::int64_t slot = 0; slot < lists.shape[2]; ++slot) {
      const std::int64_t l =
          *lists.at<std::int32_t>(hl * lists.strides[0] + t * lists.strides[1] + slot * lists.strides[2]);
      if (l >= 0 && l < keys()) list.push_back(l);
    }
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }

 private:
  const AttentionProblem& problem_;
  internal::AttentionSequence sequence_;
  internal::RowMask mask_;
  std::int64_t h_;
};

/// Entries of an ascending list that are below `bound`.
inline std::int64_t count_below(const std::vector<std::int64_t>& list, std::int64_t bound) {
  return std::lower_bound(list.begin(), list.end(), bound) - list.begin();
}

}  // namespace dsalt::benchmark
