// Attention of a tile of few rows, decoding above all: the keys are in the lanes (kernels_rows.hpp), so that each key
// and value costs little beside its way from memory. Same blocks of keys and same order of additions as
// attention_forward.cpp.
#include <algorithm>

#include "attention_forward.hpp"

namespace dsalt::internal {
namespace {

struct FewRowsPass {
  ForwardPass& pass;
  ForwardScratch& own = pass.own;
  const RowTile& rows = own.rows;

  float* scores_of(int r) { return own.scores.get() + r * tile; }

  /// Bytes from a key or value to the one in the same place of the next tile. Of keys that are copied first, nothing.
  std::int64_t key_ahead = 0, value_ahead = 0;

  /// Reads keys key_of(n), n in [begin, end), and computes their scores for some rows, key `begin` in lane 0.
  template <class KeyOf>
  void score(int begin, int end, int row_begin, int row_end, KeyOf&& key_of) {
    own.k.read(pass.k, pass.kv_head, begin, end, key_of);
    own.v.read(pass.v, pass.kv_head, begin, end, key_of);
    own.products.row_scores(own.packed_q, own.k, begin, end, row_begin, row_end, key_ahead, scores_of(row_begin));
  }

  /// Scores are masked: folds keys [key_begin, key_end) into rows [row_begin, row_end).
  void fold(int key_begin, int key_end, int row_begin, int row_end) {
    const int count = key_end - key_begin, lanes = lanes_end(count);
    for (int r = row_begin; r < row_end; ++r) {
      std::fill(scores_of(r) + count, scores_of(r) + lanes, minus_infinity);
      if (own.products.row_softmax(own.scores.get(), r, lanes, own.softmax)) own.out.rescale(r, own.softmax.alpha[r]);
    }
    own.products.row_sums(own.scores.get(), own.v, key_begin, key_end, row_begin, row_end, value_ahead, own.out);
  }

  void mask_landmarks(int r, const std::int32_t* index, const float* weight, int count) {
    const LandmarkRun& run = own.run;
    float* s = scores_of(r);
    for (int n = 0; n < count; ++n) {
      const bool in_window = index[n] >= run.first[r] && index[n] <= run.last[r];
      s[n] = in_window || index[n] > run.newest[r] ? minus_infinity : s[n] + weight[n];
    }
  }

  void landmarks() {
    LandmarkRun& run = own.run;
    for (int row = 0; row < rows.count; row = run.row_end) {
      run.fill(rows, row, pass.lists, pass.sequence, pass.problem.bidirectional);
      const LandmarkList list = pass.lists.get(pass.sequence, run.list, own.list);
      const int reachable = run.reachable(list);
      for (int block = 0; block < reachable; block += tile) {
        const int count = std::min(tile, reachable - block);
        const std::int32_t* index = list.index + block;
        own.out.start_block(block / tile, run.row_begin, run.row_end);
        for (const Rows* view : {&pass.k, &pass.v})
          for (int n = 0; n < count; ++n) view->prefetch(pass.kv_head, index[n], index[n] + 1);
        score(0, count, run.row_begin, run.row_end, [&](int n) { return index[n]; });
        for (int r = run.row_begin; r < run.row_end; ++r) mask_landmarks(r, index, list.weight + block, count);
        fold(0, count, run.row_begin, run.row_end);
      }
      own.out.fold(run.row_begin, run.row_end);
    }
  }

  void keys_by_position() {
    const std::int64_t first_key = rows.next_key(0);
    for (std::int64_t key = first_key, next; key >= 0; key = next) {
      const std::int64_t start = key / tile * tile;
      int first[few_rows], last[few_rows], begin = tile, end = 0;
      for (int r = 0; r < rows.count; ++r) {
        first[r] = static_cast<int>(std::clamp<std::int64_t>(rows.range[r].begin - start, 0, tile));
        last[r] = static_cast<int>(std::clamp<std::int64_t>(rows.range[r].end - start, 0, tile));
        if (first[r] >= last[r]) continue;
        begin = std::min(begin, first[r]);
        end = std::max(end, last[r]);
      }
      begin = begin / 4 * 4;
      next = rows.next_key(start + tile);
      key_ahead = ahead_of(own.k, pass.k, start, next, first_key);
      value_ahead = ahead_of(own.v, pass.v, start, next, first_key);
      own.out.start_block(start / tile, 0, rows.count);
      score(begin, end, 0, rows.count, [start](int n) { return start + n; });
      for (int r = 0; r < rows.count; ++r) {
        if (pass.problem.soft_edge) add_edge_bias(r, start, begin, end);
        float* s = scores_of(r);
        std::fill(s, s + (std::clamp(first[r], begin, end) - begin), minus_infinity);
        std::fill(s + (std::clamp(last[r], begin, end) - begin), s + (end - begin), minus_infinity);
      }
      fold(begin, end, 0, rows.count);
    }
  }

  /// Bytes from the tile at key `start` to the next one: that of key `next`, or the first one of the kv head before
  /// this one, which is likely to be this thread's next and to begin where this one began.
  std::int64_t ahead_of(const Operand& operand, const Rows& view, std::int64_t start, std::int64_t next,
                        std::int64_t first_key) const {
    if (!operand.in_place(view)) return 0;
    if (next >= 0) return (next / tile * tile - start) * view.token_bytes();
    return pass.kv_head == 0 ? 0 : (first_key / 4 * 4 - start) * view.token_bytes() - view.head_bytes();
  }

  void add_edge_bias(int r, std::int64_t start, int begin, int end) {
    for_each_edge(rows, r, pass.problem.soft_edge->tau, start + begin, end - begin,
                  [&](int first, int count, const float* z) {
                    float bias[tile], slope[tile];
                    pass.kernels.soft_edge(z, bias, slope, count);
                    for (int n = 0; n < count; ++n) scores_of(r)[first + n] += bias[n];
                  });
  }
};

}  // namespace

void attend_few_rows(ForwardPass& pass) {
  FewRowsPass few{pass};
  if (pass.lists.present()) few.landmarks();
  few.keys_by_position();
}

}  // namespace dsalt::internal
