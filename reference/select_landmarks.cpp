// Landmark selection: docs/semantics.md, "Selectors".
//
//   s = alpha z(nv) + (1 - alpha) z(nx),  alpha = sigma(alpha_raw),  z(n) = (n - mean)/std over the list's candidates
//   selected: the K highest s, ties to the lower index, written ascending      lambda = log sigma(s / tau)
//
//   ds = dlambda (1 - sigma(s/tau)) / tau      dalpha_raw = alpha (1 - alpha) sum ds (z(nv) - z(nx))
//   dz(nv) = alpha ds,  dz(nx) = (1 - alpha) ds
//   dn_k = (dz_k - mean(dz) - z_k sum_j dz_j z_j / (M - 1)) / std      over the M candidates
//
// Statistics are taken per list, per sequence and per query head, in two passes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dense.hpp"
#include "internal/admitted.hpp"
#include "internal/sequence.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

/// The sequences of a padded or packed call: nx as [n], nv as [Hkv,n].
struct Sequences {
  const SelectionInputs& inputs;
  bool packed() const { return inputs.cu_seqlens.present(); }
  std::int64_t count() const { return packed() ? inputs.cu_seqlens.shape[0] - 1 : inputs.nx.shape[0]; }
  TensorView nx(const TensorView& view, std::int64_t b) const {
    if (!packed()) return view.select(0, b);
    const std::int64_t start = load_i32(inputs.cu_seqlens, b);
    return view.narrow(0, start, load_i32(inputs.cu_seqlens, b + 1) - start);
  }
  TensorView nv(const TensorView& view, std::int64_t b) const {
    return packed() ? nx(view, b).transpose(0, 1) : view.select(0, b);
  }
};

/// z-scores of one energy over the candidates of a list. Sums are taken in extended precision: over thousands of
/// candidates, one after another, those of doubles lose more than a backend's that adds in parallel.
struct ZScore {
  double std = 0;
  bool constant = true;   // one candidate or std <= 1e-6: z = 0 and no gradient
  std::vector<double> z;  // by candidate

  void compute(const RowVector& energy, const std::vector<std::int64_t>& candidates) {
    const auto count = static_cast<double>(candidates.size());
    long double mean = 0, squares = 0;
    const double first = candidates.empty() ? 0 : energy[candidates.front()];
    for (const std::int64_t j : candidates) mean += energy[j] - first;  // equal energies: a mean without rounding
    mean = first + mean / count;
    for (const std::int64_t j : candidates) squares += (energy[j] - mean) * (energy[j] - mean);
    std = static_cast<double>(candidates.size() > 1 ? std::sqrt(squares / (count - 1)) : 0);
    constant = std <= 1e-6;
    z.clear();
    for (const std::int64_t j : candidates) z.push_back(constant ? 0 : static_cast<double>((energy[j] - mean) / std));
  }

  /// Adds the gradient of <dz, z> to that of the energies.
  void add_gradient(const std::vector<double>& dz, const std::vector<std::int64_t>& candidates,
                    Eigen::Ref<RowVector> denergy) const {
    if (constant) return;
    const auto count = static_cast<double>(candidates.size());
    double sum = 0, projection = 0;
    for (std::size_t n = 0; n < z.size(); ++n) {
      sum += dz[n];
      projection += dz[n] * z[n];
    }
    for (std::size_t n = 0; n < z.size(); ++n)
      denergy[candidates[n]] += (dz[n] - sum / count - z[n] * (projection / (count - 1))) / std;
  }
};

/// The candidates of one list of one query head and their scores.
struct ScoredList {
  std::vector<std::int64_t> candidates;  // ascending
  ZScore x, v;
  std::vector<double> score;  // by candidate

  /// Candidates are j < limit whose two energies are numbers.
  void compute(const RowVector& nx, const RowVector& nv, std::int64_t limit, double alpha) {
    candidates.clear();
    for (std::int64_t j = 0; j < limit; ++j)
      if (!std::isnan(nx[j]) && !std::isnan(nv[j])) candidates.push_back(j);
    x.compute(nx, candidates);
    v.compute(nv, candidates);
    score.resize(candidates.size());
    for (std::size_t n = 0; n < score.size(); ++n) score[n] = alpha * v.z[n] + (1 - alpha) * x.z[n];
  }
};

/// One past the last candidate of list t in a sequence of n tokens.
std::int64_t candidate_limit(const SelectionProblem& problem, std::int64_t n, std::int64_t t) {
  const std::int64_t limit =
      problem.policy == SelectionPolicy::global ? n - problem.recent : std::min(n, t * *problem.chunk - problem.recent);
  return std::max<std::int64_t>(0, limit);
}

/// Positions in `list.candidates` of the k highest scores, ties to the lower index, ascending. A score that infinite
/// energies made NaN has no rank and is not selected.
std::vector<std::size_t> highest(const ScoredList& list, std::int64_t k) {
  std::vector<std::size_t> order;
  for (std::size_t n = 0; n < list.score.size(); ++n)
    if (!std::isnan(list.score[n])) order.push_back(n);
  const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(k));
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(kept);
  std::partial_sort(order.begin(), end, order.end(), [&](std::size_t a, std::size_t b) {
    return list.score[a] != list.score[b] ? list.score[a] > list.score[b] : a < b;
  });
  order.resize(kept);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

void ReferenceBackend::select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                                const SelectionOutputs& outputs) {
  const Sequences sequences{inputs};
  const std::int64_t hq = inputs.alpha_raw.shape[0], group = hq / inputs.nv.shape[1];
  const std::int64_t lists = outputs.landmarks.shape[2], slots = outputs.landmarks.shape[3];
  ScoredList list;
  RowVector score, lambda;

  for (std::int64_t b = 0; b < sequences.count(); ++b) {
    const RowVector nx = load_vector(sequences.nx(inputs.nx, b));
    const Matrix nv = load_matrix(sequences.nv(inputs.nv, b));
    for (std::int64_t h = 0; h < hq; ++h) {
      const double alpha = sigmoid(load_double(inputs.alpha_raw, h * inputs.alpha_raw.strides[0]));
      const RowVector nv_row = nv.row(h / group);
      for (std::int64_t t = 0; t < lists; ++t) {
        list.compute(nx, nv_row, candidate_limit(problem, nx.size(), t), alpha);
        const std::vector<std::size_t> selected = highest(list, slots);
        score.setZero(slots);
        lambda.setZero(slots);
        const TensorView landmarks = outputs.landmarks.select(0, b).select(0, h).select(0, t);
        for (std::int64_t slot = 0; slot < slots; ++slot) {
          const bool used = slot < static_cast<std::int64_t>(selected.size());
          std::int64_t index = -1;
          if (used) {
            const std::size_t n = selected[static_cast<std::size_t>(slot)];
            index = list.candidates[n];
            score[slot] = list.score[n];
            lambda[slot] = log_sigmoid(list.score[n] / problem.tau);
          }
          *landmarks.at<std::int32_t>(slot * landmarks.strides[0]) = static_cast<std::int32_t>(index);
        }
        store_vector(score, outputs.score.select(0, b).select(0, h).select(0, t));
        store_vector(lambda, outputs.landmark_log_weight.select(0, b).select(0, h).select(0, t));
      }
    }
  }
}

void ReferenceBackend::select_landmarks_backward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                                 const SelectionSaved& saved, const SelectionGradients& gradients) {
  const Sequences sequences{inputs};
  const std::int64_t hq = inputs.alpha_raw.shape[0], group = hq / inputs.nv.shape[1];
  const std::int64_t lists = saved.landmarks.shape[2], slots = saved.landmarks.shape[3];
  ScoredList list;
  std::vector<double> ds, dz;
  RowVector dalpha_raw = RowVector::Zero(hq);

  for (std::int64_t b = 0; b < sequences.count(); ++b) {
    const RowVector nx = load_vector(sequences.nx(inputs.nx, b));
    const Matrix nv = load_matrix(sequences.nv(inputs.nv, b));
    RowVector dnx = RowVector::Zero(nx.size());
    Matrix dnv = Matrix::Zero(nv.rows(), nv.cols());
    for (std::int64_t h = 0; h < hq; ++h) {
      const double alpha_raw = load_double(inputs.alpha_raw, h * inputs.alpha_raw.strides[0]);
      const double alpha = sigmoid(alpha_raw), one_minus_alpha = sigmoid(-alpha_raw);
      const RowVector nv_row = nv.row(h / group);
      for (std::int64_t t = 0; t < lists; ++t) {
        list.compute(nx, nv_row, candidate_limit(problem, nx.size(), t), alpha);
        const std::size_t count = list.candidates.size();

        // ds by candidate: a slot that names no candidate of its list is unused, and its gradient is not read.
        const TensorView landmarks = saved.landmarks.select(0, b).select(0, h).select(0, t);
        const TensorView dlambda = saved.dlandmark_log_weight.select(0, b).select(0, h).select(0, t);
        ds.assign(count, 0);
        for (std::int64_t slot = 0; slot < slots; ++slot) {
          const std::int64_t l = load_i32(landmarks, slot);
          const auto found = std::lower_bound(list.candidates.begin(), list.candidates.end(), l);
          if (found == list.candidates.end() || *found != l) continue;
          const auto n = static_cast<std::size_t>(found - list.candidates.begin());
          ds[n] +=
              load_double(dlambda, slot * dlambda.strides[0]) * sigmoid(-list.score[n] / problem.tau) / problem.tau;
        }

        for (std::size_t n = 0; n < count; ++n)
          dalpha_raw[h] += alpha * one_minus_alpha * ds[n] * (list.v.z[n] - list.x.z[n]);
        if (problem.detach_energies) continue;
        dz.resize(count);
        for (std::size_t n = 0; n < count; ++n) dz[n] = alpha * ds[n];
        list.v.add_gradient(dz, list.candidates, dnv.row(h / group));
        for (std::size_t n = 0; n < count; ++n) dz[n] = one_minus_alpha * ds[n];
        list.x.add_gradient(dz, list.candidates, dnx);
      }
    }
    if (gradients.dnx.present()) store_vector(dnx, sequences.nx(gradients.dnx, b));
    if (gradients.dnv.present()) store_matrix(dnv, sequences.nv(gradients.dnv, b));
  }
  if (gradients.dalpha_raw.present()) store_vector(dalpha_raw, gradients.dalpha_raw);
}

}  // namespace dsalt::internal
