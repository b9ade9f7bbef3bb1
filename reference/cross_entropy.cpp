// Linear layer and loss in one: docs/semantics.md, "Network pieces". With z_r = hidden_r weight^T, M counted rows,
//
//   lse_r = log sum_v exp(z_rv)       nll_r(v) = lse_r - z_rv
//   loss = 1/M sum_r [ (1 - eps) nll_r(label_r) + eps mean_v nll_r(v) ],  eps = label smoothing
//   dz_rv = dloss/M ( exp(z_rv - lse_r) - (1 - eps) [v = label_r] - eps/V )
//   dhidden_r = dz_r weight       dweight = sum_r dz_r^T hidden_r
//
// Rows whose label is ignore_index enter no term; when all are, loss and gradients are 0. One row of logits exists at a
// time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "dense.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

/// The counted rows of a call, one at a time.
class Rows {
 public:
  Rows(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs)
      : problem_(problem), inputs_(inputs), weight_(load_matrix(inputs.weight)) {
    for (std::int64_t r = 0; r < size(); ++r) counted_ += counts(r);
  }

  std::int64_t size() const { return inputs_.labels.shape[0]; }
  std::int64_t counted() const { return counted_; }
  bool counts(std::int64_t r) const { return load_i32(inputs_.labels, r) != problem_.ignore_index; }

  void compute(std::int64_t r) {
    load_vector(inputs_.hidden.select(0, r), hidden_);
    label_ = load_i32(inputs_.labels, r);
    logits_.noalias() = hidden_ * weight_.transpose();
    largest_ = -std::numeric_limits<double>::infinity();
    for (const double logit : logits_) largest_ = std::max(largest_, logit);
    double sum = 0;
    for (const double logit : logits_) sum += std::exp(logit - largest_);
    log_sum_ = std::log(sum);
  }

  /// log sum exp - z, with the largest logit taken out first.
  double nll(double logit) const { return log_sum_ + (largest_ - logit); }
  double loss() const {
    const double eps = problem_.label_smoothing;
    double loss = (1 - eps) * nll(logits_[label_]);
    if (eps > 0) {
      double mean = 0;
      for (const double logit : logits_) mean += nll(logit);
      loss += eps * mean / static_cast<double>(logits_.size());
    }
    return loss;
  }
  /// Gradient of loss() at the logits.
  RowVector dlogits() const {
    const double eps = problem_.label_smoothing;
    RowVector dz(logits_.size());
    for (std::int64_t v = 0; v < dz.size(); ++v)
      dz[v] = std::exp((logits_[v] - largest_) - log_sum_) - eps / static_cast<double>(dz.size());
    dz[label_] -= 1 - eps;
    return dz;
  }
  const RowVector& hidden() const { return hidden_; }
  const Matrix& weight() const { return weight_; }

 private:
  const CrossEntropyProblem& problem_;
  const CrossEntropyInputs& inputs_;
  Matrix weight_;  // [V,d]
  std::int64_t counted_ = 0;
  RowVector hidden_, logits_;  // of the current row
  std::int64_t label_ = 0;
  double largest_ = 0, log_sum_ = 0;
};

}  // namespace

void ReferenceBackend::cross_entropy_forward(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                                             const TensorView& loss) {
  Rows rows(problem, inputs);
  double sum = 0;
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    if (!rows.counts(r)) continue;
    rows.compute(r);
    sum += rows.loss();
  }
  store_double(loss, 0, rows.counted() == 0 ? 0 : sum / static_cast<double>(rows.counted()));
}

void ReferenceBackend::cross_entropy_backward(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                                              const TensorView& dloss, const CrossEntropyGradients& gradients) {
  Rows rows(problem, inputs);
  const double scale = load_double(dloss, 0) / static_cast<double>(std::max<std::int64_t>(1, rows.counted()));
  Matrix dweight;
  if (gradients.dweight.present()) dweight.setZero(rows.weight().rows(), rows.weight().cols());
  RowVector dhidden;
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    dhidden.setZero(inputs.hidden.shape[1]);
    if (rows.counts(r)) {
      rows.compute(r);
      const RowVector dz = scale * rows.dlogits();
      if (gradients.dhidden.present()) dhidden.noalias() = dz * rows.weight();
      if (gradients.dweight.present()) dweight.noalias() += dz.transpose() * rows.hidden();
    }
    if (gradients.dhidden.present()) store_vector(dhidden, gradients.dhidden.select(0, r));
  }
  if (gradients.dweight.present()) store_matrix(dweight, gradients.dweight);
}

}  // namespace dsalt::internal
