// What the parts of CPU attention's backward pass share.
//
//   ds_ij = P_ij (keep_ij <do_i, v_j> - delta_i + dlse_i),   P_ij = exp(s_ij - lse_i) norm_i
//   queries (attention_backward_pass.cpp)           one task per tile of 64 rows: dq, dwindow, ds of its landmark keys,
//                                                   its share of dk and dv of the keys it admits by position;
//                                                   attention_backward_queries.cpp deals the tasks out
//   keys (attention_backward_keys.cpp)              the sums of those shares, and the order in which tiles add to them
//   landmarks (attention_backward_landmarks.cpp)    dk, dv of landmark keys and dlandmark_log_weight, from that ds
// Every sum runs in an order fixed by indices, so the bits do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention_products.hpp"

namespace dsalt::internal {

/// A tile of rows: rows [begin, begin + 64) of a head. Tiles are numbered by sequence, key/value head, place, and head
/// of the group; those of one key/value head are consecutive and start at `chain`.
struct TilePlace {
  std::int64_t b, kv_head, head, begin, chain;
};

/// The call and what the passes hand to each other.
struct BackwardCall {
  BackwardCall(MemoryPool& pool, const Kernels& kernels, const AttentionProblem& problem, const AttentionInputs& inputs,
               const AttentionSaved& saved, const AttentionGradients& gradients, int threads);

  MemoryPool& pool;  // for what grows with the sequence
  const Kernels& kernels;
  const AttentionProblem& problem;
  const AttentionInputs& inputs;
  const AttentionSaved& saved;
  const AttentionGradients& gradients;
  const int threads;
  const AttentionSizes sizes;
  const std::int64_t group;  // query heads per key/value head
  const double scale;
  const bool pairs;  // attention_products.hpp
  const LandmarkLists lists;
  std::vector<std::int64_t> first_row;   // [B+1]: row (b,h,i) is first_row[b] + h nq + i
  std::vector<std::int64_t> first_tile;  // [B+1]: the number of sequence b's first tile
  Array<double> window_gradient;         // per row, only where heads share one window

  std::int64_t tiles(std::int64_t nq) const { return (nq + tile - 1) / tile; }
  TilePlace place(std::int64_t n) const;
  /// The first tile of the key/value head after that of tile n.
  std::int64_t next_chain(std::int64_t n) const {
    const TilePlace at = place(n);
    return at.chain + group * tiles(sequence_extent(inputs, at.b).nq);
  }
  bool wants_keys() const { return gradients.dk.present() || gradients.dv.present(); }
};

/// The sequence that index `n` of a prefix sum belongs to.
inline std::int64_t sequence_of(const std::vector<std::int64_t>& first, std::int64_t n) {
  return std::upper_bound(first.begin(), first.end(), n) - first.begin() - 1;
}

/// What the rows of one tile that read one list contribute to its keys: sums over the rows, or the weights P keep and
/// ds of so few rows that these take less memory (LandmarkGradients::sums_rows).
struct LandmarkBlock {
  std::int64_t list, query;  // the list, and the first row's query
  int rows, count;           // rows and leading entries of the list
  float* dv;                 // [count, padded Dv]: sums of P keep dout; or P keep [count, rows]
  float* dk;                 // [count, padded D]: sums of ds q; or ds [count, rows]
  double* slot_sum;          // [count]: sum of ds over the rows, where dlandmark_log_weight is wanted
  std::int32_t* index;       // [count]
  std::int32_t* slot;        // [count]
};

/// Sums landmark contributions over row tiles, in the order of tiles. The query pass fills blocks for one round of
/// tiles at a time, so that memory stays bounded; then `fold` adds the round up.
class LandmarkGradients {
 public:
  explicit LandmarkGradients(const BackwardCall& call);
  ~LandmarkGradients();
  bool active() const { return active_; }
  /// Whether blocks hold sums over rows.
  bool sums_rows() const { return sums_rows_; }
  std::int64_t tiles_per_round() const { return round_; }

  /// Starts the sums of key/value heads [first_head, end_head), numbered b Hkv + kv head.
  void start_heads(std::int64_t first_head, std::int64_t end_head);
  /// Starts the blocks of tile `n` of the round.
  void begin_tile(std::int64_t n) { used_[n] = 0; }
  /// A new block of `count` entries of `list` for rows [run.row_begin, run.row_end) of tile n of the round.
  LandmarkBlock& add(std::int64_t n, const RowTile& rows, const LandmarkRun& run, const LandmarkList& list, int count);

  /// Adds the round that began with row tile `first`; `folded`: all but the weights' part was added tile by tile.
  void fold(std::int64_t first, std::int64_t count, bool folded);
  /// Adds row tile `tile`, which is `n` of its round: for a thread that walks all tiles of a key/value head in order.
  void fold_tile(std::int64_t tile, std::int64_t n);
  /// Whether a round's blocks are folded tile by tile: then a thread uses one tile's memory over and over.
  void start_round(bool by_tile) { by_tile_ = by_tile; }
  /// Writes dlandmark_log_weight.
  void store_weights() const;
  /// The sums for key j (of dk without the scale): hi, lo, and room for its sum by position, each of padded(width);
  /// null when no list holds it.
  float* dk(std::int64_t b, std::int64_t kv_head, std::int64_t j) const;
  float* dv(std::int64_t b, std::int64_t kv_head, std::int64_t j) const;
  /// body(j) for the keys in [begin, end) that some list holds.
  template <class Body>
  void for_each_key(std::int64_t b, std::int64_t kv_head, std::int64_t begin, std::int64_t end, Body&& body) const {
    if (!active_) return;
    const auto n = static_cast<std::size_t>(b * call_.sizes.hkv + kv_head);
    const std::int32_t *keys = key_.get() + first_sum_[n], *last = key_.get() + first_sum_[n + 1];
    for (keys = std::lower_bound(keys, last, begin); keys < last && *keys < end; ++keys) body(std::int64_t{*keys});
  }

 private:
  struct Scratch;
  void find_keys();
  void fold_keys(std::int64_t first, std::int64_t count);
  void fold_weights(std::int64_t first, std::int64_t count);
  void add_block(const LandmarkBlock& block, const AttentionSequence& sequence, std::int64_t head, std::int64_t kv_head,
                 std::int64_t low, std::int64_t high, Scratch* own);
  void add_sums(const LandmarkBlock& block, std::int64_t entry, int count, float* const* dk, float* const* dv) const;
  void add_weights(const LandmarkBlock& block, const AttentionSequence& sequence, std::int64_t head, std::int64_t entry,
                   int count, float* const* dk, float* const* dv, Scratch& own) const;
  std::int64_t sum_of(std::int64_t b, std::int64_t kv_head, std::int64_t j) const;

  const BackwardCall& call_;
  bool active_ = false, weights_ = false, sums_rows_ = false, by_tile_ = false;
  std::int64_t d_, dv_;  // padded widths
  std::int64_t k_ = 0, round_ = 1, blocks_per_tile_ = 1, keys_per_task_ = tile;
  // Keys that some list holds, per (b, kv head), ascending. The sums of the present heads are rows of dk_sum_ and
  // dv_sum_.
  std::vector<std::int64_t> first_key_;    // [B+1]: offset of sequence b's keys in slot_
  Array<std::int32_t> slot_;               // per (b, kv head, key): its place among them, -1 when no list holds it
  std::vector<std::int64_t> first_sum_;    // [B Hkv + 1]
  Array<std::int32_t> key_;                // the key of each sum
  std::int64_t start_sum_ = 0, room_ = 0;  // the first of the present sums; how many there is room for
  Array<float> dk_sum_, dv_sum_;
  Array<double> slot_sum_;  // [B,Hl,T,K]
  // One round.
  Array<LandmarkBlock> blocks_;
  Array<std::int32_t> used_, index_, block_slot_;
  Array<float> block_dv_, block_dk_;
  std::int64_t block_dv_size_ = 0, block_dk_size_ = 0;
  Array<double> block_sum_;
  std::vector<std::unique_ptr<Scratch>> scratch_;
};

/// Compensated sums of dk and dv over row tiles, for the key/value heads of one wave at a time (consecutive heads whose
/// sums fit in a bounded memory). Tiles of a key/value head add to a key tile in ascending order: each walks its key
/// tiles downwards and may enter one when the tile before it in the chain has left it. All tiles of a causal mask can
/// so run at the same time, each on its own diagonal.
///
/// Where a thread walks a whole head (a wave that is `walked`), it stores a key tile as soon as no later row tile
/// admits a key of it, and its place serves the next key tile: the sums of a window stay in the thread's cache. A key
/// that lists hold as well waits for their sums beside these.
class KeySums {
 public:
  explicit KeySums(const BackwardCall& call);

  struct Wave {
    std::int64_t first_head, end_head;  // b Hkv + kv head
    std::int64_t first_tile, end_tile;
  };
  const std::vector<Wave>& waves() const { return waves_; }
  void start(const Wave& wave, bool walked);
  /// Writes dk and dv of the wave's keys; where it was walked, of those that are not written yet.
  void store(const LandmarkGradients& landmarks);
  /// For the thread that walks the head: no later row tile admits a key below `lowest` by position. `row` and `work`
  /// hold a row each.
  void retire(std::int64_t b, std::int64_t kv_head, std::int64_t lowest, const LandmarkGradients& landmarks, float* row,
              float* work);

  bool active() const { return active_; }
  /// The sums of the first key of a tile that was entered first: hi, then lo at padded(width); those of the tile's next
  /// keys follow.
  float* dk(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) const;
  float* dv(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) const;

  /// Asks for the sums of keys [begin, end) before they are needed.
  void prefetch(std::int64_t b, std::int64_t kv_head, std::int64_t begin, std::int64_t end) const;

  /// On a tile's turn: whether nothing was added to key tile `key_tile` before. Its sums hold any numbers then: the
  /// caller writes all of them, or has them cleared.
  bool first(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile);
  void clear(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile);

  /// Tile n waits until every tile before it in the chain has left key tiles >= key_tile. `open`, n at first, becomes
  /// the lowest tile such that those from it to n have left everything.
  void enter(std::int64_t n, std::int64_t chain, std::int64_t key_tile, std::int64_t& open);
  /// Tile n itself has left key tiles >= key_tile: it waits for nobody to say so.
  void leave(std::int64_t n, std::int64_t key_tile);

 private:
  std::int64_t tile_of_head(std::int64_t head) const;
  /// Rows of a sequence of dk or dv.
  Rows rows(const TensorView& gradient, std::int64_t b) const;
  std::int64_t key_tile_of(std::int64_t head, std::int64_t key_tile) const {
    return first_key_tile_[static_cast<std::size_t>(head)] -
           first_key_tile_[static_cast<std::size_t>(wave_.first_head)] + key_tile;
  }
  std::int64_t row_of(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) const {
    const std::int64_t head = b * call_.sizes.hkv + kv_head;
    return first_key_[static_cast<std::size_t>(head)] - first_key_[static_cast<std::size_t>(wave_.first_head)] +
           place_[key_tile_of(head, key_tile)] * tile;
  }
  /// `lists_later`: keys that lists hold as well are not written, their sums by position wait beside those.
  void store_keys(std::int64_t head, std::int64_t key_tile, const LandmarkGradients& landmarks, bool lists_later,
                  float* row, float* work);
  /// Writes the keys of a stored tile that waited for lists.
  void store_held(std::int64_t head, std::int64_t key_tile, const LandmarkGradients& landmarks, float* row,
                  float* work);

  const BackwardCall& call_;
  bool active_;
  std::int64_t d_, dv_;  // padded widths
  std::vector<std::int64_t> first_key_,
      first_key_tile_;  // [B Hkv + 1]: valid keys, and their tiles, of the heads before
  std::vector<Wave> waves_;
  Wave wave_{};
  Array<float> dk_sum_, dv_sum_;
  Array<std::uint8_t> used_;  // per key tile of the wave: its sums hold something
  // Where its sums are, in tiles from its head's first; -1: nowhere yet. An incomplete tile has its own place.
  Array<std::int32_t> place_, free_;  // free_: the head's places that may be taken again
  struct Walk {
    std::int64_t stored = 0;  // key tiles below are stored
    std::int32_t taken = 0, free = 0;
  };
  std::vector<Walk> walks_;                              // per head of the wave
  std::unique_ptr<std::atomic<std::int64_t>[]> left_;    // per tile of the wave: it has left key tiles >= this
  std::unique_ptr<std::atomic<std::int64_t>[]> passed_;  // the same of it and every tile before; its successor writes
};

/// Writes dq and dwindow, adds to `keys`, hands landmark blocks to `landmarks`; dk and dv are written wave by wave.
void attention_backward_queries(BackwardCall& call, LandmarkGradients& landmarks);

}  // namespace dsalt::internal
