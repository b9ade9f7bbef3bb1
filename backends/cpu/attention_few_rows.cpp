// Attention of a tile of few rows, decoding above all: the keys are in the lanes (kernels_rows.hpp), so that each key
// and value costs little beside its way from memory. Same blocks of keys and same order of additions as
// attention_forward.cpp.
#include <algorithm>

#include "attention_forward.hpp"

namespace dsalt::internal {
namespace {

/// Which keys (or values) are asked for while others are read: those a few KB further on and, from that far before the
/// end on, the first ones of the kv head before, which is likely to be this thread's next and to begin where this one
/// began. Distances are in bytes; 0 asks for nothing. In pages a lane group has a distance of its own, from its first
/// key: exact where pages are whole lane groups (values with AMX: whole groups of 32 keys).
class Ahead {
 public:
  Ahead(const Operand& operand, const Rows& view, std::int64_t kv_head, std::int64_t first_key, std::int64_t end_key)
      : view_(view), kv_head_(kv_head), first_key_(first_key), end_key_(end_key), asks_(operand.in_place(view)) {
    const std::int64_t keys = distance_bytes / std::max<std::int64_t>(view.row_bytes(), 1);
    distance_ = std::clamp<std::int64_t>(keys / lane_group * lane_group, lane_group, tile);
    if (!asks_ || view.paged()) return;  // not asked for: rows that are copied first
    token_bytes_ = view.token_bytes();
    if (kv_head > 0) next_head_ = first_key / 4 * 4 * token_bytes_ - view.head_bytes();
  }
  /// body(from, to, distance) for parts of the keys [begin, end) behind `start`, whole lane groups first.
  template <class Body>
  void split(std::int64_t start, int begin, int end, Body&& body) const {
    if (view_.paged()) {
      for (int from = begin; from < end; from += lane_group)
        body(from, std::min(from + lane_group, end), within_pages(start + from));
      return;
    }
    const std::int64_t within = std::max<std::int64_t>(end_key_ - distance_ - (start + begin), 0);
    const std::int64_t groups = (within + lane_group - 1) / lane_group;
    const int middle = static_cast<int>(std::min<std::int64_t>(begin + groups * lane_group, end));
    if (begin < middle) body(begin, middle, within_head());
    if (middle < end) body(middle, end, to_next_head(start + middle));
  }
  /// Of all keys from key `begin` on in a tile; `last`: of the tile that has the last one.
  AheadOfGroups of_tile(std::int64_t begin, bool last) const {
    AheadOfGroups distances;
    for (std::int64_t& distance : distances.bytes) {
      distance = view_.paged() ? within_pages(begin) : last ? to_next_head(begin) : within_head();
      if (view_.paged()) begin += lane_group;
    }
    return distances;
  }

 private:
  std::int64_t within_head() const { return distance_ * token_bytes_; }
  /// From key n to the first one of the next head.
  std::int64_t to_next_head(std::int64_t n) const { return next_head_ == 0 ? 0 : next_head_ - n * token_bytes_; }
  /// From key n to the key that is asked for.
  std::int64_t within_pages(std::int64_t n) const {
    const std::int64_t beyond = n + distance_ - end_key_;  // so far behind the last key
    if (!asks_ || n >= end_key_ || (beyond >= 0 && kv_head_ == 0)) return 0;
    const char* asked = beyond < 0 ? view_.address(kv_head_, n + distance_)
                                   : view_.address(kv_head_ - 1, std::min(first_key_ + beyond, end_key_ - 1));
    return reinterpret_cast<std::intptr_t>(asked) - reinterpret_cast<std::intptr_t>(view_.address(kv_head_, n));
  }

  static constexpr std::int64_t distance_bytes = 8192;
  const Rows& view_;
  std::int64_t kv_head_, first_key_, end_key_, distance_, token_bytes_ = 0, next_head_ = 0;
  bool asks_;
};

/// Keys [begin, end) behind `start`, begin a multiple of 4, and those of them that each row admits.
struct KeyTile {
  std::int64_t start;
  int begin, end;
  int first[few_rows], last[few_rows];
};

/// At most so many tiles have their scores computed before their values are read: keys and values come from memory in
/// runs that the processor foresees.
constexpr int longest_stretch = 32;

struct FewRowsPass {
  ForwardPass& pass;
  ForwardScratch& own = pass.own;
  const RowTile& rows = own.rows;

  float* scores_of(int r) { return own.scores.get() + r * tile; }

  /// Folds keys [key_begin, key_end), whose masked scores are given row after row, into rows [row_begin, row_end) and
  /// asks for what lies `ahead` of the values.
  void fold(float* scores, int key_begin, int key_end, int row_begin, int row_end, const AheadOfGroups& ahead) {
    const int count = key_end - key_begin, lanes = lanes_end(count);
    for (int r = row_begin; r < row_end; ++r) {
      std::fill(scores + r * tile + count, scores + r * tile + lanes, minus_infinity);
      if (own.products.row_softmax(scores, r, lanes, own.softmax)) own.out.rescale(r, own.softmax.alpha[r]);
    }
    own.products.row_sums(scores, own.v, key_begin, key_end, row_begin, row_end, ahead, own.out);
  }

  void mask_landmarks(int r, const std::int32_t* index, const float* weight, int count) {
    const LandmarkRun& run = own.run;
    float* s = scores_of(r);
    for (int n = 0; n < count; ++n) {
      const bool in_window = index[n] >= run.first[r] && index[n] <= run.last[r];
      s[n] = in_window || index[n] > run.newest[r] ? minus_infinity : s[n] + weight[n];
    }
  }

  /// Keys of landmarks are asked for while the block before theirs has its values summed, values while scores are
  /// computed.
  void landmarks() {
    LandmarkRun& run = own.run;
    ask(pass.k, pass.kv_head, list_of(rows.head[0], rows.query[0]), 0);
    for (int row = 0; row < rows.count; row = run.row_end) {
      run.fill(rows, row, pass.lists, pass.sequence, pass.problem.bidirectional);
      const LandmarkList list = pass.lists.get(pass.sequence, run.list, own.list);
      const int reachable = run.reachable(list);
      for (int block = 0; block < reachable; block += tile) {
        const int count = std::min(tile, reachable - block);
        const std::int32_t* index = list.index + block;
        own.out.start_block(block / tile, run.row_begin, run.row_end);
        ask(pass.v, pass.kv_head, list, block);
        own.k.read(pass.k, pass.kv_head, 0, count, [&](int n) { return index[n]; });
        own.v.read(pass.v, pass.kv_head, 0, count, [&](int n) { return index[n]; });
        own.products.row_scores(own.packed_q, own.k, 0, count, run.row_begin, run.row_end, 0, scores_of(run.row_begin));
        for (int r = run.row_begin; r < run.row_end; ++r) mask_landmarks(r, index, list.weight + block, count);
        if (block + tile < reachable)
          ask(pass.k, pass.kv_head, list, block + tile);
        else if (run.row_end < rows.count)
          ask(pass.k, pass.kv_head, list_of(rows.head[run.row_end], rows.query[run.row_end]), 0);
        fold(scores_of(0), 0, count, run.row_begin, run.row_end, {});
      }
      own.out.fold(run.row_begin, run.row_end);
    }
  }

  /// The list that a row reads if it is prepared already, else an empty one.
  LandmarkList list_of(std::int64_t head, std::int64_t query) const {
    return pass.lists.kept(pass.lists.list_of(pass.sequence, head, query));
  }

  static void ask(const char* line) {
    __builtin_prefetch(line);
    asm volatile("");  // the compiler takes a function that does nothing else for one without effects, and drops calls
  }

  /// Asks for a block of landmarks. They are far apart: a few rows side by side, line by line.
  void ask(const Rows& view, std::int64_t kv_head, const LandmarkList& list, int block) const {
    const std::int64_t bytes = view.row_bytes();
    for (int n = block; n < std::min(list.count, block + tile); ++n) {
      const char* row = view.address(kv_head, list.index[n]);
      for (std::int64_t line = 0; line < bytes; line += 64) ask(row + line);
    }
  }

  void keys_by_position() {
    const std::int64_t first_key = rows.next_key(0), end_key = rows.last_key(pass.sequence.nk) + 1;
    const Ahead keys_ahead(own.k, pass.k, pass.kv_head, first_key, end_key),
        values_ahead(own.v, pass.v, pass.kv_head, first_key, end_key);
    KeyTile tiles[longest_stretch];
    const int stretch = std::min(longest_stretch, tile / rows.count);  // what own.scores holds
    for (std::int64_t key = first_key; key >= 0;) {
      int count = 0;
      for (; count < stretch && key >= 0; key = rows.next_key(tiles[count++].start + tile)) {
        tiles[count] = cut(key);
        score(tiles[count], keys_ahead, scores_of(0) + count * rows.count * tile);
      }
      for (int n = 0; n < count; ++n) {
        const KeyTile& keys = tiles[n];
        const bool last = keys.start + tile >= end_key;
        if (last && pass.kv_head > 0) foresee();
        own.out.start_block(keys.start / tile, 0, rows.count);
        own.v.read_run(pass.v, pass.kv_head, keys.begin, keys.end, keys.start + keys.begin);
        fold(scores_of(0) + n * rows.count * tile, keys.begin, keys.end, 0, rows.count,
             values_ahead.of_tile(keys.start + keys.begin, last));
      }
    }
  }

  /// The kv head before this one is likely to be this thread's next.
  void foresee() const {
    const std::int64_t group = pass.sequence.q.shape[0] / pass.sequence.k.shape[0];
    for (int r = 0; r < rows.count; ++r)
      for (std::int64_t line = 0; line < pass.q.row_bytes(); line += 64)
        ask(pass.q.address(rows.head[r] - group, rows.query[r]) + line);
    if (!pass.lists.present()) return;
    const LandmarkList list = list_of(rows.head[0] - group, rows.query[0]);
    for (const Rows* view : {&pass.k, &pass.v}) ask(*view, pass.kv_head - 1, list, 0);
  }

  /// The tile of key `key`, cut to the keys that some row admits.
  KeyTile cut(std::int64_t key) const {
    KeyTile keys{key / tile * tile, tile, 0, {}, {}};
    for (int r = 0; r < rows.count; ++r) {
      keys.first[r] = static_cast<int>(std::clamp<std::int64_t>(rows.range[r].begin - keys.start, 0, tile));
      keys.last[r] = static_cast<int>(std::clamp<std::int64_t>(rows.range[r].end - keys.start, 0, tile));
      if (keys.first[r] >= keys.last[r]) continue;
      keys.begin = std::min(keys.begin, keys.first[r]);
      keys.end = std::max(keys.end, keys.last[r]);
    }
    keys.begin = keys.begin / 4 * 4;
    return keys;
  }

  /// The masked scores of a tile, row after row.
  void score(const KeyTile& keys, const Ahead& ahead, float* scores) {
    own.k.read_run(pass.k, pass.kv_head, keys.begin, keys.end, keys.start + keys.begin);
    ahead.split(keys.start, keys.begin, keys.end, [&](int from, int to, std::int64_t bytes) {
      own.products.row_scores(own.packed_q, own.k, from, to, 0, rows.count, bytes, scores + (from - keys.begin));
    });
    for (int r = 0; r < rows.count; ++r) {
      float* s = scores + r * tile - keys.begin;
      if (pass.problem.soft_edge) add_edge_bias(r, keys.start + keys.begin, keys.end - keys.begin, s + keys.begin);
      std::fill(s + keys.begin, s + std::clamp(keys.first[r], keys.begin, keys.end), minus_infinity);
      std::fill(s + std::clamp(keys.last[r], keys.begin, keys.end), s + keys.end, minus_infinity);
    }
  }

  void add_edge_bias(int r, std::int64_t key, int count, float* scores) {
    for_each_edge(rows, r, pass.problem.soft_edge->tau, key, count, [&](int first, int n, const float* z) {
      float bias[tile], slope[tile];
      pass.kernels.soft_edge(z, bias, slope, n);
      for (int m = 0; m < n; ++m) scores[first + m] += bias[m];
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
