// The query pass of attention's backward, one task per tile of 64 rows of a head, lanes over rows:
//
//   delta_i = <o_i, do_i>          dq_i = scale sum_j ds_ij k_j
//   dw_i = sum over the soft edge of ds_ij (1 - sigma(z_ij)) / tau,  z_ij = (w_i - e_ij) / tau
//
// delta and lse. float32: delta from the stored out in double, P = exp(s - stored lse). Their roundings are of the size
// of the forward's own, except when |lse| is large (its rounding then scales every P of the row) and in bfloat16 and
// float16 (out is rounded to 8 or 11 bits). Such rows are swept twice: the first sweep gives norm_i = 1 / sum_j P_ij
// and delta_i = norm_i sum_j P_ij keep_ij dP_ij, in float32 with float64 sums over tiles, so that neither rounding
// remains.
#include <cmath>

#include <omp.h>

#include "attention_backward.hpp"

namespace dsalt::internal {
namespace {

/// Above it the rounding of a float32 lse is no longer small beside the rounding of a score's sum of products.
constexpr float large_lse = 256;

struct Scratch {
  explicit Scratch(const BackwardCall& call)
      : d(padded(call.sizes.d)),
        dv(padded(call.sizes.dv)),
        q(tile * d),
        packed_q(tile * call.sizes.d),
        dout(tile * dv),
        packed_dout(tile * call.sizes.dv),
        k(tile * d),
        v(tile * dv),
        dq(2 * tile * d),
        work(std::max(d, dv)),
        p(tile * tile),
        dp(tile * tile),
        keep(call.problem.dropout ? tile * tile : 0),
        list(call.lists.slots()) {
    for (int r = 0; r < tile; ++r) dq_rows[r] = dq.get() + r * d;
  }
  std::int64_t d, dv;
  Array<float> q, packed_q, dout, packed_dout, k, v, dq, work, p, dp, keep;
  ListScratch list;
  RowTile rows;
  TileMask mask;
  LandmarkRun run;
  alignas(64) float lse[tile], norm[tile], delta[tile];
  double sum_p[tile], sum_pd[tile], dwindow[tile];
  const float* k_rows[tile];
  const float* v_rows[tile];
  float* dq_rows[tile];
};

/// Some keys against some rows of the tile, P and dP computed: `run` and `list` for landmarks, else keys from `start`.
struct Block {
  int key_begin, key_end, row_begin, row_end;
  std::int64_t start;
  const LandmarkRun* run;
  int first_entry;
  int lane_begin() const { return lanes_begin(row_begin); }
  int lane_end() const { return lanes_end(row_end); }
  int count() const { return key_end - key_begin; }
};

struct QueryPass {
  BackwardCall& call;
  const AttentionSequence& sequence;
  LandmarkGradients& landmarks;
  const DropoutTile dropout;
  Rows q, k, v, dout;
  std::int64_t head;
  std::int64_t first_row;  // of the tile, in call.lse and its like
  std::int64_t round_tile;
  Scratch& own;

  const Kernels& kernels() const { return call.kernels; }
  std::int64_t kv_head() const { return head / call.group; }
  const float* keep() const { return dropout.active() ? own.keep.get() : nullptr; }

  void start(std::int64_t begin, int count) {
    own.rows.fill({call.problem, sequence}, head, begin, count);
    const float* pointers[tile];
    for (int r = 0; r < count; ++r) {
      float* row = own.q.get() + r * own.d;
      q.read_scaled(head, begin + r, call.scale, row, own.work.get());
      pointers[r] = row;
    }
    kernels().transpose(pointers, count, q.channels(), own.packed_q.get());
    for (int r = 0; r < count; ++r) pointers[r] = dout.read(head, begin + r, own.dout.get() + r * own.dv);
    kernels().transpose(pointers, count, dout.channels(), own.packed_dout.get());
    statistics(pointers);
  }

  /// From the stored out and lse.
  void statistics(const float* const* dout_rows) {
    const Rows out(kernels(), sequence.query_rows(call.saved.out, call.sizes.packed));
    const TensorView lse = sequence.query_rows(call.saved.lse, call.sizes.packed);
    const bool narrow = call.inputs.q.dtype != DType::f32;
    for (int r = 0; r < own.rows.count; ++r) {
      const std::int64_t query = own.rows.query[r];
      own.lse[r] = *lse.at<float>(head * lse.strides[0] + query * lse.strides[1]);
      own.norm[r] = 1;
      double product = 0;
      if (!narrow) {
        const float* o = out.read(head, query, own.work.get());
        for (std::int64_t c = 0; c < out.channels(); ++c)
          product += static_cast<double>(o[c]) * static_cast<double>(dout_rows[r][c]);
      }
      own.delta[r] = static_cast<float>(product - lse_gradient(r));
    }
    for (int r = own.rows.count; r < tile; ++r) own.lse[r] = own.norm[r] = own.delta[r] = 0;
  }

  double lse_gradient(int r) const {
    if (!call.saved.dlse.present()) return 0;
    const TensorView dlse = sequence.query_rows(call.saved.dlse, call.sizes.packed);
    return static_cast<double>(*dlse.at<float>(head * dlse.strides[0] + own.rows.query[r] * dlse.strides[1]));
  }

  /// Whether the row's stored values are replaced by a sweep of its own.
  bool refined(int r) const {
    return std::isfinite(own.lse[r]) && (call.inputs.q.dtype != DType::f32 || std::fabs(own.lse[r]) > large_lse);
  }

  /// Calls visit(block) for every group of keys that the rows admit.
  template <class Visit>
  void sweep(Visit&& visit) {
    if (call.lists.present()) sweep_landmarks(visit);
    const RowTile& rows = own.rows;
    TileMask& mask = own.mask;
    for (std::int64_t next = rows.next_key(0); next >= 0;) {
      const std::int64_t begin = next / tile * tile;
      mask.cut(rows, begin, static_cast<int>(std::min<std::int64_t>(tile, sequence.nk - begin)));
      const Block block{mask.key_begin, mask.key_end, mask.row_begin, mask.row_end, begin, nullptr, 0};
      scores(block, [&](int n) { return begin + n; });
      float* s = own.p.get() + block.key_begin * tile;
      if (mask.partial)
        kernels().mask_lanes(s, block.count(), block.key_begin, mask.first, mask.last, block.lane_begin(),
                             block.lane_end());
      if (call.problem.soft_edge)
        edges(block, [&](int r, int first, int count, const float* bias, const float*) {
          for (int n = 0; n < count; ++n) own.p[(first + n) * tile + r] += bias[n];
        });
      if (dropout.active()) dropout.fill(rows, mask, begin, tile, 1, own.keep.get());
      finish_block(block, visit);
      next = rows.next_key(begin + tile);
    }
  }

  template <class Visit>
  void sweep_landmarks(Visit&& visit) {
    const RowTile& rows = own.rows;
    LandmarkRun& run = own.run;
    for (int row = 0; row < rows.count; row = run.row_end) {
      run.fill(rows, row, call.lists, sequence, call.problem.bidirectional);
      const LandmarkList list = call.lists.get(sequence, run.list, own.list);
      const int reachable = run.reachable(list);
      for (int entry = 0; entry < reachable; entry += tile) {
        const Block block{0, std::min(tile, reachable - entry), run.row_begin, run.row_end, 0, &run, entry};
        const std::int32_t* index = list.index + entry;
        scores(block, [&](int n) { return index[n]; });
        kernels().mask_landmarks(own.p.get(), block.count(), index, list.weight + entry, run.first, run.last,
                                 run.newest, block.lane_begin(), block.lane_end());
        if (dropout.active()) dropout.fill(rows, run, index, block.count(), own.keep.get());
        finish_block(block, visit);
      }
    }
  }

  template <class KeyOf>
  void scores(const Block& block, KeyOf&& key_of) {
    for (int n = block.key_begin; n < block.key_end; ++n) {
      own.k_rows[n] = k.read_padded(kv_head(), key_of(n), own.k.get() + n * own.d);
      own.v_rows[n] = v.read(kv_head(), key_of(n), own.v.get() + n * own.dv);
    }
    const std::int64_t at = block.key_begin * tile;
    kernels().scores(own.packed_q.get(), own.k_rows + block.key_begin, block.count(), k.channels(), block.lane_begin(),
                     block.lane_end(), own.p.get() + at);
    kernels().scores(own.packed_dout.get(), own.v_rows + block.key_begin, block.count(), v.channels(),
                     block.lane_begin(), block.lane_end(), own.dp.get() + at);
  }

  template <class Visit>
  void finish_block(const Block& block, Visit&& visit) {
    kernels().probabilities_lanes(own.p.get() + block.key_begin * tile, block.count(), own.lse, own.norm,
                                  block.lane_begin(), block.lane_end());
    visit(block);
  }

  /// body(row, first key of the tile, count, bias, slope) for the soft edge of a block of keys by position.
  template <class Body>
  void edges(const Block& block, Body&& body) {
    for (int r = block.row_begin; r < block.row_end; ++r)
      for_each_edge(own.rows, r, call.problem.soft_edge->tau, block.start, block.key_begin, block.key_end,
                    [&](int first, int count, const float* z) {
                      float bias[tile], slope[tile];
                      kernels().soft_edge(z, bias, slope, count);
                      body(r, first, count, static_cast<const float*>(bias), static_cast<const float*>(slope));
                    });
  }

  void refine() {
    bool any = false;
    for (int r = 0; r < own.rows.count; ++r) any = any || refined(r);
    if (!any) return;
    std::fill(own.sum_p, own.sum_p + tile, 0.0);
    std::fill(own.sum_pd, own.sum_pd + tile, 0.0);
    sweep([&](const Block& block) {
      const std::int64_t at = block.key_begin * tile;
      kernels().row_sums(own.p.get() + at, own.dp.get() + at, keep() ? keep() + at : nullptr, block.count(), own.sum_p,
                         own.sum_pd, block.lane_begin(), block.lane_end());
    });
    for (int r = 0; r < own.rows.count; ++r) {
      if (!refined(r) || !(own.sum_p[r] > 0)) continue;
      own.norm[r] = static_cast<float>(1 / own.sum_p[r]);
      own.delta[r] = static_cast<float>(own.sum_pd[r] / own.sum_p[r] - lse_gradient(r));
    }
  }

  void publish() {
    std::copy(own.lse, own.lse + own.rows.count, call.lse.get() + first_row);
    std::copy(own.norm, own.norm + own.rows.count, call.norm.get() + first_row);
    std::copy(own.delta, own.delta + own.rows.count, call.delta.get() + first_row);
  }

  bool wants_sweep() const {
    const AttentionGradients& g = call.gradients;
    return g.dq.present() || (g.dwindow.present() && call.problem.soft_edge) || landmarks.active();
  }

  void gradients() {
    const AttentionGradients& wanted = call.gradients;
    const bool edge_gradient = wanted.dwindow.present() && call.problem.soft_edge;
    std::fill(own.dq.get(), own.dq.get() + 2 * tile * own.d, 0.0f);
    std::fill(own.dwindow, own.dwindow + tile, 0.0);
    LandmarkBlock* stored = nullptr;
    if (landmarks.active()) landmarks.begin_tile(round_tile);
    sweep([&](const Block& block) {
      const std::int64_t at = block.key_begin * tile;
      float *p = own.p.get() + at, *ds = own.dp.get() + at;
      kernels().score_gradients_lanes(p, ds, keep() ? keep() + at : nullptr, own.delta, block.count(),
                                      block.lane_begin(), block.lane_end());
      if (wanted.dq.present())
        kernels().accumulate(ds + block.row_begin, tile, 1, own.k_rows + block.key_begin, block.count(), own.d, nullptr,
                             own.dq_rows + block.row_begin, tile * own.d, block.row_end - block.row_begin);
      if (block.run && landmarks.active()) {
        if (block.first_entry == 0) stored = open_block(*block.run);
        store_block(*stored, block, p, ds);
      }
      if (!block.run && edge_gradient)
        edges(block, [&](int r, int first, int count, const float*, const float* slope) {
          for (int n = 0; n < count; ++n)
            own.dwindow[r] += static_cast<double>(own.dp[(first + n) * tile + r]) * static_cast<double>(slope[n]);
        });
    });
    if (wanted.dq.present()) store_dq();
  }

  LandmarkBlock* open_block(const LandmarkRun& run) {
    const LandmarkList list = call.lists.get(sequence, run.list, own.list);
    return &landmarks.add(round_tile, own.rows, run, list, run.reachable(list));
  }

  /// The tile's columns of the run, as [entry, row].
  void store_block(const LandmarkBlock& stored, const Block& block, const float* p, const float* ds) {
    for (int n = 0; n < block.count(); ++n) {
      const std::int64_t to = static_cast<std::int64_t>(block.first_entry + n) * stored.rows;
      double sum = 0;
      for (int r = 0; r < stored.rows; ++r) {
        const int from = n * tile + block.row_begin + r;
        stored.p[to + r] = p[from];
        stored.ds[to + r] = ds[from];
        sum += static_cast<double>(ds[from]);
      }
      stored.slot_sum[block.first_entry + n] = sum;
    }
  }

  void store_dq() {
    const Rows dq(kernels(), sequence.query_rows(call.gradients.dq, call.sizes.packed));
    for (int r = 0; r < own.rows.count; ++r) {
      float* row = own.dq_rows[r];
      kernels().finish(row, row + tile * own.d, 1.0f, row, own.d);
      float* scaled = own.q.get();  // no longer needed: its transposed copy is
      kernels().scaled(row, call.scale, scaled, own.d);
      dq.write(head, own.rows.query[r], scaled, own.work.get());
    }
  }

  void store_dwindow() {
    if (!call.gradients.dwindow.present()) return;
    const TensorView dwindow = sequence.query_rows(call.gradients.dwindow, call.sizes.packed);
    const bool shared = dwindow.shape[0] == 1 && call.sizes.hq > 1;
    for (int r = 0; r < own.rows.count; ++r) {
      const double value = call.problem.soft_edge ? own.dwindow[r] / call.problem.soft_edge->tau : 0;
      if (shared && call.problem.soft_edge)
        call.window_gradient[first_row + r] = value;
      else if (!shared || head == 0)
        store_double(dwindow, (shared ? 0 : head) * dwindow.strides[0] + own.rows.query[r] * dwindow.strides[1], value);
    }
  }
};

/// dwindow of a window that all heads share: the sum over heads in ascending order.
void sum_window_gradients(const BackwardCall& call) {
  if (!call.gradients.dwindow.present() || call.gradients.dwindow.shape[1] != 1 || call.sizes.hq == 1) return;
  if (!call.problem.soft_edge) return;
#pragma omp parallel for schedule(dynamic, 16) num_threads(call.threads)
  for (std::int64_t b = 0; b < call.sizes.batch; ++b) {
    const AttentionSequence sequence = attention_sequence(call.inputs, b);
    const TensorView dwindow = sequence.query_rows(call.gradients.dwindow, call.sizes.packed);
    const double* rows = call.window_gradient.get() + call.first_row[static_cast<std::size_t>(b)];
    for (std::int64_t i = 0; i < sequence.nq; ++i) {
      double sum = 0;
      for (std::int64_t h = 0; h < call.sizes.hq; ++h) sum += rows[h * sequence.nq + i];
      store_double(dwindow, i * dwindow.strides[1], sum);
    }
  }
}

KeyRange reach_of(const RowTile& rows) {
  KeyRange reach{INT64_MAX, 0};
  for (int r = 0; r < rows.count; ++r) {
    if (rows.range[r].begin >= rows.range[r].end) continue;
    reach.begin = std::min(reach.begin, rows.range[r].begin);
    reach.end = std::max(reach.end, rows.range[r].end);
  }
  return reach;
}

}  // namespace

void attention_backward_queries(BackwardCall& call, LandmarkGradients& landmarks) {
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (int n = 0; n < call.threads; ++n) scratch.push_back(std::make_unique<Scratch>(call));
  const std::int64_t tiles = call.first_tile.back();
  const std::int64_t round = landmarks.active() ? landmarks.tiles_per_round() : std::max<std::int64_t>(tiles, 1);
  for (std::int64_t first = 0; first < tiles; first += round) {
    const std::int64_t count = std::min(round, tiles - first);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t t = first + (count - 1 - n);  // the longest causal tiles first
      const std::int64_t b = sequence_of(call.first_tile, t);
      const AttentionSequence sequence = attention_sequence(call.inputs, b);
      const std::int64_t local = t - call.first_tile[static_cast<std::size_t>(b)], per_head = call.tiles(sequence);
      const std::int64_t head = local / per_head, begin = local % per_head * tile;
      QueryPass pass{call,
                     sequence,
                     landmarks,
                     DropoutTile(call.problem, b, call.sizes.hq),
                     Rows(call.kernels, sequence.q),
                     Rows(call.kernels, sequence.k),
                     Rows(call.kernels, sequence.v),
                     Rows(call.kernels, sequence.query_rows(call.saved.dout, call.sizes.packed)),
                     head,
                     call.first_row[static_cast<std::size_t>(b)] + head * sequence.nq + begin,
                     t - first,
                     *scratch[static_cast<std::size_t>(omp_get_thread_num())]};
      pass.start(begin, static_cast<int>(std::min<std::int64_t>(tile, sequence.nq - begin)));
      call.reach[t] = reach_of(pass.own.rows);
      pass.refine();
      pass.publish();
      if (pass.wants_sweep()) pass.gradients();
      pass.store_dwindow();
    }
    if (landmarks.active()) landmarks.fold(first, count);
  }
  sum_window_gradients(call);
}

}  // namespace dsalt::internal
