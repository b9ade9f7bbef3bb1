// Landmark selection. For the candidates of each list (list_statistics.hpp), with a = sigma(alpha_raw_h):
//   s_j = a z(nv_j) + (1 - a) z(nx_j);  the k highest, ties to the lower index;  lambda = log sigma(s / tau)
//
// Scores in double from the float32 energies. How a list finds its best k is in list_selection.hpp.
// Backward, with ds = dlambda sigma(-s/tau) / tau at the selected slots, dz = a ds (or (1-a) ds), and per list
// G = sum dz, Q = sum dz z over m candidates of mean mu and deviation sd:
//   dn_i = dz_i / sd  -  G / (m sd)  -  Q (n_i - mu) / ((m-1) sd^2)          for every candidate i
// The last two terms are linear in n_i, so their coefficients are added up over the lists that contain i (suffix sums)
// and applied in one pass: O(T k + n) per head. Sums run in the order of heads, lists, slots.
#include <cmath>
#include <vector>

#include "cpu_backend.hpp"
#include "internal/admitted.hpp"
#include "list_selection.hpp"
#include "list_statistics.hpp"
#include "parallel.hpp"

namespace dsalt::internal {
namespace {

/// The sizes of a call, its sequences, and the statistics of each of its (sequence, kv head, list).
class Selection {
 public:
  Selection(int threads, const SelectionProblem& problem, const SelectionInputs& in, std::int64_t lists)
      : problem(problem),
        in(in),
        batch(in.cu_seqlens.present() ? in.cu_seqlens.shape[0] - 1 : in.nx.shape[0]),
        hkv(in.nv.shape[1]),
        hq(in.alpha_raw.shape[0]),
        group(hq / hkv),
        lists(lists),
        statistics_(batch * hkv) {
    const std::int64_t tokens = in.nx.size() / std::max<std::int64_t>(1, batch);
    parallel_for(threads, batch * hkv, 1 + 4096 / (tokens + lists + 1), [&](std::int64_t task) {
      statistics_[task] = list_statistics(problem, sequence(task / hkv), task % hkv, lists);
    });
  }

  SelectionSequence sequence(std::int64_t b) const { return selection_sequence(in, b); }
  const std::vector<ListStatistics>& statistics(std::int64_t b, std::int64_t g) const {
    return statistics_[b * hkv + g];
  }
  double alpha_raw(std::int64_t h) const { return load_double(in.alpha_raw, h * in.alpha_raw.strides[0]); }

  const SelectionProblem& problem;
  const SelectionInputs& in;
  std::int64_t batch, hkv, hq, group, lists;

 private:
  std::vector<std::vector<ListStatistics>> statistics_;
};

double energy_x(const SelectionSequence& sequence, std::int64_t j) {
  return load_double(sequence.nx, j * sequence.nx.strides[0]);
}
double energy_v(const SelectionSequence& sequence, std::int64_t g, std::int64_t j) {
  return load_double(sequence.nv, g * sequence.nv.strides[0] + j * sequence.nv.strides[1]);
}

/// Offset of slot 0 of list (b,h,t) in a [B,Hq,T,K] view.
std::int64_t list_offset(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t t) {
  return b * view.strides[0] + h * view.strides[1] + t * view.strides[2];
}

/// What the arriving gradients of list (b,h,t) are at its used slots: visit(j, ds, zx, zv).
template <class Visit>
void visit_slots(const Selection& selection, const SelectionSaved& saved, const SelectionSequence& sequence,
                 std::int64_t b, std::int64_t h, std::int64_t t, double alpha, Visit&& visit) {
  const std::int64_t g = h / selection.group;
  const ListStatistics& list = selection.statistics(b, g)[t];
  const double tau = selection.problem.tau;
  const std::int64_t at = list_offset(saved.landmarks, b, h, t),
                     d_at = list_offset(saved.dlandmark_log_weight, b, h, t);
  for (std::int64_t slot = 0; slot < selection.problem.k; ++slot) {
    const std::int64_t j = *saved.landmarks.at<std::int32_t>(at + slot * saved.landmarks.strides[3]);
    if (j < 0 || j >= list.end) continue;
    const double nx = energy_x(sequence, j), nv = energy_v(sequence, g, j);
    if (std::isnan(nx) || std::isnan(nv)) continue;
    const double zx = list.x.z(nx), zv = list.v.z(nv), score = alpha * zv + (1 - alpha) * zx;
    const double dlambda = load_double(saved.dlandmark_log_weight, d_at + slot * saved.dlandmark_log_weight.strides[3]);
    visit(j, dlambda * sigmoid(-score / tau) / tau, zx, zv);
  }
}

/// constant + slope (n_i - centre): what the mean and deviation of lists hand to every candidate.
struct Linear {
  double constant = 0, slope = 0;
  void add(const EnergyStatistics& list, double count, double centre, double g, double q) {
    if (list.deviation == 0) return;
    const double bend = q / ((count - 1) * list.deviation * list.deviation);
    constant += -g / (count * list.deviation) + (list.mean - centre) * bend;
    slope -= bend;
  }
};

struct ListGradient {
  Linear x, v;
};

/// Adds up coefficients from the last list backwards: entry t then serves the candidates that list t added.
void suffix_sums(std::vector<ListGradient>& lists) {
  for (std::size_t t = lists.size(); t-- > 1;) {
    lists[t - 1].x.constant += lists[t].x.constant;
    lists[t - 1].x.slope += lists[t].x.slope;
    lists[t - 1].v.constant += lists[t].v.constant;
    lists[t - 1].v.slope += lists[t].v.slope;
  }
}

/// The linear terms of kv head g for every candidate, added to dx or dv (either may be null).
void add_linear(const SelectionSequence& sequence, std::int64_t g, const std::vector<ListStatistics>& statistics,
                const std::vector<ListGradient>& gradients, double* dx, double* dv) {
  EnergyPieces pieces(sequence, g);
  const double centre_x = statistics.back().x.mean, centre_v = statistics.back().v.mean;
  std::int64_t begin = 0;
  for (std::size_t t = 0; t < statistics.size(); ++t) {
    const Linear &in_x = gradients[t].x, &in_v = gradients[t].v;
    pieces.visit(begin, statistics[t].end, [&](std::int64_t first, std::int64_t count, const float* x, const float* v) {
      for (std::int64_t i = 0; i < count; ++i) {
        if (!is_candidate(x[i], v[i])) continue;
        if (dx) dx[first + i] += in_x.constant + in_x.slope * (static_cast<double>(x[i]) - centre_x);
        if (dv) dv[first + i] += in_v.constant + in_v.slope * (static_cast<double>(v[i]) - centre_v);
      }
    });
    begin = std::max(begin, statistics[t].end);
  }
}

/// One gradient row, rounded once.
void store_tokens(const std::vector<double>& values, const TensorView& row) {
  for (std::int64_t i = 0; i < row.shape[0]; ++i) store_double(row, i * row.strides[0], values[i]);
}

}  // namespace

void CpuBackend::select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& in,
                                          const SelectionOutputs& out) {
  const std::int64_t lists = out.landmarks.shape[2], k = problem.k;
  const Selection selection(threads(), problem, in, lists);
  const std::int64_t mean_length = in.nx.size() / std::max<std::int64_t>(1, selection.batch);
  std::vector<ScoredEnergies> energies(selection.batch * selection.hkv);
  parallel_for(threads(), selection.batch * selection.hkv, 1 + 4096 / (mean_length + 1), [&](std::int64_t task) {
    energies[task] =
        ScoredEnergies(row_kernels_for(kernels_), selection.sequence(task / selection.hkv), task % selection.hkv);
  });

  constexpr std::int64_t lists_per_task = 16;  // neighbours help each other
  const std::int64_t tasks_per_head = (lists + lists_per_task - 1) / lists_per_task;
  const auto run_list = [&](ListSelector& selector, std::int64_t b, std::int64_t h, std::int64_t t) {
    const std::int64_t g = h / selection.group;
    const SelectionSequence sequence = selection.sequence(b);
    const ListStatistics& list = selection.statistics(b, g)[t];
    const double alpha = sigmoid(selection.alpha_raw(h));
    const std::vector<Candidate>& best = selector.select(energies[b * selection.hkv + g], list, alpha);
    const std::int64_t at = list_offset(out.landmarks, b, h, t), score_at = list_offset(out.score, b, h, t);
    const std::int64_t weight_at = list_offset(out.landmark_log_weight, b, h, t);
    for (std::int64_t slot = 0; slot < k; ++slot) {
      const bool used = slot < static_cast<std::int64_t>(best.size());
      const std::int64_t j = used ? best[slot].j : -1;
      const double score =
          used ? alpha * list.v.z(energy_v(sequence, g, j)) + (1 - alpha) * list.x.z(energy_x(sequence, j)) : 0;
      *out.landmarks.at<std::int32_t>(at + slot * out.landmarks.strides[3]) = static_cast<std::int32_t>(j);
      store_double(out.score, score_at + slot * out.score.strides[3], score);
      store_double(out.landmark_log_weight, weight_at + slot * out.landmark_log_weight.strides[3],
                   used ? log_sigmoid(score / problem.tau) : 0);
    }
  };
  parallel_for(
      threads(), selection.batch * selection.hq * tasks_per_head, 1 + 8192 / (mean_length + lists_per_task * k + 1),
      [&] { return ListSelector(row_kernels_for(kernels_), k); },
      [&](ListSelector& selector, std::int64_t task) {
        const std::int64_t head = task / tasks_per_head, first = task % tasks_per_head * lists_per_task;
        selector.restart();
        for (std::int64_t t = first; t < std::min(lists, first + lists_per_task); ++t)
          run_list(selector, head / selection.hq, head % selection.hq, t);
      });
}

void CpuBackend::select_landmarks_backward(const SelectionProblem& problem, const SelectionInputs& in,
                                           const SelectionSaved& saved, const SelectionGradients& gradients) {
  const std::int64_t lists = saved.landmarks.shape[2];
  const Selection selection(threads(), problem, in, lists);
  const std::int64_t hq = selection.hq, hkv = selection.hkv, group = selection.group, batch = selection.batch;
  const bool wants_x = gradients.dnx.present(), wants_v = gradients.dnv.present();
  std::vector<double> dalpha(batch * hq);  // per (sequence, head)
  std::vector<std::vector<ListGradient>> linear(wants_x || wants_v ? batch * hkv
                                                                   : 0);  // suffix sums per (sequence, kv head)
  const std::int64_t work = in.nx.size() / std::max<std::int64_t>(1, batch) + lists * problem.k * group;

  parallel_for(
      threads(), batch * hkv, 1 + 2048 / (work + 1), [&] { return std::vector<double>(); },
      [&](std::vector<double>& dv, std::int64_t task) {
        const std::int64_t b = task / hkv, g = task % hkv;
        const SelectionSequence sequence = selection.sequence(b);
        const std::vector<ListStatistics>& statistics = selection.statistics(b, g);
        std::vector<ListGradient> lists_here(wants_x || wants_v ? lists : 0);
        dv.assign(wants_v ? sequence.n : 0, 0.0);
        for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
          const double alpha = sigmoid(selection.alpha_raw(h)), rest = sigmoid(-selection.alpha_raw(h));
          for (std::int64_t t = 0; t < lists; ++t) {
            double gx = 0, qx = 0, gv = 0, qv = 0;
            const double inverse_v = statistics[t].v.inverse();
            visit_slots(selection, saved, sequence, b, h, t, alpha,
                        [&](std::int64_t j, double ds, double zx, double zv) {
                          dalpha[b * hq + h] += ds * (zv - zx);
                          gx += rest * ds;
                          qx += rest * ds * zx;
                          gv += alpha * ds;
                          qv += alpha * ds * zv;
                          if (wants_v) dv[j] += alpha * ds * inverse_v;
                        });
            if (lists_here.empty()) continue;
            const auto count = static_cast<double>(statistics[t].count);
            lists_here[t].x.add(statistics[t].x, count, statistics.back().x.mean, gx, qx);
            lists_here[t].v.add(statistics[t].v, count, statistics.back().v.mean, gv, qv);
          }
        }
        suffix_sums(lists_here);
        if (wants_v) {
          if (lists > 0) add_linear(sequence, g, statistics, lists_here, nullptr, dv.data());
          store_tokens(dv, selection_rows(gradients.dnv, in, b, sequence.start, sequence.n).select(0, g));
        }
        if (wants_x) linear[task] = std::move(lists_here);
      });

  if (wants_x)
    parallel_for(
        threads(), batch, 1 + 2048 / (work * hkv + 1), [&] { return std::vector<double>(); },
        [&](std::vector<double>& dx, std::int64_t b) {
          const SelectionSequence sequence = selection.sequence(b);
          dx.assign(sequence.n, 0.0);
          for (std::int64_t h = 0; h < hq; ++h) {
            const std::int64_t g = h / group;
            const double alpha = sigmoid(selection.alpha_raw(h)), rest = sigmoid(-selection.alpha_raw(h));
            for (std::int64_t t = 0; t < lists; ++t) {
              const double inverse_x = selection.statistics(b, g)[t].x.inverse();
              visit_slots(selection, saved, sequence, b, h, t, alpha,
                          [&](std::int64_t j, double ds, double, double) { dx[j] += rest * ds * inverse_x; });
            }
          }
          for (std::int64_t g = 0; g < hkv && lists > 0; ++g)
            add_linear(sequence, g, selection.statistics(b, g), linear[b * hkv + g], dx.data(), nullptr);
          store_tokens(dx, selection_rows(gradients.dnx, in, b, sequence.start, sequence.n));
        });

  if (!gradients.dalpha_raw.present()) return;
  for (std::int64_t h = 0; h < hq; ++h) {
    const double raw = selection.alpha_raw(h);
    double sum = 0;
    for (std::int64_t b = 0; b < batch; ++b) sum += dalpha[b * hq + h];
    store_double(gradients.dalpha_raw, h * gradients.dalpha_raw.strides[0], sum * sigmoid(raw) * sigmoid(-raw));
  }
}

}  // namespace dsalt::internal
