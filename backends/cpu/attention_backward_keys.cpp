// The key pass of attention's backward, one task per tile of 64 keys of a key/value head, lanes over keys:
//
//   dk_j = scale sum_{h in group, i} ds_ij q_i        dv_j = sum_{h, i} P_ij keep_ij do_i
//
// over the query tiles whose rows admit some key of the tile by position, in ascending (h, i); then the sums that came
// through landmark lists are added. Rows past k_lengths are written as 0, rows outside a pack's sequences not at all.
#include <omp.h>

#include "attention_backward.hpp"

namespace dsalt::internal {
namespace {

struct Scratch {
  explicit Scratch(const BackwardCall& call)
      : d(padded(call.sizes.d)),
        dv(padded(call.sizes.dv)),
        k(tile * d),
        v(tile * dv),
        packed_k(tile * call.sizes.d),
        packed_v(tile * call.sizes.dv),
        q(tile * d),
        dout(tile * dv),
        dk_sum(2 * tile * d),
        dv_sum(2 * tile * dv),
        work(std::max(d, dv)),
        p(tile * tile),
        dp(tile * tile),
        keep(call.problem.dropout ? tile * tile : 0) {
    for (int r = 0; r < tile; ++r) {
      q_rows[r] = q.get() + r * d;
      dk_rows[r] = dk_sum.get() + r * d;
      dv_rows[r] = dv_sum.get() + r * dv;
    }
  }
  std::int64_t d, dv;
  Array<float> k, v, packed_k, packed_v, q, dout, dk_sum, dv_sum, work, p, dp, keep;
  RowTile rows;
  TileMask mask;
  const float* q_rows[tile];
  const float* dout_rows[tile];
  float* dk_rows[tile];
  float* dv_rows[tile];
};

struct KeyPass {
  const BackwardCall& call;
  const AttentionSequence& sequence;
  const LandmarkGradients& landmarks;
  const DropoutTile dropout;
  Rows q, k, v, dout;
  std::int64_t kv_head, start;  // the tile's first key
  int length;                   // its valid keys
  Scratch& own;

  const Kernels& kernels() const { return call.kernels; }

  void pack() {
    const float* pointers[tile];
    for (int n = 0; n < length; ++n) pointers[n] = k.read(kv_head, start + n, own.k.get() + n * own.d);
    kernels().transpose(pointers, length, k.channels(), own.packed_k.get());
    for (int n = 0; n < length; ++n) pointers[n] = v.read(kv_head, start + n, own.v.get() + n * own.dv);
    kernels().transpose(pointers, length, v.channels(), own.packed_v.get());
    std::fill(own.dk_sum.get(), own.dk_sum.get() + 2 * tile * own.d, 0.0f);
    std::fill(own.dv_sum.get(), own.dv_sum.get() + 2 * tile * own.dv, 0.0f);
  }

  void add_queries() {
    const std::int64_t per_head = call.tiles(sequence);
    for (std::int64_t head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head) {
      const std::int64_t first = call.first_tile[static_cast<std::size_t>(sequence.b)] + head * per_head;
      for (std::int64_t t = 0; t < per_head; ++t) {
        const KeyRange& reach = call.reach[first + t];
        if (reach.begin < start + length && reach.end > start) add_tile(head, t * tile);
      }
    }
  }

  void add_tile(std::int64_t head, std::int64_t begin) {
    RowTile& rows = own.rows;
    TileMask& mask = own.mask;
    rows.fill({call.problem, sequence}, head, begin,
              static_cast<int>(std::min<std::int64_t>(tile, sequence.nq - begin)));
    if (!mask.cut(rows, start, length)) return;
    const int row = mask.row_begin, count = mask.row_end - mask.row_begin;
    const int lane_begin = lanes_begin(mask.key_begin), lane_end = lanes_end(mask.key_end);
    for (int r = row; r < mask.row_end; ++r) {
      q.read_scaled(head, begin + r, call.scale, own.q.get() + r * own.d, own.work.get());
      own.dout_rows[r] = dout.read_padded(head, begin + r, own.dout.get() + r * own.dv);
    }
    float *p = own.p.get() + row * tile, *dp = own.dp.get() + row * tile;
    kernels().scores(own.packed_k.get(), own.q_rows + row, count, k.channels(), lane_begin, lane_end, p);
    if (!covers(lane_begin, lane_end))
      kernels().mask_rows(p, count, mask.first + row, mask.last + row, lane_begin, lane_end);
    if (call.problem.soft_edge) add_edge_bias();
    const std::int64_t at = call.first_row[static_cast<std::size_t>(sequence.b)] + head * sequence.nq + begin + row;
    kernels().probabilities_rows(p, count, call.lse.get() + at, call.norm.get() + at, lane_begin, lane_end);

    const float* keep = nullptr;
    if (dropout.active()) {
      dropout.fill(rows, mask, start, 1, tile, own.keep.get());
      keep = own.keep.get() + row * tile;
    }
    kernels().scores(own.packed_v.get(), own.dout_rows + row, count, v.channels(), lane_begin, lane_end, dp);
    kernels().score_gradients_rows(p, dp, keep, call.delta.get() + at, count, lane_begin, lane_end);

    const int key = mask.key_begin, keys = mask.key_end - mask.key_begin;
    if (call.gradients.dv.present())
      kernels().accumulate(p + key, tile, 1, own.dout_rows + row, count, own.dv, nullptr, own.dv_rows + key,
                           tile * own.dv, keys);
    if (call.gradients.dk.present())
      kernels().accumulate(dp + key, tile, 1, own.q_rows + row, count, own.d, nullptr, own.dk_rows + key, tile * own.d,
                           keys);
  }

  /// Whether every row in use admits every lane in use.
  bool covers(int lane_begin, int lane_end) const {
    for (int r = own.mask.row_begin; r < own.mask.row_end; ++r)
      if (own.mask.first[r] > lane_begin || own.mask.last[r] < lane_end - 1) return false;
    return true;
  }

  void add_edge_bias() {
    for (int r = own.mask.row_begin; r < own.mask.row_end; ++r)
      for_each_edge(own.rows, r, call.problem.soft_edge->tau, start, own.mask.key_begin, own.mask.key_end,
                    [&](int first, int count, const float* z) {
                      float bias[tile], slope[tile];
                      kernels().soft_edge(z, bias, slope, count);
                      for (int n = 0; n < count; ++n) own.p[r * tile + first + n] += bias[n];
                    });
  }

  void store(const TensorView& gradient, float* const* sums, std::int64_t width,
             const float* (LandmarkGradients::*through_lists)(std::int64_t, std::int64_t, std::int64_t) const) {
    const Rows rows(kernels(), gradient);
    for (int n = 0; n < length; ++n) {
      float* row = sums[n];
      kernels().finish(row, row + tile * width, 1.0f, row, width);
      if (const float* more = (landmarks.*through_lists)(sequence.b, kv_head, start + n))
        for (std::int64_t c = 0; c < width; ++c) row[c] += more[c] + more[width + c];
      rows.write(kv_head, start + n, row, own.work.get());
    }
  }
};

/// Keys [start, end) of a padded tensor [Hkv, Nk, ...] that lie past k_lengths.
void store_zeros(const Kernels& kernels, const TensorView& gradient, std::int64_t kv_head, std::int64_t start,
                 std::int64_t end, Array<float>& zeros, Array<float>& work) {
  const Rows rows(kernels, gradient);
  for (std::int64_t j = start; j < end; ++j) rows.write(kv_head, j, zeros.get(), work.get());
}

}  // namespace

void attention_backward_keys(const BackwardCall& call, const LandmarkGradients& landmarks) {
  const AttentionGradients& gradients = call.gradients;
  const auto written = [&](const SequenceExtent& extent) { return call.sizes.packed ? extent.nk : call.sizes.nk; };
  std::vector<std::int64_t> first(static_cast<std::size_t>(call.sizes.batch) + 1, 0);
  for (std::int64_t b = 0; b < call.sizes.batch; ++b) {
    const std::int64_t tiles = (written(sequence_extent(call.inputs, b)) + tile - 1) / tile;
    first[static_cast<std::size_t>(b) + 1] = first[static_cast<std::size_t>(b)] + call.sizes.hkv * tiles;
  }
  const std::int64_t tasks = first.back();
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (int n = 0; n < call.threads; ++n) scratch.push_back(std::make_unique<Scratch>(call));

#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (std::int64_t task = 0; task < tasks; ++task) {  // causal: the first keys have the most queries
    const std::int64_t b = sequence_of(first, task);
    const AttentionSequence sequence = attention_sequence(call.inputs, b);
    const std::int64_t rows = written(sequence.extent), tiles = (rows + tile - 1) / tile;
    const std::int64_t local = task - first[static_cast<std::size_t>(b)];
    const std::int64_t kv_head = local / tiles, start = local % tiles * tile;
    const std::int64_t end = std::min(rows, start + tile);
    const int length = static_cast<int>(std::clamp<std::int64_t>(sequence.nk - start, 0, end - start));
    Scratch& own = *scratch[static_cast<std::size_t>(omp_get_thread_num())];
    const auto whole = [&](const TensorView& view) {
      return sequence_rows(view, call.sizes.packed, b, sequence.extent.k_start, rows);
    };
    const TensorView dk = whole(gradients.dk), dv = whole(gradients.dv);
    KeyPass pass{call,
                 sequence,
                 landmarks,
                 DropoutTile(call.problem, b, call.sizes.hq),
                 Rows(call.kernels, sequence.q),
                 Rows(call.kernels, sequence.k),
                 Rows(call.kernels, sequence.v),
                 Rows(call.kernels, sequence.query_rows(call.saved.dout, call.sizes.packed)),
                 kv_head,
                 start,
                 length,
                 own};
    if (length > 0) {
      pass.pack();
      pass.add_queries();
      if (dk.present()) pass.store(dk, own.dk_rows, own.d, &LandmarkGradients::dk);
      if (dv.present()) pass.store(dv, own.dv_rows, own.dv, &LandmarkGradients::dv);
    }
    if (start + length < end) {
      std::fill(own.dk_sum.get(), own.dk_sum.get() + own.d, 0.0f);
      std::fill(own.dv_sum.get(), own.dv_sum.get() + own.dv, 0.0f);
      if (dk.present()) store_zeros(call.kernels, dk, kv_head, start + length, end, own.dk_sum, own.work);
      if (dv.present()) store_zeros(call.kernels, dv, kv_head, start + length, end, own.dv_sum, own.work);
    }
  }
}

}  // namespace dsalt::internal
