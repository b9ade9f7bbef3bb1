// What both directions of the landmark selection share: where sequences, lists and their candidates are, and the mean
// and deviation of both energies over a list's candidates.
//
// List t of a sequence has the candidates j < end(t) whose energies are both numbers. Lists are prefixes of one
// another, so each stretch between two ends is cut into pieces of at most 512 tokens. What is added up in which order
// is in selection_statistics.cuh.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "dsalt/selectors.hpp"
#include "elements.cuh"
#include "launch.cuh"
#include "selection_statistics.cuh"

namespace dsalt::cuda {

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

  /// Of a sequence: what is known of a pack on the host.
  std::int64_t usual_tokens() const { return starts.present() ? tokens / sequences : tokens; }
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

  __device__ CandidateStatistics statistics() const {
    CandidateStatistics parts[parts_of_piece];
#pragma unroll
    for (int part = 0; part < parts_of_piece; ++part)
      parts[part] = part_statistics(x + part * part_lane_tokens, v + part * part_lane_tokens);
    return merged(parts, parts_of_piece);
  }

 private:
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
