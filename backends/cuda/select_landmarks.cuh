// What both directions of the landmark selection share: where sequences, lists and their candidates are, and the mean
// and deviation of both energies over a list's candidates.
//
// List t of a sequence has the candidates j < end(t) whose energies are both numbers. Lists are prefixes of one
// another, so each stretch between two ends is cut into pieces of at most 512 tokens. A warp takes the mean and then
// the squared deviations of a piece; for a list a warp adds up the pieces before its end,
//   mean = sum count_p mean_p / sum count_p,   M2 = sum M2_p + count_p (mean_p - mean)^2,
// in an order that depends on the list's own candidates alone, to the last bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "dsalt/selectors.hpp"
#include "elements.cuh"
#include "launch.cuh"
#include "reduce.cuh"

namespace dsalt::cuda {

constexpr int piece_tokens = 512;

/// nx or nv (or their gradients) by sequence, kv head and row: the token's number, in a pack counted from its start.
template <class T>
struct EnergyView {
  T* data = nullptr;
  std::int64_t sequence = 0, head = 0, token = 0;  // strides
  __device__ T* at(std::int64_t b, std::int64_t g, std::int64_t row) const {
    return data + b * sequence + g * head + row * token;
  }
};

/// In 32 bits where that is enough: in 64 it takes as long as hundreds of other instructions. Numbers from 0 on.
__device__ inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

struct Piece {
  std::int64_t b, begin, end;  // tokens of sequence b
};

/// A call's sequences, its lists, and the pieces of these.
struct SelectionLayout {
  View<const std::int32_t, 1> starts;      // cu_seqlens, absent in the padded form
  std::int64_t sequences = 0, tokens = 0;  // B and N, or S and R
  std::int64_t hq = 0, hkv = 0, group = 0;
  std::int64_t lists = 0;
  bool causal = false;
  std::int64_t chunk = 0, recent = 0;
  std::int64_t pieces_per_stretch = 0, pieces = 0;  // causal; of all sequences, for one kv head

  __device__ std::int64_t start(std::int64_t b) const { return starts.present() ? *starts.at(b) : 0; }
  __device__ std::int64_t length(std::int64_t b) const { return starts.present() ? start(b + 1) - start(b) : tokens; }

  /// Every sequence is cut into parts of `size` tokens from its own start. The numbers of its parts are consecutive
  /// from first_part on; there are numbers without a part in packs, whose lengths only the device knows.
  std::int64_t part_count(std::int64_t size) const {
    if (sequences == 0) return 0;
    return starts.present() ? tokens / size + sequences : sequences * ceil_div(tokens, size);
  }
  __device__ std::int64_t first_part(std::int64_t b, std::int64_t size) const {
    return starts.present() ? quotient(start(b), size) + b : b * ceil_div(tokens, size);
  }
  __device__ std::int64_t sequence_of_part(std::int64_t number, std::int64_t size) const {
    if (!starts.present()) return quotient(number, ceil_div(tokens, size));
    std::int64_t below = 0, above = sequences;  // first_part(below) <= number < first_part(above)
    while (above - below > 1) {
      const std::int64_t middle = (below + above) / 2;
      (first_part(middle, size) <= number ? below : above) = middle;
    }
    return below;
  }

  /// One past the last candidate of list t in a sequence of n tokens.
  __device__ std::int64_t end(std::int64_t t, std::int64_t n) const {
    constexpr double most = 0x1p62;  // t chunk may not fit where nobody could check the number of lists
    const bool fits = static_cast<double>(t) * static_cast<double>(chunk) <= most;
    const std::int64_t seen = !causal ? n : fits ? t * chunk : static_cast<std::int64_t>(most);
    return max(std::int64_t{0}, min(seen - recent, n));
  }
  /// The first list that token j is a candidate of; not below `lists` when there is none.
  __device__ std::int64_t first_list(std::int64_t j, std::int64_t n) const {
    if (causal) return quotient(j + recent, chunk) + 1;
    return j < end(0, n) ? 0 : 1;
  }

  __device__ std::int64_t first_piece(std::int64_t b) const {
    return causal ? b * (lists - 1) * pieces_per_stretch : first_part(b, piece_tokens);
  }
  /// List t consists of this many pieces from first_piece on.
  __device__ std::int64_t piece_count(std::int64_t t, std::int64_t n) const {
    return causal ? t * pieces_per_stretch : ceil_div(end(0, n), piece_tokens);
  }
  __device__ Piece piece(std::int64_t number) const {
    if (!causal) {
      const std::int64_t b = sequence_of_part(number, piece_tokens);
      const std::int64_t begin = (number - first_part(b, piece_tokens)) * piece_tokens;
      return {b, begin, min(begin + piece_tokens, end(0, length(b)))};
    }
    const std::int64_t stretch = quotient(number, pieces_per_stretch), b = quotient(stretch, lists - 1),
                       t = stretch - b * (lists - 1), n = length(b);
    const std::int64_t begin = end(t, n) + (number - stretch * pieces_per_stretch) * piece_tokens;
    return {b, begin, min(begin + piece_tokens, end(t + 1, n))};
  }
};

struct Moments {
  double mean, m2;
  /// z = (n - mean) inverse; 0 stands for z = 0 without a gradient: a single candidate, or a deviation <= 1e-6.
  __device__ double inverse_deviation(double count) const {
    const double deviation = count > 1 ? sqrt(m2 / (count - 1)) : 0;
    return deviation <= 1e-6 ? 0 : 1 / deviation;
  }
};

struct CandidateStatistics {
  double count;
  Moments x, v;
};

/// The statistics of a list's consecutive pieces, for every lane of a warp that calls it. The mean is corrected once,
/// so that equal energies deviate by exactly 0.
__device__ inline CandidateStatistics list_statistics(const CandidateStatistics* pieces, std::int64_t count) {
  struct Sums {
    double x, v, count = 0;
  };
  const auto sum = [&](auto&& term) {
    Sums sums = {0, 0};
    for (std::int64_t n = threadIdx.x % 32; n < count; n += 32) {
      const CandidateStatistics piece = pieces[n];
      if (piece.count == 0) continue;
      const Sums terms = term(piece);
      sums = {sums.x + terms.x, sums.v + terms.v, sums.count + terms.count};
    }
    return Sums{warp_sum(sums.x), warp_sum(sums.v), warp_sum(sums.count)};
  };
  using Piece = const CandidateStatistics&;
  const Sums total = sum([](Piece piece) {
    return Sums{piece.count * piece.x.mean, piece.count * piece.v.mean, piece.count};
  });
  const double candidates = total.count;
  if (candidates == 0) return {};
  const double share = 1 / candidates;
  const Sums about = {total.x * share, total.v * share};
  const Sums rest = sum([about](Piece piece) {
    return Sums{piece.count * (piece.x.mean - about.x), piece.count * (piece.v.mean - about.v)};
  });
  const Sums mean = {about.x + rest.x * share, about.v + rest.v * share};
  const Sums squares = sum([mean](Piece piece) {
    const double x = piece.x.mean - mean.x, v = piece.v.mean - mean.v;
    return Sums{piece.x.m2 + piece.count * (x * x), piece.v.m2 + piece.count * (v * v)};
  });
  return {candidates, {mean.x, squares.x}, {mean.v, squares.v}};
}

/// The energies of a piece in the registers of a warp: number i of a lane is token begin + 32 i + lane. NaN past the
/// end.
template <class T>
struct PieceEnergies {
  static constexpr int per_lane = piece_tokens / 32;
  T x[per_lane], v[per_lane];

  __device__ PieceEnergies(const SelectionLayout& layout, const EnergyView<T>& nx, const EnergyView<T>& nv,
                           const Piece& piece, std::int64_t g) {
    const std::int64_t first = piece.begin + threadIdx.x % 32, row = layout.start(piece.b) + first;
    const T* const from_x = nx.at(piece.b, 0, row);
    const T* const from_v = nv.at(piece.b, g, row);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const bool exists = first + i * 32 < piece.end;
      x[i] = exists ? from_x[i * 32 * nx.token] : static_cast<T>(NAN);
      v[i] = exists ? from_v[i * 32 * nv.token] : static_cast<T>(NAN);
    }
  }

  __device__ void store_x(const SelectionLayout& layout, const EnergyView<T>& to, const Piece& piece) const {
    store(x, to, layout, piece, 0);
  }
  __device__ void store_v(const SelectionLayout& layout, const EnergyView<T>& to, const Piece& piece,
                          std::int64_t g) const {
    store(v, to, layout, piece, g);
  }

  /// Mean and squared deviations of the candidates: two passes over differences from one of them, so that equal
  /// energies deviate by exactly 0.
  __device__ CandidateStatistics statistics() const {
    int count = 0;
    double x_one = 0, v_one = 0;
    bool found = false;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      if (!candidate(i)) continue;
      ++count;
      if (!found) x_one = x[i], v_one = v[i];
      found = true;
    }
    const std::uint32_t finders = __ballot_sync(0xffffffffu, found);
    if (finders == 0) return {};
    x_one = __shfl_sync(0xffffffffu, x_one, __ffs(finders) - 1);
    v_one = __shfl_sync(0xffffffffu, v_one, __ffs(finders) - 1);
    count = warp_sum(count);
    const auto of = [&](auto&& is_candidate) -> CandidateStatistics {
      double x_sum = 0, v_sum = 0;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        x_sum += is_candidate(i) ? x[i] - x_one : 0;
        v_sum += is_candidate(i) ? v[i] - v_one : 0;
      }
      const double x_mean = x_one + warp_sum(x_sum) / count, v_mean = v_one + warp_sum(v_sum) / count;
      x_sum = v_sum = 0;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const double from_x = x[i] - x_mean, from_v = v[i] - v_mean;
        x_sum += is_candidate(i) ? from_x * from_x : 0;
        v_sum += is_candidate(i) ? from_v * from_v : 0;
      }
      return {static_cast<double>(count), {x_mean, warp_sum(x_sum)}, {v_mean, warp_sum(v_sum)}};
    };
    if (count == piece_tokens) return of([](int) { return true; });  // half as many instructions
    return of([this](int i) { return candidate(i); });
  }

 private:
  __device__ bool candidate(int i) const { return x[i] == x[i] && v[i] == v[i]; }
  __device__ static void store(const T (&values)[per_lane], const EnergyView<T>& to, const SelectionLayout& layout,
                               const Piece& piece, std::int64_t g) {
    const std::int64_t first = piece.begin + threadIdx.x % 32, start = layout.start(piece.b);
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
      if (first + i * 32 < piece.end) *to.at(piece.b, g, start + first + i * 32) = values[i];
  }
};

inline SelectionLayout selection_layout(const SelectionProblem& problem, const SelectionInputs& in,
                                        std::int64_t lists) {
  SelectionLayout layout;
  layout.starts = device_view<const std::int32_t, 1>(in.cu_seqlens);
  layout.sequences = in.cu_seqlens.present() ? in.cu_seqlens.shape[0] - 1 : in.nx.shape[0];
  layout.tokens = in.nx.shape[in.cu_seqlens.present() ? 0 : 1];
  layout.hq = in.alpha_raw.shape[0];
  layout.hkv = in.nv.shape[1];
  layout.group = layout.hq / layout.hkv;
  layout.lists = lists;
  layout.causal = problem.policy == SelectionPolicy::causal;
  layout.chunk = problem.chunk.value_or(1);
  layout.recent = std::min(problem.recent, std::int64_t{1} << 61);  // sums with it fit
  if (layout.causal) {
    layout.pieces_per_stretch = ceil_div(std::min(layout.chunk, layout.tokens), piece_tokens);
    layout.pieces = layout.sequences * std::max<std::int64_t>(0, lists - 1) * layout.pieces_per_stretch;
  } else {
    layout.pieces = layout.part_count(piece_tokens);
  }
  return layout;
}

/// `view` is shaped like nx, or like nv with `heads`.
template <class T>
EnergyView<T> energy_view(const SelectionLayout& layout, const TensorView& view, bool heads) {
  if (!view.present()) return {};
  if (layout.starts.present()) return {static_cast<T*>(view.data), 0, heads ? view.strides[1] : 0, view.strides[0]};
  return {static_cast<T*>(view.data), view.strides[0], heads ? view.strides[1] : 0, view.strides[heads ? 2 : 1]};
}

}  // namespace dsalt::cuda
