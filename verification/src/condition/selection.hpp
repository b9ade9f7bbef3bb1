// The candidates of one landmark list with their double scores and what rounding may move these by: what lists are
// judged by, and what the conditions of scores, weights and gradients are built from.
#pragma once

#include <cstdint>
#include <vector>

#include "condition/condition.hpp"

namespace dsalt::verification {

/// z-scores z = (n - mean)/std of one energy over a list's candidates, by candidate.
struct ZScores {
  bool constant = true;  // one candidate or std <= 1e-6: z = 0 exactly, no gradient
  double std = 0;
  double relative = 0;        // relative error of std
  std::vector<double> z;      // 0 when constant
  std::vector<double> error;  // of z
};

struct ScoredList {
  double alpha = 0, alpha_raw = 0;
  std::vector<std::int64_t> candidates;  // ascending
  std::vector<double> nx, nv;            // their energies
  ZScores x, v;
  std::vector<double> score, error;

  /// Position of token j in `candidates`, or -1.
  std::int64_t find(std::int64_t j) const;
  /// Positions of the k highest scores, best first, ties to the lower index; NaN scores (infinite energies) have no
  /// rank.
  std::vector<std::size_t> highest(std::int64_t k) const;
};

/// A recorded selection call, list by list.
class Selection {
 public:
  Selection(const CallRecorder& call, const Units& u);

  std::int64_t sequences() const { return static_cast<std::int64_t>(length_.size()); }
  std::int64_t heads() const { return alpha_raw_.size(); }
  std::int64_t lists() const { return lists_; }
  const SelectionProblem& problem() const { return problem_; }
  void score(std::int64_t b, std::int64_t h, std::int64_t t, ScoredList& list) const;

  /// Row-major element of nx and nv (padded [B,N], [B,Hkv,N]; packed [R], [R,Hkv]).
  std::int64_t nx_element(std::int64_t b, std::int64_t j) const;
  std::int64_t nv_element(std::int64_t b, std::int64_t h, std::int64_t j) const;
  const Array& nx() const { return nx_; }
  const Array& nv() const { return nv_; }
  const Array& alpha_raw() const { return alpha_raw_; }

 private:
  void standardise(const std::vector<double>& energy, ZScores& scores) const;

  SelectionProblem problem_;
  Units u_;
  Array nx_, nv_, alpha_raw_;
  std::vector<std::int64_t> start_, length_;  // per sequence; start is 0 when padded
  std::int64_t hkv_ = 1, lists_ = 0;
  bool packed_ = false;
};

}  // namespace dsalt::verification
