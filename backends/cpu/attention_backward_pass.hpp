// The pass of attention's backward over the keys of one tile of query rows (attention_backward_pass.cpp).
#pragma once

#include "attention_backward.hpp"

namespace dsalt::internal {

/// One thread's memory.
struct QueryScratch {
  explicit QueryScratch(const BackwardCall& call)
      : q(call.kernels, call.pairs, call.sizes.d),
        k(call.kernels, call.pairs, call.sizes.d),
        v(call.kernels, call.pairs, call.sizes.dv),
        dout(call.kernels, call.pairs, call.sizes.dv),
        packed_q(call.kernels, call.pairs, call.sizes.d),
        packed_dout(call.kernels, call.pairs, call.sizes.dv),
        products(call.kernels, call.pairs),
        dq(call.kernels, q.width()),
        work(2 * std::max(q.width(), v.width())),
        p(tile * tile),
        dp(tile * tile),
        keep(drops(call.problem) ? tile * tile : 0),
        list(call.lists.slots()) {}
  Operand q, k, v, dout;
  Packed packed_q, packed_dout;
  Products products;
  RowSums dq;
  Array<float> work, p, dp, keep;
  ListScratch list;
  RowTile rows;
  TileMask mask;
  LandmarkRun run;
  Prefetcher ahead;
  alignas(64) float lse[tile], norm[tile], delta[tile];
  bool refined[tile];
  double sum_p[tile], sum_pd[tile], dwindow[tile];
};

/// Landmarks [entry, entry + span.key_end) of a run's list, or keys of the tile from `start` (run null); P and dP done.
struct KeyBlock {
  Span span;
  const LandmarkRun* run;
  int entry;
  std::int64_t start;
  int length;
  int count() const { return span.key_end - span.key_begin; }
  std::int64_t at() const { return std::int64_t{span.key_begin} * tile; }
};

/// One tile of rows and what it needs.
struct QueryPass {
  BackwardCall& call;
  const AttentionSequence& sequence;
  LandmarkGradients& landmarks;
  KeySums& key_sums;
  DropoutTile dropout;
  Rows q, k, v, dout, out, dq;
  std::int64_t n;  // the tile
  TilePlace place;
  std::int64_t first_row;   // of the tile, in call.window_gradient
  std::int64_t round_tile;  // in the round of landmarks
  QueryScratch& own;
  std::int64_t open = n;  // KeySums::enter

  /// Reads the tile and finds delta. Before everything else.
  void start();
  /// Asks for the rows that this tile writes at its end.
  void foresee_dq() { own.ahead.add(dq, place.head, place.begin, place.begin + tile, sequence.nq); }
  /// Asks for the tile that is likely to be this thread's next one, and the keys after those of this tile.
  void foresee(const TilePlace& next);
  /// Finds lse and delta again for rows whose stored lse is too coarse.
  void refine();
  bool wants_sweep() const;
  /// dq, what the tile adds to key_sums and hands to `landmarks`, and own.dwindow.
  void gradients();
  void store_dwindow();

 private:
  const Kernels& kernels() const { return call.kernels; }
  const float* keep() const { return dropout.active() ? own.keep.get() : nullptr; }
  /// Asks for a few of the rows that are needed next, see ForwardPass.
  void look_ahead() { own.ahead.step(12); }

  /// delta from the stored out and lse.
  void statistics();
  double lse_gradient(int r) const;

  /// Calls visit(block) for every group of keys that the rows admit, and finish(start) after the last block of each
  /// tile of keys by position.
  template <class Visit, class Finish>
  void sweep(Visit&& visit, Finish&& finish);
  template <class Visit>
  void sweep_landmarks(Visit&& visit);
  /// The last key tile before key `before` that some row admits by position, -1 when there is none. Asks for its rows
  /// when they are unlikely to be in the cache since this thread's last row tile.
  std::int64_t previous_tile(std::int64_t before) const;
  template <class KeyOf>
  void read_keys(int begin, int end, KeyOf&& key_of);
  void probabilities(const KeyBlock& block);
  /// body(row, first key of the tile, count, bias, slope) for the soft edge of a block of keys by position.
  template <class Body>
  void edges(const KeyBlock& block, Body&& body);

  void add_dq(const KeyBlock& block);
  /// The tile's shares of dk and dv.
  void add_keys(std::int64_t start);
  /// Whether add_to_keys meets every one of the first `length` keys.
  static bool covers(const TileMask& mask, int length);
  void add_to_keys(const float* weights, const Operand& values, float* sums, std::int64_t width, bool first);
  /// P and dS become 0 where no span computed them, so that sums over lanes may run across.
  void clear_outside_spans();

  LandmarkBlock* open_block(const LandmarkRun& run);
  void store_block(const LandmarkBlock& stored, const KeyBlock& block, const float* p, const float* ds);
  /// sums[entry] = sum over the rows of the run of weights times values.
  void store_sums(float* sums, const KeyBlock& block, const float* weights, const Operand& values);
  /// The tile's columns of the run, as [entry, row].
  void store_weights(const LandmarkBlock& stored, const KeyBlock& block, const float* p, const float* ds) const;
  void store_dq();
};

}  // namespace dsalt::internal
