// Pairs that the cuda backend's Hopper kernels execute. THE RULE IS HERE AND NOWHERE ELSE: it mirrors the tiling of
// backends/cuda/hopper/{sparse,landmark,dense}_*.cu* and changes with it (tests/cuda/emulated counts what the kernels
// multiply).
//
//   1. Forward, sparse: a warpgroup has 64 rows of a query head. It executes every key tile of 64 keys that the range
//      of some of its rows touches, from the first to the last, and of every list that some of them read the entries
//      up to the last that one of them admits, 32 at a time.
//   2. Forward, dense: a tile is 192 rows (D = 128: 128), in one piece, by the tiles of 128 keys up to the last that
//      its last row sees. Not in deterministic mode: calls of at most 128 keys, and those whose tiles would leave a
//      tenth of the multiprocessors idle, have tiles of 64 rows by 64 keys instead; D = 64 has tiles of 128 rows where
//      a multiprocessor does at most four fifths of the work with them.
//   3. Backward: a tile is 128 keys of a kv head by 128 (D = 128: 64) rows of each query head that reads them. Sparse:
//      each half of its keys executes the tiles of rows whose ranges together reach into it. Causal: the tile executes
//      those from the one that holds the first row that sees its first key.
//   4. Backward, landmarks: a block is 64 entries of a list, by the tiles of rows that hold some row of the list not
//      before the block's first entry. The first block, even an empty one, takes besides all tiles whose first row
//      reads the list: it begins the sums of their gradients.
//
// Every tile executes all of its pairs. Of the kernels for few queries (a call of few queries with very long lists
// counts as one of these) and for lists of few queries nothing is known here.
#include <charconv>

#include "bench/mask_view.hpp"
#include "bench/pairs.hpp"

namespace dsalt::benchmark {
namespace {

using internal::AttentionSizes;
using internal::KeyRange;

std::int64_t tiles_for(std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile; }

/// Whether the Hopper kernels take the call, of the calls that benchmarks make: no dropout, the usual scale.
bool takes(const HopperDevice& device, Direction direction, const AttentionProblem& problem,
           const AttentionInputs& inputs, const AttentionSizes& sizes) {
  constexpr std::int64_t shortest_chunk = 32;
  if (inputs.q.dtype != DType::bf16 && inputs.q.dtype != DType::f16) return false;
  if ((sizes.d != 64 && sizes.d != 128) || sizes.d != sizes.dv) return false;
  constexpr std::int64_t few_queries = 16, few_rows = 128;  // decode_forward.cu
  if (direction == Direction::forward && !device.deterministic && sizes.nq <= few_queries &&
      sizes.nq * (sizes.hq / sizes.hkv) <= few_rows)
    return false;
  if (problem.mask != Mask::sparse) return true;
  if (direction == Direction::backward && device.deterministic) return false;
  return !problem.landmark_chunk || *problem.landmark_chunk >= shortest_chunk || inputs.landmarks.size() == 0;
}

/// All keys from the first that some row admits to the last; empty: {0, 0}.
KeyRange united_range(const MaskView& head, std::int64_t first_row, std::int64_t end_row) {
  KeyRange all{head.keys(), 0};
  for (std::int64_t i = first_row; i < std::min(end_row, head.rows()); ++i) {
    const KeyRange range = head.range(i);
    if (range.begin >= range.end) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  return all.begin < all.end ? all : KeyRange{0, 0};
}

/// The lists of one query head, clean; the latest one read is kept.
class Lists {
 public:
  Lists(const MaskView& head, const AttentionInputs& inputs)
      : head_(head), lists_(head.has_lists() ? inputs.landmarks.shape[2] : 0) {}
  std::int64_t count() const { return lists_; }
  const std::vector<std::int64_t>& operator[](std::int64_t t) {
    if (t != current_) head_.read_list(current_ = t, list_);
    return list_;
  }

 private:
  const MaskView& head_;
  std::int64_t lists_, current_ = -1;
  std::vector<std::int64_t> list_;
};

/// Rule 1, for one query head.
std::int64_t sparse_forward(const MaskView& head, const AttentionInputs& inputs) {
  constexpr std::int64_t tile_keys = 64, rows = 64;
  std::int64_t pairs = 0;
  Lists lists(head, inputs);
  for (std::int64_t first = 0; first < head.rows(); first += rows) {
    const std::int64_t end = std::min(first + rows, head.rows());
    const KeyRange range = united_range(head, first, end);
    pairs += rows * tile_keys * (tiles_for(range.end, tile_keys) - range.begin / tile_keys);
    if (lists.count() == 0) continue;
    for (std::int64_t t = head.list_of(first); t <= std::min(head.list_of(end - 1), lists.count() - 1); ++t) {
      std::int64_t admitted = 0;  // entries, the first ones: windows end with the newest key
      for (std::int64_t i = first; i < end; ++i) {
        if (head.list_of(i) != t) continue;
        const KeyRange window = head.range(i);
        const std::int64_t newest = std::min(head.position(i), head.keys() - 1);
        admitted = std::max(admitted, count_below(lists[t], window.begin < window.end ? window.begin : newest + 1));
      }
      pairs += rows * 32 * tiles_for(admitted, 32);
    }
  }
  return pairs;
}

/// Rule 2, for one query head.
std::int64_t dense_forward(const HopperDevice& device, const MaskView& head, const AttentionSizes& sizes) {
  const std::int64_t large_rows = sizes.d == 64 ? 192 : 128;
  const std::int64_t large_tiles = sizes.batch * sizes.hq * tiles_for(sizes.nq, large_rows);
  const bool enough = sizes.nq > 64 && large_tiles * 10 >= device.multiprocessors * std::int64_t{9};
  const bool large = device.deterministic || (sizes.nk > 128 && enough);
  std::int64_t rows = large ? large_rows : 64;
  const std::int64_t keys = large ? 128 : 64;
  const auto turns = [&](std::int64_t tile_rows) {
    return tiles_for(sizes.batch * sizes.hq * tiles_for(sizes.nq, tile_rows), device.multiprocessors) * tile_rows;
  };
  if (large && !device.deterministic && turns(128) * 5 <= turns(large_rows) * 4) rows = 128;
  std::int64_t pairs = 0;
  for (std::int64_t row0 = 0; row0 < head.rows(); row0 += rows)
    pairs += rows * keys * tiles_for(head.range(std::min(row0 + rows, head.rows()) - 1).end, keys);
  return pairs;
}

/// Rule 3, for one query head.
std::int64_t backward(const AttentionProblem& problem, const MaskView& head, std::int64_t tile_rows) {
  const std::int64_t tile_keys = problem.mask == Mask::sparse ? 64 : 128;
  std::int64_t steps = 0;
  const std::int64_t row_tiles = tiles_for(head.rows(), tile_rows), key_tiles = tiles_for(head.keys(), tile_keys);
  if (problem.mask == Mask::sparse) {
    for (std::int64_t tile = 0; tile < row_tiles; ++tile) {
      const KeyRange range = united_range(head, tile * tile_rows, (tile + 1) * tile_rows);
      steps += tiles_for(range.end, tile_keys) - range.begin / tile_keys;
    }
  } else {
    for (std::int64_t tile = 0; tile < key_tiles; ++tile) {
      const std::int64_t first_row = problem.mask == Mask::causal ? tile * tile_keys - head.position(0) : 0;
      steps += std::max<std::int64_t>(0, row_tiles - std::max<std::int64_t>(0, first_row) / tile_rows);
    }
  }
  return steps * tile_keys * tile_rows;
}

/// Rule 4, for one query head.
std::int64_t backward_landmarks(const AttentionProblem& problem, const AttentionInputs& inputs, const MaskView& head,
                                std::int64_t tile_rows) {
  constexpr std::int64_t block = 64;
  std::int64_t pairs = 0;
  Lists lists(head, inputs);
  for (std::int64_t t = 0; t < lists.count(); ++t) {
    std::int64_t first_row = 0, last_row = head.rows();
    if (problem.landmark_chunk) {
      const std::int64_t start = t * *problem.landmark_chunk - problem.landmark_offset;
      first_row = std::max<std::int64_t>(0, start);
      last_row = std::min(last_row, start + *problem.landmark_chunk);
    }
    if (first_row >= last_row) continue;  // a list of rows that do not exist
    const auto entries = static_cast<std::int64_t>(lists[t].size());
    std::int64_t start = 0;
    do {
      const std::int64_t seeing =
          start < entries ? lists[t][static_cast<std::size_t>(start)] - head.position(0) : head.rows();
      for (std::int64_t row0 = first_row / tile_rows * tile_rows; row0 < last_row; row0 += tile_rows)
        if ((start == 0 && row0 >= first_row) || (start < entries && row0 + tile_rows > seeing))
          pairs += tile_rows * block;
      start += block;
    } while (start < entries);
  }
  return pairs;
}

}  // namespace

std::optional<HopperDevice> hopper_device(std::string_view description) {
  constexpr std::string_view unit = " multiprocessors, Hopper kernels";
  const std::size_t end = description.find(unit);
  if (end == std::string_view::npos) return {};
  const std::size_t begin = description.rfind(' ', end - 1) + 1;
  HopperDevice device;
  const auto [rest, error] =
      std::from_chars(description.data() + begin, description.data() + end, device.multiprocessors);
  if (error != std::errc() || rest != description.data() + end) return {};
  device.deterministic = description.find(", deterministic", end) != std::string_view::npos;
  return device;
}

std::optional<std::int64_t> count_executed_hopper(const HopperDevice& device, Direction direction,
                                                  const AttentionProblem& problem, const AttentionInputs& inputs) {
  const AttentionSizes sizes = internal::attention_sizes(inputs);
  if (!takes(device, direction, problem, inputs, sizes)) return {};
  const std::int64_t tile_rows = sizes.d == 64 ? 128 : 64;  // backward
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < sizes.batch; ++b)
    for (std::int64_t h = 0; h < sizes.hq; ++h) {
      const MaskView head(problem, inputs, b, h);
      if (direction == Direction::backward)
        pairs += backward(problem, head, tile_rows) + backward_landmarks(problem, inputs, head, tile_rows);
      else
        pairs += problem.mask == Mask::sparse ? sparse_forward(head, inputs) : dense_forward(device, head, sizes);
    }
  return pairs;
}

}  // namespace dsalt::benchmark
