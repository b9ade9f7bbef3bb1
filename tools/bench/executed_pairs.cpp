// Pairs that the cpu backend's tiles execute. THE RULE IS HERE AND NOWHERE ELSE: it mirrors the tiling of
// backends/cpu/attention_*.cpp and changes with it.
//
//   1. A tile is 64 consecutive queries of one query head by 64 keys, aligned to whole multiples of 64 keys.
//   2. Rows come in groups of 16: a tile at the end of a sequence executes its rows rounded up to whole groups.
//   3. A tile whose every pair is in the row's range executes all of it.
//   4. In any other tile each group of 16 rows executes the keys from the first to the last one that is in some of its
//      rows' ranges, the first rounded down to a multiple of 4.
//   5. Landmarks: for each run of rows of a tile that read one list, the list's entries up to the run's last position,
//      times the groups of 16 rows that the run touches.
#include "bench/mask_view.hpp"
#include "bench/pairs.hpp"

namespace dsalt::benchmark {
namespace {

constexpr std::int64_t tile_rows = 64, tile_keys = 64, row_group = 16, key_step = 4;

std::int64_t rounded_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

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
    if (low < high) partial += row_group * (high - low / key_step * key_step);
  }
  return whole ? rounded_up(tile.end - tile.begin, row_group) * (end - begin) : partial;
}

/// Rule 5.
std::int64_t executed_landmarks(const MaskView& view, const RowTile& tile, std::vector<std::int64_t>& list) {
  std::int64_t pairs = 0;
  for (std::int64_t begin = tile.begin; begin < tile.end;) {
    std::int64_t end = begin + 1;
    while (end < tile.end && view.list_of(end) == view.list_of(begin)) ++end;
    view.read_list(view.list_of(begin), list);
    const std::int64_t groups = (end - 1 - tile.begin) / row_group - (begin - tile.begin) / row_group + 1;
    pairs += groups * row_group * count_below(list, view.position(end - 1) + 1);
    begin = end;
  }
  return pairs;
}

std::int64_t executed_by_head(const MaskView& view) {
  std::int64_t pairs = 0;
  std::vector<std::int64_t> list;
  RowTile tile{};
  for (tile.begin = 0; tile.begin < view.rows(); tile.begin = tile.end) {
    tile.end = std::min(view.rows(), tile.begin + tile_rows);
    tile.ranges.clear();
    std::int64_t first = view.keys(), last = 0;
    for (std::int64_t i = tile.begin; i < tile.end; ++i) {
      tile.ranges.push_back(view.range(i));
      if (tile.ranges.back().begin >= tile.ranges.back().end) continue;
      first = std::min(first, tile.ranges.back().begin);
      last = std::max(last, tile.ranges.back().end);
    }
    for (std::int64_t key = first / tile_keys * tile_keys; key < last; key += tile_keys)
      pairs += executed_in_tile(tile, key, std::min(view.keys(), key + tile_keys));
    if (view.has_lists()) pairs += executed_landmarks(view, tile, list);
  }
  return pairs;
}

}  // namespace

std::int64_t count_executed_cpu(const AttentionProblem& problem, const AttentionInputs& inputs) {
  const internal::AttentionSizes sizes = internal::attention_sizes(inputs);
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b)
    for (std::int64_t h = 0; h < sizes.hq; ++h) pairs += executed_by_head(MaskView(problem, inputs, b, h));
  return pairs;
}

}  // namespace dsalt::benchmark
