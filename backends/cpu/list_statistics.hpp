// Mean and unbiased standard deviation of both energies over the candidates of each landmark list.
//
// List t of a sequence of n tokens has the candidates j < end(t) whose energies are both numbers. Lists are prefixes of
// one another, so one pass serves all: each stretch between two ends is summed in two passes (mean, then squared
// deviations) and joined to what came before by
//   M2 = M2_a + M2_b + (mean_b - mean_a)^2 n_a n_b / (n_a + n_b).
// The statistics of a list depend on its own candidates alone, to the last bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dsalt/selectors.hpp"
#include "internal/elements.hpp"
#include "rows.hpp"

namespace dsalt::internal {

/// One sequence of a padded or packed selection call.
struct SelectionSequence {
  std::int64_t start, n;  // rows of the packed tensors, or 0 and N
  TensorView nx;          // [n]
  TensorView nv;          // [Hkv,n]
};

/// The rows of sequence b of a tensor shaped like nx or nv, tokens last.
inline TensorView selection_rows(const TensorView& view, const SelectionInputs& in, std::int64_t b, std::int64_t start,
                                 std::int64_t n) {
  if (!view.present()) return view;
  if (!in.cu_seqlens.present()) return view.select(0, b);
  const TensorView rows = view.narrow(0, start, n);
  return rows.rank == 2 ? rows.transpose(0, 1) : rows;
}

inline SelectionSequence selection_sequence(const SelectionInputs& in, std::int64_t b) {
  std::int64_t start = 0, n = 0;
  if (in.cu_seqlens.present()) {
    start = load_i32(in.cu_seqlens, b);
    n = load_i32(in.cu_seqlens, b + 1) - start;
  } else {
    n = in.nx.shape[1];
  }
  return {start, n, selection_rows(in.nx, in, b, start, n), selection_rows(in.nv, in, b, start, n)};
}

/// Candidates of list t are the numbers among j < candidate_end.
inline std::int64_t candidate_end(const SelectionProblem& problem, std::int64_t t, std::int64_t n) {
  const std::int64_t seen = problem.policy == SelectionPolicy::global ? n : t * *problem.chunk;
  return std::clamp<std::int64_t>(seen - problem.recent, 0, n);
}

/// z(value) = (value - mean) / deviation; deviation 0 stands for z = 0 without a gradient (at most one candidate, or a
/// standard deviation <= 1e-6).
struct EnergyStatistics {
  double mean = 0, deviation = 0;
  double z(double value) const { return deviation == 0 ? 0 : (value - mean) / deviation; }
  double inverse() const { return deviation == 0 ? 0 : 1 / deviation; }
};

struct ListStatistics {
  std::int64_t end = 0, count = 0;
  EnergyStatistics x, v;
};

/// Energies of kv head g in pieces of consecutive tokens, as unit-stride float32.
struct EnergyPieces {
  static constexpr std::int64_t piece = 512;
  const SelectionSequence& sequence;
  std::int64_t g;
  float x_buffer[piece], v_buffer[piece];

  EnergyPieces(const SelectionSequence& of, std::int64_t head) : sequence(of), g(head) {}

  /// visit(first, count, x, v) for the pieces of [begin, end).
  template <class Visit>
  void visit(std::int64_t begin, std::int64_t end, Visit&& visit) {
    const std::int64_t x_stride = sequence.nx.strides[0], v_stride = sequence.nv.strides[1];
    for (std::int64_t first = begin; first < end; first += piece) {
      const std::int64_t count = std::min(piece, end - first);
      visit(first, count, float_row(sequence.nx, first * x_stride, x_stride, count, x_buffer),
            float_row(sequence.nv, g * sequence.nv.strides[0] + first * v_stride, v_stride, count, v_buffer));
    }
  }
};

inline bool is_candidate(float x, float v) { return !std::isnan(x) && !std::isnan(v); }

/// Statistics of lists 0 to T - 1.
inline std::vector<ListStatistics> list_statistics(const SelectionProblem& problem, const SelectionSequence& sequence,
                                                   std::int64_t g, std::int64_t lists) {
  struct Moments {
    double mean = 0, m2 = 0;
    void join(double other_mean, double other_m2, double count, double other_count) {
      const double total = count + other_count, difference = other_mean - mean;
      mean += difference * (other_count / total);
      m2 += other_m2 + difference * difference * (count * other_count / total);
    }
    EnergyStatistics finish(std::int64_t count) const {
      const double deviation = count > 1 ? std::sqrt(m2 / static_cast<double>(count - 1)) : 0;
      return {mean, deviation <= 1e-6 ? 0 : deviation};
    }
  };
  Moments x, v;
  std::int64_t count = 0, begin = 0;
  EnergyPieces pieces(sequence, g);
  std::vector<ListStatistics> result(lists);
  for (std::int64_t t = 0; t < lists; ++t) {
    const std::int64_t end = candidate_end(problem, t, sequence.n);
    pieces.visit(begin, end, [&](std::int64_t, std::int64_t length, const float* xs, const float* vs) {
      std::int64_t found = 0;
      double sum_x = 0, sum_v = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        if (!is_candidate(xs[i], vs[i])) continue;
        ++found;
        sum_x += static_cast<double>(xs[i]);
        sum_v += static_cast<double>(vs[i]);
      }
      if (found == 0) return;
      const double mean_x = sum_x / static_cast<double>(found), mean_v = sum_v / static_cast<double>(found);
      double m2_x = 0, m2_v = 0;
      for (std::int64_t i = 0; i < length; ++i) {
        if (!is_candidate(xs[i], vs[i])) continue;
        const double dx = static_cast<double>(xs[i]) - mean_x, dv = static_cast<double>(vs[i]) - mean_v;
        m2_x += dx * dx;
        m2_v += dv * dv;
      }
      x.join(mean_x, m2_x, static_cast<double>(count), static_cast<double>(found));
      v.join(mean_v, m2_v, static_cast<double>(count), static_cast<double>(found));
      count += found;
    });
    begin = std::max(begin, end);
    result[t] = {end, count, x.finish(count), v.finish(count)};
  }
  return result;
}

}  // namespace dsalt::internal
