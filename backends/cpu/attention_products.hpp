// The matrix products of attention on tiles of 64 rows, in one of two arithmetics:
//
//   float32   any operands, converted to float32
//   pairs     bfloat16 operands by VDPBF16PS (AVX-512-BF16) or TDPBF16PS (AMX): exact products, float32 sums; P and dS
//             are rounded to bfloat16 before the product that consumes them, as docs/semantics.md allows for 16-bit
//             inputs
//
// Every product of a call runs in the same arithmetic, and a row's sums do not depend on its neighbours in the tile.
#pragma once

#include <cstdint>

#include "attention_tiles.hpp"

namespace dsalt::internal {

/// Whether a call runs as pairs: bfloat16, where the processor has the instruction, and a scale that keeps small what
/// flushed products could have added to a logit (subnormal elements of q and k count as 0 in logits, those of v and
/// dout in dP).
bool runs_as_pairs(const Kernels& kernels, const AttentionInputs& inputs, double scale);

/// Up to `tile` rows of a [heads, tokens, channels] view, as one operand of products.
class Operand {
 public:
  Operand(const Kernels& kernels, bool pairs, std::int64_t channels);

  /// Rows [begin, end) become tokens token_of(begin), ...
  template <class TokenOf>
  void read(const Rows& view, std::int64_t head, int begin, int end, TokenOf&& token_of) {
    if (pairs_ && in_place(view))
      view.addresses(head, begin, end, token_of, narrow_);
    else if (pairs_)
      for (int n = begin; n < end; ++n) narrow_[n] = view.read_bits(head, token_of(n), bits_.get() + n * width_);
    else if (in_place(view))
      view.addresses(head, begin, end, token_of, rows_);
    else
      for (int n = begin; n < end; ++n) rows_[n] = view.read_padded(head, token_of(n), buffer_.get() + n * width_);
  }
  /// Rows [begin, end) become tokens token, token + 1, ...
  void read_run(const Rows& view, std::int64_t head, int begin, int end, std::int64_t token) {
    if (view.paged() || !in_place(view))
      read(view, head, begin, end, [&](int n) { return token + n - begin; });
    else if (pairs_)
      view.addresses_from(head, begin, end, token, narrow_);
    else
      view.addresses_from(head, begin, end, token, rows_);
  }
  /// Whether rows of the view are read where they lie.
  bool in_place(const Rows& view) const { return pairs_ ? view.pairs_in_place() : view.in_place(); }
  /// Makes rows [begin, end) ready to be summed (begin even): needed before they are `values` of a product below.
  void prepare_sums(int begin, int end);
  /// Pairs: whether the rows that were made ready have exceptional elements, which are multiplied in float32.
  bool exceptional() const { return exceptional_; }
  /// Pairs: the exceptional elements of rows [begin, end) in float32, 0 elsewhere.
  void read_exceptional(int begin, int end);

  std::int64_t channels() const { return channels_; }
  std::int64_t width() const { return width_; }  // padded
  /// The row in float32 (a copy in `work` when it is bfloat16).
  const float* row(int n, float* work) const;

 private:
  friend class Packed;
  friend class Products;
  const Kernels& kernels_;
  bool pairs_;
  std::int64_t channels_, width_;
  Array<float> buffer_;        // float32: rows that are not in place; pairs: exceptional elements
  Array<std::uint16_t> bits_;  // pairs: rows that are not in place
  Array<std::uint32_t> paired_;
  bool exceptional_ = false;
  const float* rows_[tile] = {};
  const std::uint16_t* narrow_[tile] = {};
};

/// An operand transposed, lanes over its rows: the right-hand side of `scores`.
class Packed {
 public:
  Packed(const Kernels& kernels, bool pairs, std::int64_t channels);
  /// Rows [0, count) times `scale`; the rest of the last lane group is 0. The rows stay where they are.
  void pack(const Operand& rows, int count, double scale);

 private:
  friend class Products;
  static constexpr int most_rows = 8;
  /// Up to most_rows rows as they were packed: float32 times the scale, pairs without it.
  const void* const* rows(int begin, int end);

  const Kernels& kernels_;
  bool pairs_;
  std::int64_t channels_;  // of 32 bits
  double factor_ = 1;
  int count_ = 0;
  Array<std::uint32_t> data_;
  Array<float> scaled_;  // what `rows` made of float32
  const void *rows_[tile] = {}, *scaled_rows_[most_rows] = {};
};

/// Running sums of a tile's rows: a plain float32 sum of up to four blocks of keys, and a compensated sum of those,
/// which is not written before the first of them is folded.
class RowSums {
 public:
  RowSums(const Kernels& kernels, std::int64_t width);
  void clear();
  /// The plain sum of rows from `begin` on.
  float* const* running(int begin, int end);
  /// body(first, last, running, starts) for runs of rows in [begin, end) to which something is added now: `starts` says
  /// that their plain sums hold nothing (any numbers) and begin with it.
  template <class Body>
  void add(int begin, int end, Body&& body) {
    for (int to; begin < end; begin = to) {
      to = begin + 1;
      while (to < end && fresh_[to] == fresh_[begin]) ++to;
      body(begin, to, running_ + begin, fresh_[begin]);
      std::fill(fresh_ + begin, fresh_ + to, false);
    }
  }
  /// The higher part of the compensated sum of rows from `begin` on; the lower part is lo_offset() behind it.
  float* const* compensated(int begin, int end);
  std::int64_t lo_offset() const { return tile * width_; }
  /// Blocks of keys are numbered by their place in the sequence or list. Rows [begin, end) meet block `block` now: the
  /// plain sum ends where a group of four blocks ends.
  void start_block(std::int64_t block, int begin, int end) {
    if (group_ >= 0 && block / 4 != group_) fold(begin, end);
    group_ = block / 4;
  }
  /// Ends the plain sums of rows [begin, end).
  void fold(int begin, int end);
  void rescale(int row, float factor);
  /// y = sum / divisor of a row.
  void finish(int row, float divisor, float* y) const;

 private:
  const Kernels& kernels_;
  std::int64_t width_, group_ = -1;
  Array<float> data_;  // running, hi, lo
  float *running_[tile], *compensated_[tile];
  bool fresh_[tile];  // nothing is in the plain sum
  bool empty_[tile];  // nothing is in the compensated sum
};

/// The running softmax of a tile's rows, see Kernels::softmax and Kernels::softmax_pairs.
struct SoftmaxRows {
  void clear();
  alignas(64) float m[tile], sum[tile], sum_lo[tile], rounded[tile], rounded_lo[tile], alpha[tile];
};

/// What is asked for while values are read: so many bytes behind those of each lane group (0: nothing). Where sums add
/// more keys at once (Kernels::group_pairs), these get the distance of their first lane group.
struct AheadOfGroups {
  std::int64_t bytes[tile / lane_group] = {};
};

/// One thread's products. A weight tile is [key][lane]; regions of it start at multiples of 4 keys. Where `rows` are
/// named, whole lane groups around them may be computed.
class Products {
 public:
  /// So few rows of a tile have their scores computed with keys in the lanes; with more, a lane group of rows is
  /// faster.
  static constexpr int few_rows = 3;

  Products(const Kernels& kernels, bool pairs);

  /// s[key][row] = scale <keys[key], packed[row]>. highest[row], unless null, is raised to at least these.
  void scores(Packed& packed, const Operand& keys, int key_begin, int key_end, int row_begin, int row_end, float* s,
              float* highest = nullptr);
  /// The same on the spans of a mask (and some of the tile beside them).
  void scores(Packed& packed, const Operand& keys, const TileMask& mask, float* s, float* highest = nullptr);
  /// out[row] += sum over keys of w[key][row] values[key].
  void sum_keys(const float* w, const Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                RowSums& out);
  /// The same for weights that are in `key_pairs` already (as Kernels::softmax_pairs leaves them, from key_begin on).
  void sum_paired_keys(const float* w, const Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                       RowSums& out);
  std::uint32_t* key_pairs() { return weights_.get(); }

  // The same three steps of few rows with the keys in the lanes; key key_begin is in lane 0, row stride is `tile`. Keys
  // `ahead` bytes behind those are asked for (0: none), and values likewise.
  /// s[row - row_begin][key - key_begin] = scale <keys[key], packed[row]>, and any numbers up to whole lane groups.
  void row_scores(Packed& packed, const Operand& keys, int key_begin, int key_end, int row_begin, int row_end,
                  std::int64_t ahead, float* s) const;
  /// Row r of s by Kernels::row_softmax or row_softmax_pairs.
  bool row_softmax(float* s, int r, int count, SoftmaxRows& state);
  /// out[row] += sum over keys of w[row][key - key_begin] values[key]; values need no prepare_sums. Lane groups count
  /// from key_begin.
  void row_sums(const float* w, Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                const AheadOfGroups& ahead, RowSums& out);

  /// The same towards keys: (hi, lo)[key] += sum over rows of w[key][row] values[row] by
  /// Kernels::accumulate_compensated. row_begin is a multiple of lane_group, and lanes of the last group beyond row_end
  /// have weight 0.
  void sum_rows(const float* w, const Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                float* const* out, std::int64_t lo_offset, bool first);

 private:
  const Kernels& kernels_;
  bool pairs_;
  Array<std::uint32_t> weights_;
};

}  // namespace dsalt::internal
