// Tiles of attention: see attention_tiles.hpp.
#include "attention_tiles.hpp"

#include <algorithm>
#include <limits>

#include <omp.h>

namespace dsalt::internal {

void RowTile::fill(const RowMask& mask, std::int64_t first_head, std::int64_t begin, int rows) {
  const AttentionProblem& problem = mask.problem;
  const AttentionSequence& sequence = mask.sequence;
  count = rows;
  common = {0, sequence.nk};
  any = {};
  std::int64_t h = first_head + begin / sequence.nq, i = begin % sequence.nq;
  for (int r = 0; r < rows; ++r, ++i) {
    if (i == sequence.nq) {
      ++h;
      i = 0;
    }
    head[r] = h;
    query[r] = i;
    position[r] = mask.position(i);
    window[r] = mask.window(h, i);
    range[r] = dense_range(problem.mask, window[r], position[r], sequence.nk, problem.bidirectional);
    common = {std::max(common.begin, range[r].begin), std::min(common.end, range[r].end)};
    if (range[r].begin < range[r].end)
      any = any.begin < any.end ? KeyRange{std::min(any.begin, range[r].begin), std::max(any.end, range[r].end)}
                                : range[r];
    edge[r] = no_edge;
    if (!problem.soft_edge || range[r].begin >= range[r].end) continue;
    const double inner = window[r] - problem.soft_edge->edge;  // distances above it are in the edge
    if (inner < 4.0e18) edge[r] = inner < 0 ? 0 : static_cast<std::int64_t>(std::floor(inner)) + 1;
  }
}

std::int64_t RowTile::next_key(std::int64_t from) const {
  if (from >= any.end) return -1;
  if (from <= any.begin) return any.begin;
  if (common.contains(from)) return from;
  std::int64_t nearest = INT64_MAX;
  for (int r = 0; r < count; ++r) {
    const std::int64_t begin = std::max(range[r].begin, from);
    if (begin < range[r].end) nearest = std::min(nearest, begin);
  }
  return nearest == INT64_MAX ? -1 : nearest;
}

std::int64_t RowTile::last_key(std::int64_t before) const {
  if (before <= any.begin) return -1;
  if (before >= any.end) return any.end - 1;
  if (common.contains(before - 1)) return before - 1;
  std::int64_t nearest = -1;
  for (int r = 0; r < count; ++r) {
    const std::int64_t end = std::min(range[r].end, before);
    if (end > range[r].begin) nearest = std::max(nearest, end - 1);
  }
  return nearest;
}

void TileMask::cut(const RowTile& rows, std::int64_t start, int length) {
  span_count = 0;
  if (rows.count == tile && rows.common.begin <= start && rows.common.end >= start + length) {
    key_begin = 0;
    key_end = length;
    std::fill(first, first + tile, 0);
    std::fill(last, last + tile, length - 1);
    spans[span_count++] = {0, length, 0, tile, false};
    return;
  }
  key_begin = tile;
  key_end = 0;
  for (int r = 0; r < rows.count; ++r) {
    const auto from = static_cast<int>(std::clamp<std::int64_t>(rows.range[r].begin - start, 0, length)),
               to = static_cast<int>(std::clamp<std::int64_t>(rows.range[r].end - start, 0, length));
    first[r] = from < to ? from : tile;
    last[r] = from < to ? to - 1 : -1;
  }
  std::fill(first + rows.count, first + tile, tile);
  std::fill(last + rows.count, last + tile, -1);
  for (int group = 0; group < tile; group += lane_group) {
    int begin = tile, end = 0, all_begin = 0, all_end = tile;
    for (int r = group; r < group + lane_group; ++r) {
      begin = std::min<int>(begin, first[r]);
      end = std::max<int>(end, last[r] + 1);
      all_begin = std::max<int>(all_begin, first[r]);
      all_end = std::min<int>(all_end, last[r] + 1);
    }
    if (end == 0) continue;
    begin = begin / 4 * 4;
    key_begin = std::min(key_begin, begin);
    key_end = std::max(key_end, end);
    const bool partial = all_begin > begin || all_end < end;
    Span* before = span_count > 0 ? &spans[span_count - 1] : nullptr;
    if (before && before->lane_end == group && before->key_begin == begin && before->key_end == end) {
      before->lane_end += lane_group;
      before->partial = before->partial || partial;
    } else {
      spans[span_count++] = {begin, end, group, group + lane_group, partial};
    }
  }
}

LandmarkLists::LandmarkLists(const AttentionProblem& problem, const AttentionInputs& inputs, int threads)
    : problem_(problem), present_(inputs.landmarks.present()) {
  if (!present_) return;
  heads_ = inputs.landmarks.shape[1];
  lists_ = inputs.landmarks.shape[2];
  k_ = inputs.landmarks.shape[3];
  // Lists of at least two row tiles are worth keeping; there are few of those.
  shared_ = k_ > 0 && (!problem.landmark_chunk || *problem.landmark_chunk >= 2 * tile);
  if (!shared_) return;
  const std::int64_t total = inputs.landmarks.shape[0] * heads_ * lists_;
  index_ = Array<std::int32_t>::raw(total * k_);
  slot_ = Array<std::int32_t>::raw(total * k_);
  weight_ = Array<float>::raw(total * k_);
  count_ = Array<std::int32_t>::raw(total);
  std::vector<std::vector<std::uint64_t>> keys(static_cast<std::size_t>(threads),
                                               std::vector<std::uint64_t>(static_cast<std::size_t>(k_)));
  const std::int64_t per_sequence = heads_ * lists_;
#pragma omp parallel num_threads(threads)
  {
    std::vector<std::uint64_t>& mine = keys[static_cast<std::size_t>(omp_get_thread_num())];
#pragma omp for schedule(dynamic, 16)
    for (std::int64_t list = 0; list < total; ++list) {
      const AttentionSequence sequence = attention_sequence(inputs, list / per_sequence);
      count_[list] =
          prepare(sequence, list, index_.get() + list * k_, slot_.get() + list * k_, weight_.get() + list * k_, mine);
    }
  }
}

std::int64_t LandmarkLists::list_of(const AttentionSequence& sequence, std::int64_t head, std::int64_t query) const {
  const std::int64_t t = problem_.landmark_chunk ? (query + problem_.landmark_offset) / *problem_.landmark_chunk : 0;
  return (sequence.b * heads_ + (heads_ == 1 ? 0 : head)) * lists_ + t;
}

std::int64_t LandmarkLists::end_of(std::int64_t query) const {
  if (!problem_.landmark_chunk) return INT64_MAX;
  const std::int64_t chunk = *problem_.landmark_chunk;
  return query + chunk - (query + problem_.landmark_offset) % chunk;
}

LandmarkList LandmarkLists::kept(std::int64_t list) const {
  if (!shared_) return {};
  return {index_.get() + list * k_, slot_.get() + list * k_, weight_.get() + list * k_, count_[list]};
}

LandmarkList LandmarkLists::get(const AttentionSequence& sequence, std::int64_t list, ListScratch& scratch) const {
  if (shared_) return kept(list);
  if (scratch.prepared != list) {
    scratch.count =
        prepare(sequence, list, scratch.index.get(), scratch.slot.get(), scratch.weight.get(), scratch.keys);
    scratch.prepared = list;
  }
  return {scratch.index.get(), scratch.slot.get(), scratch.weight.get(), scratch.count};
}

int LandmarkLists::prepare(const AttentionSequence& sequence, std::int64_t list, std::int32_t* index,
                           std::int32_t* slot, float* weight, std::vector<std::uint64_t>& keys) const {
  const std::int64_t t = list % lists_, hl = list / lists_ % heads_;
  const TensorView indices = sequence.landmarks.select(0, hl).select(0, t);
  std::size_t count = 0;
  bool ascending = true;
  for (std::int64_t k = 0; k < k_; ++k) {
    const std::int32_t l = *indices.at<std::int32_t>(k * indices.strides[0]);
    if (l < 0 || l >= sequence.nk) continue;
    keys[count] = static_cast<std::uint64_t>(l) << 32 | static_cast<std::uint64_t>(k);
    ascending = ascending && (count == 0 || keys[count - 1] >> 32 < keys[count] >> 32);
    ++count;
  }
  const auto end = keys.begin() + static_cast<std::ptrdiff_t>(count);
  if (!ascending) std::sort(keys.begin(), end);
  int used = 0;
  for (std::size_t n = 0; n < count; ++n) {
    if (n > 0 && keys[n] >> 32 == keys[n - 1] >> 32) continue;  // repeated: the lowest slot comes first
    index[used] = static_cast<std::int32_t>(keys[n] >> 32);
    slot[used] = static_cast<std::int32_t>(keys[n] & 0xffffffffu);
    ++used;
  }
  if (sequence.landmark_log_weight.present()) {
    const TensorView weights = sequence.landmark_log_weight.select(0, hl).select(0, t);
    for (int n = 0; n < used; ++n) weight[n] = *weights.at<float>(slot[n] * weights.strides[0]);
  } else {
    std::fill(weight, weight + used, 0.0f);
  }
  return used;
}

void LandmarkRun::fill(const RowTile& rows, int begin, const LandmarkLists& lists, const AttentionSequence& sequence,
                       bool bidirectional) {
  constexpr std::int64_t highest = std::numeric_limits<std::int32_t>::max();
  row_begin = row_end = begin;
  list = lists.list_of(sequence, rows.head[begin], rows.query[begin]);
  do {  // rows of one head at a time
    const std::int64_t query = rows.query[row_end], end = std::min(lists.end_of(query), sequence.nq);
    row_end = static_cast<int>(std::min<std::int64_t>(rows.count, row_end + end - query));
  } while (row_end < rows.count && lists.list_of(sequence, rows.head[row_end], rows.query[row_end]) == list);
  for (int lane = lanes_begin(row_begin); lane < lanes_end(row_end); ++lane) {
    first[lane] = 1;
    last[lane] = 0;
    newest[lane] = -1;
    if (lane < row_begin || lane >= row_end) continue;
    if (rows.range[lane].begin < rows.range[lane].end) {
      first[lane] = static_cast<std::int32_t>(std::min(rows.range[lane].begin, highest));
      last[lane] = static_cast<std::int32_t>(std::min(rows.range[lane].end - 1, highest));
      if (rows.range[lane].begin > highest) last[lane] = first[lane] - 1;
    }
    newest[lane] =
        static_cast<std::int32_t>(bidirectional ? highest : std::clamp<std::int64_t>(rows.position[lane], -1, highest));
  }
}

int LandmarkRun::reachable(const LandmarkList& landmarks) const {
  const std::int32_t limit = *std::max_element(newest + row_begin, newest + row_end);
  return static_cast<int>(std::upper_bound(landmarks.index, landmarks.index + landmarks.count, limit) -
                          landmarks.index);
}

DropoutTile::DropoutTile(const Kernels& kernels, const AttentionProblem& problem, std::int64_t first_head)
    : kernels_(kernels), active_(drops(problem)), first_head_(first_head) {
  if (!active_) return;
  const Dropout& dropout = *problem.dropout;
  const std::uint64_t threshold = dropout_threshold(dropout.p);
  const bool all = threshold > std::numeric_limits<std::uint32_t>::max();  // p = 1 drops everything
  rows_.seed = dropout.seed;
  rows_.offset = dropout.offset;
  rows_.threshold = all ? 0 : static_cast<std::uint32_t>(threshold);
  rows_.kept = all ? 0 : static_cast<float>(1 / (1 - dropout.p));
}

void DropoutTile::start(const RowTile& rows) {
  if (!active_) return;
  for (int r = 0; r < rows.count; ++r) {
    rows_.query[r] = static_cast<std::int32_t>(rows.query[r]);
    rows_.head[r] = static_cast<std::int32_t>(first_head_ + rows.head[r]);
  }
}

void DropoutTile::fill(const TileMask& mask, std::int64_t start, float* keep) const {
  for (const Span& span : mask)
    kernels_.dropout_keys(rows_, start + span.key_begin, span.key_end - span.key_begin, span.lane_begin, span.lane_end,
                          keep + span.key_begin * tile);
}

void DropoutTile::fill(const LandmarkRun& run, const std::int32_t* index, int count, float* keep) const {
  kernels_.dropout_landmarks(rows_, index, count, lanes_begin(run.row_begin), lanes_end(run.row_end), keep);
}

}  // namespace dsalt::internal
