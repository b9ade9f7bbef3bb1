// Two selections are equivalent when they differ only in candidates whose double scores lie within tolerance of the
// K-th (docs/semantics.md, "Selectors"). A list itself must be ascending, without repeats, made of candidates, of
// min(K, candidates) entries, then -1; of two candidates with the same energies the lower index goes first.
//
// Scores, log-weights and gradients are then judged at the lists that were chosen: the definition is evaluated there.
#include "compare_selection.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "condition/selection.hpp"
#include "dsalt/registry.hpp"
#include "internal/admitted.hpp"

namespace dsalt::verification {
namespace {

/// What is wrong with one list; empty when nothing is.
class ListJudge {
 public:
  ListJudge(const ScoredList& list, const std::vector<std::int64_t>& slots, const Tolerance& tolerance)
      : list_(list),
        slots_(slots),
        tolerance_(tolerance),
        best_(list.highest(static_cast<std::int64_t>(slots.size()))) {}

  std::string fault() {
    if (std::string text = malformed(); !text.empty()) return text;
    if (std::string text = tie_to_the_higher_index(); !text.empty()) return text;
    return beyond_rounding();
  }
  double worst_ratio() const { return worst_ratio_; }

 private:
  std::string malformed() {
    std::ostringstream text;
    bool ended = false;
    for (std::size_t n = 0; n < slots_.size(); ++n) {
      if (slots_[n] == -1) {
        ended = true;
        continue;
      }
      if (ended) return "an index follows -1";
      if (n > 0 && slots_[n] <= slots_[n - 1]) {
        text << "index " << slots_[n] << " follows " << slots_[n - 1] << ", the list must ascend without repeats";
        return text.str();
      }
      const std::int64_t found = list_.find(slots_[n]);
      if (found < 0) {
        text << "index " << slots_[n] << " is no candidate of this list";
        return text.str();
      }
      chosen_.push_back(static_cast<std::size_t>(found));
    }
    if (chosen_.size() == best_.size()) return {};
    text << chosen_.size() << " indices, need " << best_.size();
    return text.str();
  }

  std::string tie_to_the_higher_index() {
    std::vector<bool> taken(list_.candidates.size());
    for (const std::size_t c : chosen_) taken[c] = true;
    for (const std::size_t c : best_) {
      if (taken[c]) continue;  // c was passed over: nobody of equal energies and higher index may have been taken
      for (const std::size_t other : chosen_)
        if (other > c && list_.nx[other] == list_.nx[c] && list_.nv[other] == list_.nv[c]) {
          std::ostringstream text;
          text << "index " << list_.candidates[other] << " is taken before " << list_.candidates[c]
               << ", which has the same energies";
          return text.str();
        }
    }
    return {};
  }

  std::string beyond_rounding() {
    if (best_.empty()) return {};
    const double kth = list_.score[best_.back()], kth_unit = unit(best_.back());
    std::vector<bool> taken(list_.candidates.size()), wanted(list_.candidates.size());
    for (const std::size_t c : chosen_) taken[c] = true;
    for (const std::size_t c : best_) wanted[c] = true;
    std::string text;
    for (std::size_t c = 0; c < taken.size(); ++c) {
      if (taken[c] == wanted[c]) continue;
      const double gap = std::fabs(list_.score[c] - kth);
      const double units = unit(c) + kth_unit;
      const double ratio = gap == 0 ? 0 : gap / units;
      worst_ratio_ = std::max(worst_ratio_, ratio);
      if (ratio <= tolerance_.max_factor || !text.empty()) continue;
      std::ostringstream words;
      words << "index " << list_.candidates[c] << (taken[c] ? " is taken" : " is missing") << ", its score "
            << list_.score[c] << " is " << ratio << " units from the last selected score " << kth;
      text = words.str();
    }
    return text;
  }

  double unit(std::size_t c) const {
    return list_.error[c] + tolerance_.u_out * std::fabs(list_.score[c]) + tolerance_.tiny;
  }

  const ScoredList& list_;
  const std::vector<std::int64_t>& slots_;
  Tolerance tolerance_;
  std::vector<std::size_t> best_, chosen_;
  double worst_ratio_ = 0;
};

Comparison compare_lists(const Selection& selection, const TensorView& lists, const TensorView& expected_shape,
                         const Tolerance& tolerance, const Tensors& at_lists, double tau) {
  Comparison result;
  result.max_factor = tolerance.max_factor;
  result.rms_factor = tolerance.rms_factor;
  if (lists.dtype != DType::i32 || lists.rank != 4 ||
      !std::equal(lists.shape.begin(), lists.shape.begin() + 4, expected_shape.shape.begin())) {
    result.message = "got " + to_string(lists) + ", the reference has " + to_string(expected_shape);
    return result;
  }
  result.count = lists.size();
  result.passed = true;
  const Array landmarks = dense(lists);
  const std::int64_t k = lists.shape[3];
  double *score = values(at_lists.at("score")), *lambda = values(at_lists.at("landmark_log_weight"));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(k));
  ScoredList list;
  std::int64_t faults = 0;
  for (std::int64_t b = 0, element = 0; b < selection.sequences(); ++b)
    for (std::int64_t h = 0; h < selection.heads(); ++h)
      for (std::int64_t t = 0; t < selection.lists(); ++t) {
        selection.score(b, h, t, list);
        for (std::int64_t slot = 0; slot < k; ++slot, ++element) {
          slots[static_cast<std::size_t>(slot)] = static_cast<std::int64_t>(landmarks[element]);
          const std::int64_t found = list.find(slots[static_cast<std::size_t>(slot)]);
          if (found < 0) continue;
          score[element] = list.score[static_cast<std::size_t>(found)];
          lambda[element] = internal::log_sigmoid(score[element] / tau);
        }
        ListJudge judge(list, slots, tolerance);
        const std::string fault = judge.fault();
        result.max_ratio = std::max(result.max_ratio, judge.worst_ratio());
        if (fault.empty() || faults++ > 0) continue;
        result.worst_index = {b, h, t};
        result.message = fault;
      }
  if (faults > 0) {
    result.passed = false;
    result.message =
        std::to_string(faults) + (faults == 1 ? " list is wrong: " : " lists are wrong, the first: ") + result.message;
  }
  return result;
}

/// The definition's gradients at the given lists, with float64 inputs.
Tensors gradients_at(Backend& reference, const CallRecorder& call, const TensorView& lists,
                     const Yardstick& yardstick) {
  Tensors gradients;
  for (const char* name : {"dalpha_raw", "dnx", "dnv"})
    if (const auto found = yardstick.reference.find(name); found != yardstick.reference.end())
      gradients[name] = Tensor::zeros(
          {found->second.view().shape.data(), static_cast<std::size_t>(found->second.view().rank)}, DType::f64);
  const auto view = [&](const char* name) {
    return gradients.contains(name) ? gradients.at(name).view() : TensorView{};
  };
  if (!gradients.empty())
    reference.select_landmarks_backward(call.selection_problem, call.selection_inputs,
                                        {lists, call.selection_saved.dlandmark_log_weight},
                                        {view("dnx"), view("dnv"), view("dalpha_raw")});
  return gradients;
}

}  // namespace

Comparisons compare_selection(const Case& c, const Tensors& actual, const Yardstick& yardstick) {
  const auto reference = make_backend("reference");
  CallRecorder call(*reference);
  const Case exact = to_double(c);
  const Tensors recorded = evaluate(call, exact);
  const Units u = Units::of(main_dtype(c));
  const Selection selection(call, u);

  Comparisons comparisons;
  const TensorView lists = actual.at("landmarks"), expected = yardstick.reference.at("landmarks");
  Tensors at_lists = {{"score", zeros_like(dense(yardstick.reference.at("score")))}};
  at_lists["landmark_log_weight"] = zeros_like(dense(yardstick.reference.at("score")));
  Comparison landmarks =
      compare_lists(selection, lists, expected, tolerance_for(c.op, "score", actual.at("score").view().dtype), at_lists,
                    selection.problem().tau);
  const bool well_shaped = landmarks.count == expected.size();
  if (expected.size() > 0 || !landmarks.passed) comparisons.emplace_back("landmarks", std::move(landmarks));
  if (!well_shaped) return comparisons;

  for (auto& [name, tensor] : gradients_at(*reference, call, lists, yardstick)) at_lists[name] = tensor;
  const Tensors condition = select_landmarks_condition(call, lists, u);
  for (const auto& [name, tensor] : at_lists) {
    const TensorView output = actual.at(name);
    if (output.size() == 0 && tensor.view().size() == 0) continue;
    comparisons.emplace_back(name,
                             compare(output, tensor, condition.at(name), tolerance_for(c.op, name, output.dtype)));
  }
  return comparisons;
}

}  // namespace dsalt::verification
