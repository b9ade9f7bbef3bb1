// What the forward and backward pass of CPU attention share: tiles of query rows with their key ranges, prepared
// landmark lists, soft-edge bias and dropout factors of a tile.
//
// Key tiles start at multiples of `tile` of the key's index in its sequence, landmark blocks at multiples of `tile` of
// the sorted list: a row meets its keys in the same groups whatever else is in the call.
#pragma once

#include <cstdint>
#include <vector>

#include "array.hpp"
#include "attention_rows.hpp"
#include "dsalt/attention.hpp"
#include "internal/admitted.hpp"
#include "internal/dropout.hpp"
#include "internal/sequence.hpp"
#include "kernels.hpp"

namespace dsalt::internal {

/// Up to `tile` query rows of one sequence and what each admits by position: row r is query (begin + r) % nq of head
/// first_head + (begin + r) / nq.
struct RowTile {
  int count = 0;
  std::int64_t head[tile], query[tile], position[tile];
  KeyRange range[tile];     // all keys, the causal prefix, or the window
  double window[tile];      // w; -1 without windows
  std::int64_t edge[tile];  // smallest distance inside the soft edge; no_edge when there is none
  KeyRange common;          // keys that every row admits by position
  KeyRange any;             // from the first to the last key that some row admits by position; empty: there is none
  static constexpr std::int64_t no_edge = INT64_MAX;

  void fill(const RowMask& mask, std::int64_t first_head, std::int64_t begin, int rows);
  std::int64_t reach() const { return std::max<std::int64_t>(0, any.end - any.begin); }
  /// First key >= from that some row admits by position; -1 when there is none.
  std::int64_t next_key(std::int64_t from) const;
  /// Last key < before that some row admits by position; -1 when there is none.
  std::int64_t last_key(std::int64_t before) const;
};

/// A region of a tile that is computed as a whole: keys [key_begin, key_end), lanes [lane_begin, lane_end).
struct Span {
  int key_begin, key_end;    // key_begin is a multiple of 4
  int lane_begin, lane_end;  // whole lane groups
  bool partial;              // some lane does not admit all of the keys
};

/// A tile of rows cut to the keys [start, start + length), indices relative to start. Each lane group has the keys that
/// its own rows admit; neighbouring groups with the same keys share a span.
struct TileMask {
  alignas(64) std::int32_t first[tile], last[tile];  // inclusive; first > last: the row has no key here
  int key_begin, key_end;                            // over all spans
  int span_count;
  Span spans[tile / lane_group];

  /// For keys of which some row admits one.
  void cut(const RowTile& rows, std::int64_t start, int length);
  const Span* begin() const { return spans; }
  const Span* end() const { return spans + span_count; }
};

/// Covers the spans of a mask by regions that are wide in lanes, which is what the matrix kernels are fast at: body(key
/// begin, key end, lane begin, lane end) for groups of up to 16 keys and the lanes from the first to the last span that
/// meets them.
template <class Body>
void for_each_key_group(const TileMask& mask, Body&& body) {
  if (mask.span_count == 1) {
    const Span& span = mask.spans[0];
    return body(span.key_begin, span.key_end, span.lane_begin, span.lane_end);
  }
  for (int begin = mask.key_begin, end; begin < mask.key_end; begin = end) {
    end = std::min(mask.key_end, (begin / lane_group + 1) * lane_group);
    int lane_begin = tile, lane_end = 0;
    for (const Span& span : mask) {
      if (span.key_begin >= end || span.key_end <= begin) continue;
      lane_begin = std::min(lane_begin, span.lane_begin);
      lane_end = std::max(lane_end, span.lane_end);
    }
    if (lane_begin < lane_end) body(begin, end, lane_begin, lane_end);
  }
}

/// The soft edge of row r in keys [start, start + length): calls body(first key, relative; count; z) for its one or two
/// pieces, z[n] = (w - e) / tau.
template <class Body>
void for_each_edge(const RowTile& rows, int r, double tau, std::int64_t start, int length, Body&& body) {
  if (rows.edge[r] == RowTile::no_edge) return;
  float z[tile];
  const std::int64_t p = rows.position[r];
  const auto piece = [&](std::int64_t begin, std::int64_t end) {
    begin = std::max({begin, rows.range[r].begin, start});
    end = std::min({end, rows.range[r].end, start + length});
    if (begin >= end) return;
    for (std::int64_t j = begin; j < end; ++j)
      z[j - begin] = static_cast<float>((rows.window[r] - static_cast<double>(j <= p ? p - j : j - p)) / tau);
    body(static_cast<int>(begin - start), static_cast<int>(end - begin), static_cast<const float*>(z));
  };
  piece(INT64_MIN, p - rows.edge[r] + 1);
  piece(std::max(p + 1, p + rows.edge[r]), INT64_MAX);
}

/// A prepared list: valid indices in [0, nk), ascending, each once by its lowest slot.
struct LandmarkList {
  const std::int32_t* index = nullptr;
  const std::int32_t* slot = nullptr;
  const float* weight = nullptr;  // log-weights, 0 without
  int count = 0;
};

/// Room to prepare one list.
struct ListScratch {
  explicit ListScratch(std::int64_t k) : index(k), slot(k), weight(k), keys(static_cast<std::size_t>(k)) {}
  Array<std::int32_t> index, slot;
  Array<float> weight;
  std::vector<std::uint64_t> keys;
  std::int64_t prepared = -1;  // which list
  int count = 0;
};

/// The landmark lists of a call. Lists that many row tiles read are prepared once, up front; short-lived ones when a
/// tile needs them, in O(K) memory per thread.
class LandmarkLists {
 public:
  LandmarkLists(const AttentionProblem& problem, const AttentionInputs& inputs, int threads);
  bool present() const { return present_; }
  std::int64_t slots() const { return k_; }
  /// Which list row (head, query) reads, an index into [B,Hl,T].
  std::int64_t list_of(const AttentionSequence& sequence, std::int64_t head, std::int64_t query) const;
  /// The first query after `query` that reads another list, if there are so many.
  std::int64_t end_of(std::int64_t query) const;
  /// A list that is prepared already; empty for one that is not.
  LandmarkList kept(std::int64_t list) const;
  LandmarkList get(const AttentionSequence& sequence, std::int64_t list, ListScratch& scratch) const;

 private:
  int prepare(const AttentionSequence& sequence, std::int64_t list, std::int32_t* index, std::int32_t* slot,
              float* weight, std::vector<std::uint64_t>& keys) const;

  const AttentionProblem& problem_;
  bool present_ = false, shared_ = false;
  std::int64_t heads_ = 0, lists_ = 0, k_ = 0;
  Array<std::int32_t> index_, slot_, count_;
  Array<float> weight_;
};

/// Consecutive rows of a tile that read one list, ready for the mask kernel (lanes outside the run admit nothing).
struct LandmarkRun {
  int row_begin, row_end;
  std::int64_t list;
  alignas(64) std::int32_t first[tile], last[tile], newest[tile];

  /// The run that starts at row `begin`.
  void fill(const RowTile& rows, int begin, const LandmarkLists& lists, const AttentionSequence& sequence,
            bool bidirectional);
  /// How many leading entries of the list some row of the run could admit.
  int reachable(const LandmarkList& list) const;
};

/// Whether dropout changes anything.
inline bool drops(const AttentionProblem& problem) { return problem.dropout && problem.dropout->p > 0; }

/// Dropout factors 0 or 1/(1-p) of a tile of rows.
class DropoutTile {
 public:
  DropoutTile(const Kernels& kernels, const AttentionProblem& problem, std::int64_t first_head);
  bool active() const { return active_; }
  void start(const RowTile& rows);
  /// keep[j * tile + r] for the spans of a mask of keys from `start` on.
  void fill(const TileMask& mask, std::int64_t start, float* keep) const;
  /// keep[n * tile + r] for landmarks index[n], n in [0,count), and the rows of a run.
  void fill(const LandmarkRun& run, const std::int32_t* index, int count, float* keep) const;

 private:
  const Kernels& kernels_;
  bool active_;
  std::int64_t first_head_;  // of the sequence: b Hq
  DropoutRows rows_{};
};

/// scale, or 1/sqrt(D) when absent.
inline double score_scale(const AttentionProblem& problem, std::int64_t d) {
  return problem.scale ? *problem.scale : 1 / std::sqrt(static_cast<double>(d));
}

}  // namespace dsalt::internal
