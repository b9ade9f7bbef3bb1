// One row of attention, as both passes need it:
//
//   s_ij = scale <q_i, k_j> + beta_ij,  j in A(i)        m = max_j s_ij,  l = sum_j exp(s_ij - m)
//   P_ij = exp(s_ij - m) / l            lse_i = m + log l            o_i = sum_j r_ij exp(s_ij - m) v_j / l
//
// with r_ij the dropout factor (1 without dropout). Subtracting m first makes the weight of a lone key exactly 1, so
// that its o is v bit for bit, and keeps every exponential in [0,1] whatever the size of the logits.
//
// Only admitted keys are read, and only kept values: a NaN elsewhere cannot arrive as 0 * NaN.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "dense.hpp"
#include "internal/admitted.hpp"
#include "internal/dropout.hpp"

namespace dsalt::internal {

class AttentionRow {
 public:
  AttentionRow(const AttentionProblem& problem, const AttentionSequence& sequence, std::int64_t hq, double scale)
      : mask_{problem, sequence}, hq_(hq), scale_(scale) {}

  /// Makes this the row of query `i` of head `h`; `k` are the keys of its kv head.
  void compute(std::int64_t h, std::int64_t i, const RowVector& q, const Matrix& k) {
    mask_.admitted(h, i, keys_);
    const std::size_t count = keys_.size();
    weight_.resize(count);
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t n = 0; n < count; ++n) {
      weight_[n] = scale_ * q.dot(k.row(keys_[n].j)) + keys_[n].bias;
      if (weight_[n] > largest) largest = weight_[n];
    }
    total_ = 0;
    for (double& weight : weight_) {
      weight = std::exp(weight - largest);
      total_ += weight;
    }
    lse_ = largest + std::log(total_);  // -inf for an empty row
    keep_.assign(count, 1);
    if (mask_.problem.dropout)
      for (std::size_t n = 0; n < count; ++n)
        keep_[n] = dropout_factor(*mask_.problem.dropout, mask_.sequence.b * hq_ + h, i, keys_[n].j);
  }

  bool empty() const { return keys_.empty(); }
  std::size_t size() const { return keys_.size(); }
  const AdmittedKey& key(std::size_t n) const { return keys_[n]; }
  double probability(std::size_t n) const { return weight_[n] / total_; }  // P_ij
  double keep(std::size_t n) const { return keep_[n]; }                    // r_ij
  double lse() const { return lse_; }

  /// o_i; `v` are the values of the row's kv head.
  void output(const Matrix& v, RowVector& o) const {
    o.setConstant(v.cols(), -0.0);  // the neutral element of addition: 0 would lose the sign of a lone v = -0
    bool any = false;
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      if (keep_[n] == 0) continue;
      o += (keep_[n] * weight_[n]) * v.row(keys_[n].j);
      any = true;
    }
    if (any)
      o /= total_;
    else
      o.setZero();
  }

 private:
  RowMask mask_;
  std::int64_t hq_;
  double scale_;
  std::vector<AdmittedKey> keys_;  // A(i)
  std::vector<double> weight_;     // exp(s_ij - m)
  std::vector<double> keep_;       // r_ij
  double total_ = 0, lse_ = 0;
};

/// The keys or values of kv head g, [nk,D] or [nk,Dv]: `keys` is the sequence's k or v.
inline Matrix key_matrix(const AttentionSequence& sequence, const TensorView& keys, std::int64_t g) {
  if (!sequence.page_table.present()) return load_matrix(keys.select(0, g));
  Matrix matrix(sequence.nk, keys.shape[3]);
  RowVector row;
  for (std::int64_t j = 0; j < sequence.nk; ++j) {
    load_vector(sequence.key_row(keys, g, j), row);
    matrix.row(j) = row;
  }
  return matrix;
}

/// 1/sqrt(D) when the problem gives none.
inline double attention_scale(const AttentionProblem& problem, const AttentionSizes& sizes) {
  return problem.scale ? *problem.scale : 1 / std::sqrt(static_cast<double>(sizes.d));
}

}  // namespace dsalt::internal
