// o_i = sum_{j in A(i)} exp(s_ij - lse_i) v_j,  s_ij = scale <q_i, k_j> + beta_ij      (docs/semantics.md, "Attention")
//
// Online softmax over tiles: 64 query rows (of one key/value head, so that the heads of a group share its keys) against
// the landmark blocks of their lists, then against the 64-key tiles that some row admits by position. Everything is
// accumulated in float32, sums of tiles with compensation; nothing larger than a tile is stored. Each row's arithmetic
// depends only on its own keys, in an order fixed by their indices: run, threads, batch and prefill are bitwise.
#include <algorithm>
#include <cmath>
#include <limits>

#include <omp.h>

#include "attention_tiles.hpp"
#include "cpu_backend.hpp"

namespace dsalt::internal {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// One thread's memory.
struct Scratch {
  Scratch(const AttentionSizes& sizes, const AttentionProblem& problem, std::int64_t slots)
      : width(padded(sizes.dv)),
        q(tile * padded(sizes.d)),
        packed_q(tile * sizes.d),
        k(tile * padded(sizes.d)),
        v(tile * width),
        out(2 * tile * width),
        work(std::max(padded(sizes.d), width)),
        scores(tile * tile),
        keep(problem.dropout ? tile * tile : 0),
        list(slots) {}
  std::int64_t width;  // of a row of v and out
  Array<float> q, packed_q, k, v, out, work, scores, keep;
  ListScratch list;
  RowTile rows;
  TileMask mask;
  LandmarkRun run;
  alignas(64) float m[tile], sum[tile], sum_lo[tile], alpha[tile];
  const float* k_rows[tile];
  const float* v_rows[tile];
  float* out_rows[tile];
};

/// The pass of one tile of rows over its keys.
struct TilePass {
  const Kernels& kernels;
  const AttentionProblem& problem;
  const AttentionSequence& sequence;
  const LandmarkLists& lists;
  const DropoutTile dropout;
  Rows q, k, v;
  std::int64_t kv_head;
  Scratch& own;

  void start(std::int64_t first_head, std::int64_t begin, int count) {
    RowTile& rows = own.rows;
    rows.fill({problem, sequence}, first_head, begin, count);
    const double scale = score_scale(problem, q.channels());
    const std::int64_t stride = padded(q.channels());
    const float* pointers[tile];
    for (int r = 0; r < count; ++r) {
      float* row = own.q.get() + r * stride;
      q.read_scaled(rows.head[r], rows.query[r], scale, row, own.work.get());
      pointers[r] = row;
    }
    kernels.transpose(pointers, count, q.channels(), own.packed_q.get());
    std::fill(own.m, own.m + tile, minus_infinity);
    std::fill(own.sum, own.sum + tile, 0.0f);
    std::fill(own.sum_lo, own.sum_lo + tile, 0.0f);
    std::fill(own.out.get(), own.out.get() + 2 * tile * own.width, 0.0f);
    for (int r = 0; r < count; ++r) own.out_rows[r] = own.out.get() + r * own.width;
  }

  /// Rows n of k and v are key key_of(n), n in [begin, end).
  template <class KeyOf>
  void read_keys(int begin, int end, KeyOf&& key_of) {
    const std::int64_t k_stride = padded(k.channels());
    for (int n = begin; n < end; ++n) {
      own.k_rows[n] = k.read(kv_head, key_of(n), own.k.get() + n * k_stride);
      own.v_rows[n] = v.read_padded(kv_head, key_of(n), own.v.get() + n * own.width);
    }
  }

  /// Scores are masked: fold keys [key_begin, key_end) into the rows.
  void fold(int key_begin, int key_end, int row_begin, int row_end) {
    float* s = own.scores.get() + key_begin * tile;
    const int count = key_end - key_begin, lane_begin = lanes_begin(row_begin), lane_end = lanes_end(row_end);
    kernels.softmax(s, count, own.m, own.sum, own.sum_lo, own.alpha, lane_begin, lane_end);
    if (dropout.active()) kernels.multiply(s, own.keep.get() + key_begin * tile, count * tile);
    kernels.accumulate(s + row_begin, tile, 1, own.v_rows + key_begin, count, own.width, own.alpha + row_begin,
                       own.out_rows + row_begin, tile * own.width, row_end - row_begin);
  }

  void landmarks() {
    const RowTile& rows = own.rows;
    LandmarkRun& run = own.run;
    for (int row = 0; row < rows.count; row = run.row_end) {
      run.fill(rows, row, lists, sequence, problem.bidirectional);
      const LandmarkList list = lists.get(sequence, run.list, own.list);
      const int reachable = run.reachable(list);
      const int lane_begin = lanes_begin(run.row_begin), lane_end = lanes_end(run.row_end);
      for (int block = 0; block < reachable; block += tile) {
        const int count = std::min(tile, reachable - block);
        const std::int32_t* index = list.index + block;
        read_keys(0, count, [&](int n) { return index[n]; });
        kernels.scores(own.packed_q.get(), own.k_rows, count, k.channels(), lane_begin, lane_end, own.scores.get());
        kernels.mask_landmarks(own.scores.get(), count, index, list.weight + block, run.first, run.last, run.newest,
                               lane_begin, lane_end);
        if (dropout.active()) dropout.fill(rows, run, index, count, own.keep.get());
        fold(0, count, run.row_begin, run.row_end);
      }
    }
  }

  void keys_by_position() {
    const RowTile& rows = own.rows;
    TileMask& mask = own.mask;
    for (std::int64_t next = rows.next_key(0); next >= 0;) {
      const std::int64_t begin = next / tile * tile;
      const int length = static_cast<int>(std::min<std::int64_t>(tile, sequence.nk - begin));
      mask.cut(rows, begin, length);
      read_keys(mask.key_begin, mask.key_end, [&](int n) { return begin + n; });
      const int count = mask.key_end - mask.key_begin;
      const int lane_begin = lanes_begin(mask.row_begin), lane_end = lanes_end(mask.row_end);
      float* s = own.scores.get() + mask.key_begin * tile;
      kernels.scores(own.packed_q.get(), own.k_rows + mask.key_begin, count, k.channels(), lane_begin, lane_end, s);
      if (mask.partial) kernels.mask_lanes(s, count, mask.key_begin, mask.first, mask.last, lane_begin, lane_end);
      if (problem.soft_edge) add_edge_bias(begin);
      if (dropout.active()) dropout.fill(rows, mask, begin, tile, 1, own.keep.get());
      fold(mask.key_begin, mask.key_end, mask.row_begin, mask.row_end);
      next = rows.next_key(begin + tile);
    }
  }

  void add_edge_bias(std::int64_t begin) {
    for (int r = own.mask.row_begin; r < own.mask.row_end; ++r)
      for_each_edge(own.rows, r, problem.soft_edge->tau, begin, own.mask.key_begin, own.mask.key_end,
                    [&](int first, int count, const float* z) {
                      float bias[tile], slope[tile];
                      kernels.soft_edge(z, bias, slope, count);
                      for (int n = 0; n < count; ++n) own.scores[(first + n) * tile + r] += bias[n];
                    });
  }

  void finish(const Rows& out, const TensorView& lse) {
    for (int r = 0; r < own.rows.count; ++r) {
      const std::int64_t head = own.rows.head[r], query = own.rows.query[r];
      float* row = own.out.get() + r * own.width;
      const double sum = static_cast<double>(own.sum[r]) + static_cast<double>(own.sum_lo[r]);
      const bool empty = own.m[r] == minus_infinity && sum == 0;
      // An empty row keeps its zeros; every other one has sum > 0 (or NaN).
      kernels.finish(row, row + tile * own.width, empty ? 1.0f : static_cast<float>(sum), row, own.width);
      out.write(head, query, row, own.work.get());
      if (lse.present())
        *lse.at<float>(head * lse.strides[0] + query * lse.strides[1]) =
            empty ? minus_infinity : static_cast<float>(static_cast<double>(own.m[r]) + std::log(sum));
    }
  }
};

}  // namespace

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
  std::vector<std::unique_ptr<Scratch>> scratch;  // here, because an exception may not leave a parallel region
  for (int n = 0; n < team; ++n) scratch.push_back(std::make_unique<Scratch>(sizes, problem, lists.slots()));

#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (std::int64_t n = 0; n < tasks; ++n) {
    const std::int64_t task = tasks - 1 - n;  // the longest causal tiles first
    const std::int64_t b = std::upper_bound(first.begin(), first.end(), task) - first.begin() - 1;
    const AttentionSequence sequence = attention_sequence(inputs, b);
    const std::int64_t rows = group * sequence.nq, tiles = (rows + tile - 1) / tile;
    const std::int64_t local = task - first[static_cast<std::size_t>(b)];
    const std::int64_t kv_head = local / tiles, begin = local % tiles * tile;

    TilePass pass{kernels_,
                  problem,
                  sequence,
                  lists,
                  DropoutTile(problem, b, sizes.hq),
                  Rows(kernels_, sequence.q),
                  Rows(kernels_, sequence.k),
                  Rows(kernels_, sequence.v),
                  kv_head,
                  *scratch[static_cast<std::size_t>(omp_get_thread_num())]};
    pass.start(kv_head * group, begin, static_cast<int>(std::min<std::int64_t>(tile, rows - begin)));
    if (lists.present()) pass.landmarks();
    pass.keys_by_position();
    pass.finish(Rows(kernels_, sequence.query_rows(outputs.out, sizes.packed)),
                sequence.query_rows(outputs.lse, sizes.packed));
  }
}

}  // namespace dsalt::internal
