// What both directions of the landmark selection share: where sequences, lists and their candidates are, and the mean
// and deviation of both energies over a list's candidates.
//
// List t of a sequence has the candidates j < end(t) whose energies are both numbers. Lists are prefixes of one
// another, so each stretch between two ends is cut into pieces of at most 512 tokens. A warp takes the mean and then
// the squared deviations of a piece; a list joins the pieces before its end by
//   M2 = M2_a + M2_b + (mean_b - mean_a)^2 n_a n_b / (n_a + n_b),
// in an order that depends on its own candidates alone, to the last bit.
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
    return starts.present() ? start(b) / size + b : b * ceil_div(tokens, size);
  }
  __device__ std::int64_t sequence_of_part(std::int64_t number, std::int64_t size) const {
    if (!starts.present()) return number / ceil_div(tokens, size);
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
    if (causal) return (j + recent) / chunk + 1;
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
    const std::int64_t stretch = number / pieces_per_stretch, t = stretch % (lists - 1), b = stretch / (lists - 1);
    const std::int64_t n = length(b), begin = end(t, n) + number % pieces_per_stretch * piece_tokens;
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

__device__ inline CandidateStatistics join(const CandidateStatistics& a, const CandidateStatistics& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const double total = a.count + b.count, share = b.count / total;
  const auto joined = [&](const Moments& first, const Moments& second) {
    const double difference = second.mean - first.mean;
    return Moments{first.mean + difference * share, first.m2 + second.m2 + difference * difference * (a.count * share)};
  };
  return {total, joined(a.x, b.x), joined(a.v, b.v)};
}

/// The joined statistics of consecutive pieces, for every thread of the block.
template <int threads>
__device__ CandidateStatistics join_pieces(const CandidateStatistics* pieces, std::int64_t count) {
  __shared__ CandidateStatistics of_warp[threads / 32];
  CandidateStatistics mine = {};
  for (std::int64_t n = threadIdx.x; n < count; n += threads) mine = join(mine, pieces[n]);
  for (int step = 16; step > 0; step /= 2) {
    const auto from_above = [step](double value) { return __shfl_down_sync(0xffffffffu, value, step); };
    mine = join(mine, {from_above(mine.count),
                       {from_above(mine.x.mean), from_above(mine.x.m2)},
                       {from_above(mine.v.mean), from_above(mine.v.m2)}});
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = of_warp[0];
  for (int warp = 1; warp < threads / 32; ++warp) mine = join(mine, of_warp[warp]);
  __syncthreads();  // of_warp may be written again
  return mine;
}

/// Mean and squared deviations of the values in the lanes' registers (NaN: none): two passes, and the mean is corrected
/// once, so that equal values deviate by exactly 0.
template <int per_lane, class T>
__device__ Moments moments_in_warp(const T (&values)[per_lane], double count) {
  const auto sum = [&](auto&& term) {
    double total = 0;
#pragma unroll
    for (int i = 0; i < per_lane; ++i)
      if (values[i] == values[i]) total += term(static_cast<double>(values[i]));
    return warp_sum(total);
  };
  const double about = sum([](double value) { return value; }) / count;
  const double mean = about + sum([about](double value) { return value - about; }) / count;
  return {mean, sum([mean](double value) { return (value - mean) * (value - mean); })};
}

/// The statistics of a piece, by one warp.
template <class T>
__device__ CandidateStatistics piece_statistics(const SelectionLayout& layout, const EnergyView<T>& nx,
                                                const EnergyView<T>& nv, const Piece& piece, std::int64_t g) {
  constexpr int per_lane = piece_tokens / 32;
  const std::int64_t start = layout.start(piece.b);
  T x[per_lane], v[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const std::int64_t j = piece.begin + i * 32 + threadIdx.x % 32;
    x[i] = v[i] = static_cast<T>(NAN);
    if (j >= piece.end) continue;
    x[i] = *nx.at(piece.b, 0, start + j);
    v[i] = *nv.at(piece.b, g, start + j);
  }
  int count = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const bool candidate = x[i] == x[i] && v[i] == v[i];
    if (!candidate) x[i] = v[i] = static_cast<T>(NAN);
    count += __popc(__ballot_sync(0xffffffffu, candidate));
  }
  if (count == 0) return {};
  return {static_cast<double>(count), moments_in_warp(x, count), moments_in_warp(v, count)};
}

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
