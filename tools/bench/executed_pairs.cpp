// Pairs that the cpu backend's tiles execute. THE RULE IS HERE AND NOWHERE ELSE: it mirrors the tiling of
// backends/cpu/attention_*.cpp and changes with it.
//
//   1. A tile is 64 consecutive rows of one kv head by 64 keys, aligned to whole multiples of 64 keys. The rows of a kv
//      head are the queries of its first query head, then those of the next one.
//   2. Rows come in groups of 16: a kv head's last tile executes its rows rounded up to whole groups. A tile of at most
//   8
//      rows (decoding), and a run of at most 3 rows (rule 5), executes its rows alone.
//   3. A tile whose every pair is in the row's range executes all of it.
//   4. In any other tile each group of 16 rows executes the keys from the first to the last one that is in some of its
//      rows' ranges, the first rounded down to a multiple of 4. (The product of scores computes a little more: whole
//      groups of 16 keys.)
//   5. Landmarks: for each run of rows of a tile that read one list of one head, the list's entries up to the run's
//   last
//      position, times the groups of 16 rows that the run touches.
#include <memory>

#include "bench/mask_view.hpp"
#include "bench/pairs.hpp"

namespace dsalt::benchmark {
namespace {

constexpr std::int64_t tile_rows = 64, tile_keys = 64, row_group = 16, key_step = 4, few_rows = 8, few_rows_of_run = 3;

std::int64_t rounded_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

/// All rows of one kv head, by rule 1.
class KvHead {
 public:
  KvHead(const AttentionProblem& problem, const AttentionInputs& inputs, std::int64_t b, std::int64_t first,
         std::int64_t heads) {
    for (std::int64_t h = first; h < first + heads; ++h)
      heads_.push_back(std::make_unique<MaskView>(problem, inputs, b, h));
  }
  const MaskView& head_of(std::int64_t row) const { return *heads_[static_cast<std::size_t>(row / heads_[0]->rows())]; }
  std::int64_t query_of(std::int64_t row) const { return row % heads_[0]->rows(); }
  std::int64_t rows() const { return static_cast<std::int64_t>(heads_.size()) * heads_[0]->rows(); }
  std::int64_t keys() const { return heads_[0]->keys(); }
  bool has_lists() const { return heads_[0]->has_lists(); }
  bool same_list(std::int64_t a, std::int64_t b) const {
    return &head_of(a) == &head_of(b) && head_of(a).list_of(query_of(a)) == head_of(b).list_of(query_of(b));
  }

 private:
  std::vector<std::unique_ptr<MaskView>> heads_;
};

struct RowTile {
  std::int64_t begin, end;                 // rows
  std::vector<internal::KeyRange> ranges;  // of each row
};

/// Rules 2 to 4 for the keys [begin, end) of one tile.
std::int64_t executed_in_tile(const RowTile& tile, std::int64_t begin, std::int64_t end) {
  bool whole = true;
  std::int64_t partial = 0;
  for (std::size_t first = 0; first < tile.ranges.size(); first += row_group) {
    std::int64_t low = end, high = begin;
    for (std::size_t n = first; n < std::min(tile.ranges.size(), first + row_group); ++n) {
      const std::int64_t from = std::max(begin, tile.ranges[n].begin), to = std::min(end, tile.ranges[n].end);
      whole = whole && from == begin && to == end;
      if (from >= to) continue;
      low = std::min(low, from);
      high = std::max(high, to);
    }
    const std::int64_t rows = tile.end - tile.begin > few_rows ? row_group : tile.end - tile.begin;
    if (low < high) partial += rows * (high - low / key_step * key_step);
  }
  if (!whole || tile.end - tile.begin <= few_rows) return partial;
  return rounded_up(tile.end - tile.begin, row_group) * (end - begin);
}

/// Rule 5.
std::int64_t executed_landmarks(const KvHead& kv, const RowTile& tile, std::vector<std::int64_t>& list) {
  std::int64_t pairs = 0;
  for (std::int64_t begin = tile.begin; begin < tile.end;) {
    std::int64_t end = begin + 1;
    while (end < tile.end && kv.same_list(begin, end)) ++end;
    const MaskView& head = kv.head_of(begin);
    head.read_list(head.list_of(kv.query_of(begin)), list);
    const std::int64_t groups = (end - 1 - tile.begin) / row_group - (begin - tile.begin) / row_group + 1;
    const bool alone = tile.end - tile.begin <= few_rows || end - begin <= few_rows_of_run;
    pairs += (alone ? end - begin : groups * row_group) * count_below(list, head.position(kv.query_of(end - 1)) + 1);
    begin = end;
  }
  return pairs;
}

std::int64_t executed_by(const KvHead& kv) {
  std::int64_t pairs = 0;
  std::vector<std::int64_t> list;
  RowTile tile{};
  for (tile.begin = 0; tile.begin < kv.rows(); tile.begin = tile.end) {
    tile.end = std::min(kv.rows(), tile.begin + tile_rows);
    tile.ranges.clear();
    std::int64_t first = kv.keys(), last = 0;
    for (std::int64_t row = tile.begin; row < tile.end; ++row) {
      tile.ranges.push_back(kv.head_of(row).range(kv.query_of(row)));
      if (tile.ranges.back().begin >= tile.ranges.back().end) continue;
      first = std::min(first, tile.ranges.back().begin);
      last = std::max(last, tile.ranges.back().end);
    }
    for (std::int64_t key = first / tile_keys * tile_keys; key < last; key += tile_keys)
      pairs += executed_in_tile(tile, key, std::min(kv.keys(), key + tile_keys));
    if (kv.has_lists()) pairs += executed_landmarks(kv, tile, list);
  }
  return pairs;
}

}  // namespace

std::int64_t count_executed_cpu(const AttentionProblem& problem, const AttentionInputs& inputs) {
  const internal::AttentionSizes sizes = internal::attention_sizes(inputs);
  const std::int64_t group = sizes.hq / sizes.hkv;
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b)
    for (std::int64_t g = 0; g < sizes.hkv; ++g) pairs += executed_by(KvHead(problem, inputs, b, g * group, group));
  return pairs;
}

}  // namespace dsalt::benchmark
