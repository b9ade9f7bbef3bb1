// o_i = sum_{j in A(i)} exp(s_ij - lse_i) v_j,  s_ij = scale <q_i, k_j> + beta_ij      (docs/semantics.md, "Attention")
//
// Online softmax over tiles: 64 query rows (of one key/value head, so that the heads of a group share its keys) against
// the landmark blocks of their lists, then against the 64-key tiles that some row admits by position, each cut to the
// keys that 16 rows admit. Everything is accumulated in float32, sums of 256 keys with compensation; nothing larger
// than a tile is stored. Each row's arithmetic depends only on its own keys, in an order fixed by their indices: run,
// threads, batch and prefill are bitwise.
#include <algorithm>
#include <cmath>
#include <optional>

#include <omp.h>

#include "attention_forward.hpp"
#include "cpu_backend.hpp"
#include "kernel_scope.hpp"
#include "parallel.hpp"

namespace dsalt::internal {
namespace {

/// Keys whose rows stay in a core's cache from one row tile to the next, roughly.
constexpr std::int64_t cached_keys = 1024;

/// Row tiles that a thread takes at a time, at most: the first one's keys all come from memory. Tiles of few rows have
/// keys of their own each, and gain nothing by more.
constexpr std::int64_t most_in_a_row = 64, most_few_in_a_row = 16;

/// The pass with rows in the lanes.
struct TilePass : ForwardPass {
  /// Scores are masked: fold keys [key_begin, key_end) into rows [row_begin, row_end). bound[row], unless null, is at
  /// least each of the row's scores.
  void fold(int key_begin, int key_end, int row_begin, int row_end, const float* bound) {
    const int count = key_end - key_begin, lane_begin = lanes_begin(row_begin), lane_end = lanes_end(row_end);
    float* s = own.scores.get() + key_begin * tile;
    look_ahead();
    SoftmaxRows& of = own.softmax;
    const bool rescales =
        own.rounds ? kernels.softmax_pairs(s, count, of.m, of.sum, of.sum_lo, of.rounded, of.rounded_lo, of.alpha,
                                           bound, lane_begin, lane_end, own.v.exceptional(), own.products.key_pairs())
                   : kernels.softmax(s, count, of.m, of.sum, of.sum_lo, of.alpha, bound, lane_begin, lane_end);
    if (rescales)
      for (int r = row_begin; r < row_end; ++r)
        if (of.alpha[r] != 1) own.out.rescale(r, of.alpha[r]);
    if (dropout.active()) kernels.multiply(s, own.keep.get() + key_begin * tile, count, lane_begin, lane_end);
    look_ahead();
    const auto add = own.rounds ? &Products::sum_paired_keys : &Products::sum_keys;
    (own.products.*add)(own.scores.get(), own.v, key_begin, key_end, row_begin, row_end, own.out);
    look_ahead();
  }

  void landmarks() {
    const RowTile& rows = own.rows;
    LandmarkRun& run = own.run;
    for (int row = 0; row < rows.count; row = run.row_end) {
      run.fill(rows, row, lists, sequence, problem.bidirectional);
      const LandmarkList list = lists.get(sequence, run.list, own.list);
      const int reachable = run.reachable(list);
      for (int block = 0; block < reachable; block += tile) {
        const int count = std::min(tile, reachable - block);
        const std::int32_t* index = list.index + block;
        own.out.start_block(block / tile, run.row_begin, run.row_end);
        look_ahead();
        own.k.read(k, kv_head, 0, count, [&](int n) { return index[n]; });
        own.v.read(v, kv_head, 0, count, [&](int n) { return index[n]; });
        own.v.prepare_sums(0, count);
        own.products.scores(own.packed_q, own.k, 0, count, run.row_begin, run.row_end, own.scores.get());
        kernels.mask_landmarks(own.scores.get(), count, index, list.weight + block, run.first, run.last, run.newest,
                               lanes_begin(run.row_begin), lanes_end(run.row_end));
        if (dropout.active()) dropout.fill(run, index, count, own.keep.get());
        fold(0, count, run.row_begin, run.row_end, nullptr);  // weights of landmarks may raise them
      }
      own.out.fold(run.row_begin, run.row_end);
    }
  }

  void keys_by_position() {
    const RowTile& rows = own.rows;
    TileMask& mask = own.mask;
    for (std::int64_t begin = next_tile(0), next; begin >= 0; begin = next) {
      next = next_tile(begin + tile);
      const int length = static_cast<int>(std::min<std::int64_t>(tile, sequence.nk - begin));
      mask.cut(rows, begin, length);
      own.out.start_block(begin / tile, 0, rows.count);
      look_ahead();
      own.k.read_run(k, kv_head, mask.key_begin, mask.key_end, begin + mask.key_begin);
      own.v.read_run(v, kv_head, mask.key_begin, mask.key_end, begin + mask.key_begin);
      own.v.prepare_sums(mask.key_begin, mask.key_end);
      if (dropout.active()) dropout.fill(mask, begin, own.keep.get());
      alignas(64) float highest[tile];  // masks and soft edges only lower scores
      std::fill(highest, highest + tile, minus_infinity);
      own.products.scores(own.packed_q, own.k, mask, own.scores.get(), highest);
      for (const Span& span : mask) {
        if (span.partial)
          kernels.mask_lanes(own.scores.get() + span.key_begin * tile, span.key_end - span.key_begin, span.key_begin,
                             mask.first, mask.last, span.lane_begin, span.lane_end);
        if (problem.soft_edge) add_edge_bias(span, begin, length);
        fold(span.key_begin, span.key_end, span.lane_begin, std::min(span.lane_end, rows.count), highest);
      }
    }
  }

  /// Asks for a few of the rows that are needed next. Little at a time, or the processor's few outstanding requests
  /// stop everything else; more of it where a tile's own keys are asked for while the tile before is computed.
  void look_ahead() { own.ahead.step(own.rows.reach() > cached_keys ? 16 : 8); }

  /// The first key tile from key `from` on that some row admits by position, -1 when there is none. Asks for its rows
  /// when they are unlikely to be in the cache since this thread's last row tile.
  std::int64_t next_tile(std::int64_t from) const {
    const std::int64_t key = own.rows.next_key(from);
    if (key < 0) return -1;
    const std::int64_t begin = key / tile * tile, end = std::min(sequence.nk, begin + tile);
    if (own.rows.reach() > cached_keys || own.rows.count < lane_group) {
      own.ahead.add(k, kv_head, begin, end, sequence.nk);
      own.ahead.add(v, kv_head, begin, end, sequence.nk);
    }
    return begin;
  }

  /// Rows [begin, begin + tile) of the group are likely to be this thread's next ones, and the keys before those of
  /// this tile new to it.
  void foresee(const Rows& out, const TensorView& lse, std::int64_t first_head, std::int64_t begin) {
    own.ahead.add(out, own.rows.head[0], own.rows.query[0], own.rows.query[0] + own.rows.count, sequence.nq);
    prefetch_row_values(lse, own.rows.head[0], own.rows.query[0], own.rows.query[0] + own.rows.count);
    if (begin < 0) return;
    const std::int64_t head = first_head + begin / sequence.nq, query = begin % sequence.nq;
    own.ahead.add(q, head, query, query + tile, sequence.nq);
    prefetch_row_values(sequence.window, head, query, query + tile);
    if (lists.present()) {
      const std::int64_t list = lists.list_of(sequence, head, query);
      if (list != lists.list_of(sequence, own.rows.head[0], own.rows.query[0])) {
        const LandmarkList landmarks = lists.kept(list);
        own.ahead.add(k, kv_head, landmarks.index, std::min(tile, landmarks.count));
        own.ahead.add(v, kv_head, landmarks.index, std::min(tile, landmarks.count));
      }
    }
    const std::int64_t key = own.rows.next_key(0), step = own.rows.query[0] - query;
    if (key < 0 || step <= 0) return;
    own.ahead.add(k, kv_head, key - step, key - step + tile, sequence.nk);
    own.ahead.add(v, kv_head, key - step, key - step + tile, sequence.nk);
  }

  void add_edge_bias(const Span& span, std::int64_t begin, int length) {
    for (int r = span.lane_begin; r < std::min(span.lane_end, own.rows.count); ++r)
      for_each_edge(own.rows, r, problem.soft_edge->tau, begin, length, [&](int first, int count, const float* z) {
        float bias[tile], slope[tile];
        kernels.soft_edge(z, bias, slope, count);
        for (int n = 0; n < count; ++n) own.scores[(first + n) * tile + r] += bias[n];
      });
  }
};

}  // namespace

void ForwardPass::start(std::int64_t first_head, std::int64_t begin, int count) {
  RowTile& rows = own.rows;
  own.ahead.clear();
  rows.fill({problem, sequence}, first_head, begin, count);
  dropout.start(rows);
  for (int r = 0, to; r < count; r = to) {
    to = static_cast<int>(std::min<std::int64_t>(count, r + sequence.nq - rows.query[r]));  // rows of one head
    own.q.read_run(q, rows.head[r], r, to, rows.query[r]);
  }
  own.packed_q.pack(own.q, count, score_scale(problem, q.channels()));
  own.softmax.clear();
  own.out.clear();
}

void ForwardPass::finish(const Rows& out, const TensorView& lse) {
  const SoftmaxRows& of = own.softmax;
  const auto sum = [](const float* hi, const float* lo, int r) {
    return static_cast<double>(hi[r]) + static_cast<double>(lo[r]);
  };
  // An empty row keeps its zeros; every other one has sum > 0 (or NaN).
  const auto empty = [&](int r) { return of.m[r] == minus_infinity && sum(of.sum, of.sum_lo, r) == 0; };
  for (int r = 0; r < own.rows.count; ++r) {
    const std::int64_t head = own.rows.head[r], query = own.rows.query[r];
    const double weights = own.rounds ? sum(of.rounded, of.rounded_lo, r) : sum(of.sum, of.sum_lo, r);
    float* row = out.in_place() ? out.at<float>(head, query) : own.row.get();
    own.out.finish(r, empty(r) ? 1.0f : static_cast<float>(weights), row);
    if (row == own.row.get()) out.write(head, query, row, own.work.get());
  }
  if (!lse.present()) return;
  for (int r = 0; r < own.rows.count; ++r)
    *lse.at<float>(own.rows.head[r] * lse.strides[0] + own.rows.query[r] * lse.strides[1]) =
        empty(r) ? minus_infinity
                 : static_cast<float>(static_cast<double>(of.m[r]) + std::log(sum(of.sum, of.sum_lo, r)));
}

void CpuBackend::attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                   const AttentionOutputs& outputs) {
  const AttentionSizes sizes = attention_sizes(inputs);
  if (sizes.hq == 0 || sizes.hkv == 0 || sizes.batch == 0) return;
  const std::int64_t group = sizes.hq / sizes.hkv;

  // Task t of sequence b: row tile (t - first[b]) % tiles of kv head (t - first[b]) / tiles.
  std::vector<std::int64_t> first(static_cast<std::size_t>(sizes.batch) + 1, 0);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const std::int64_t tiles = (group * sequence_extent(inputs, b).nq + tile - 1) / tile;
    first[static_cast<std::size_t>(b) + 1] = first[static_cast<std::size_t>(b)] + sizes.hkv * tiles;
  }
  const std::int64_t tasks = first.back();
  if (tasks == 0) return;

  const int team = static_cast<int>(std::min<std::int64_t>(threads(), tasks));
  const LandmarkLists lists(problem, inputs, team);
  const bool pairs = runs_as_pairs(kernels_, inputs, score_scale(problem, sizes.d));
  std::vector<std::unique_ptr<ForwardScratch>> scratch;  // here, because an exception may not leave a parallel region
  for (int n = 0; n < team; ++n)
    scratch.push_back(std::make_unique<ForwardScratch>(kernels_, pairs, sizes, problem, lists.slots()));

  // Neighbouring tiles share keys: a thread takes many in a row, as long as all threads stay busy to the end.
  const bool few = group * sizes.nq <= few_rows;
  SharedTasks shared(tasks, team,
                     few ? std::clamp<std::int64_t>(tasks / (32 * team), 1, most_few_in_a_row) : most_in_a_row);
#pragma omp parallel num_threads(team)
  {
    const KernelScope scope(kernels_, pairs);
    ForwardScratch& own = *scratch[static_cast<std::size_t>(omp_get_thread_num())];
    std::optional<ForwardSequence> of;
    for (TaskRange range = shared.take(); range.begin < range.end; range = shared.take())
      for (std::int64_t n = range.begin; n < range.end; ++n) {
        const std::int64_t task = tasks - 1 - n;  // the longest causal tiles first
        const std::int64_t b = std::upper_bound(first.begin(), first.end(), task) - first.begin() - 1;
        if (!of || of->sequence.b != b) of.emplace(kernels_, inputs, outputs, sizes.packed, b);
        const std::int64_t rows = group * of->sequence.nq, tiles = (rows + tile - 1) / tile;
        const std::int64_t local = task - first[static_cast<std::size_t>(b)];
        const std::int64_t kv_head = local / tiles, begin = local % tiles * tile;

        TilePass pass{{kernels_, problem, of->sequence, lists, DropoutTile(kernels_, problem, b * sizes.hq), of->q,
                       of->k, of->v, kv_head, own}};
        const int count = static_cast<int>(std::min<std::int64_t>(tile, rows - begin));
        pass.start(kv_head * group, begin, count);
        if (count <= few_rows && !drops(problem)) {
          attend_few_rows(pass);
        } else {
          pass.foresee(of->out, of->lse, kv_head * group, n + 1 < range.end ? begin - tile : -1);
          if (lists.present()) pass.landmarks();
          pass.keys_by_position();
        }
        pass.finish(of->out, of->lse);
      }
  }
}

}  // namespace dsalt::internal
