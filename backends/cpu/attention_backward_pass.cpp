// The query pass of attention's backward, one task per tile of 64 rows of a head, lanes over rows:
//
//   delta_i = <o_i, do_i>          dq_i = scale sum_j ds_ij k_j
//   dw_i = sum over the soft edge of ds_ij (1 - sigma(z_ij)) / tau,  z_ij = (w_i - e_ij) / tau
//
// and of the keys it admits by position, dk and dv (attention_backward_keys.cpp). Key tiles are walked downwards.
//
// delta comes from the stored out in double, P = exp(s - lse) from the stored lse. Their roundings are of the size of
// the forward's own, except when |lse| is large: its rounding then scales every P of the row. Such rows do not use the
// stored values: a first sweep finds m_i = max_j s_ij, a second one gives norm_i = 1 / sum_j P_ij and
// delta_i = norm_i sum_j P_ij keep_ij dP_ij with P = exp(s - m), in float32 with float64 sums over tiles.
#include "attention_backward_pass.hpp"

#include <cmath>
#include <limits>
#include <numeric>

namespace dsalt::internal {
namespace {

/// Keys whose rows and sums stay in a core's cache from one row tile to the next, roughly.
constexpr std::int64_t cached_keys = 512;

/// Above it the rounding of a float32 lse is no longer small beside the rounding of a score's sum of products.
constexpr float large_lse = 256;

}  // namespace

void QueryPass::start() {
  own.ahead.clear();  // it points into the pass before this one
  const int count = static_cast<int>(std::min<std::int64_t>(tile, sequence.nq - place.begin));
  own.rows.fill({call.problem, sequence}, place.head, place.begin, count);
  dropout.start(own.rows);
  const auto query = [&](int r) { return place.begin + r; };
  own.q.read(q, place.head, 0, count, query);
  own.dout.read(dout, place.head, 0, count, query);
  own.packed_q.pack(own.q, count, call.scale);
  own.packed_dout.pack(own.dout, count, 1);
  if (call.gradients.dk.present()) own.q.prepare_sums(0, count);
  if (call.gradients.dv.present()) own.dout.prepare_sums(0, count);
  statistics();
}

void QueryPass::statistics() {
  const TensorView stored = sequence.query_rows(call.saved.lse, call.sizes.packed);
  float *out_row = own.work.get(), *dout_row = out_row + own.dout.width();
  for (int r = 0; r < own.rows.count; ++r) {
    const std::int64_t query = own.rows.query[r];
    const float lse = *stored.at<float>(place.head * stored.strides[0] + query * stored.strides[1]);
    own.lse[r] = lse;
    own.norm[r] = 1;
    own.refined[r] = std::isfinite(lse) && std::fabs(lse) > large_lse;
    const double product =
        kernels().dot(out.read(place.head, query, out_row), own.dout.row(r, dout_row), out.channels());
    own.delta[r] = static_cast<float>(product - lse_gradient(r));
  }
  for (int r = own.rows.count; r < tile; ++r) {
    own.lse[r] = own.norm[r] = own.delta[r] = 0;
    own.refined[r] = false;
  }
}

double QueryPass::lse_gradient(int r) const {
  if (!call.saved.dlse.present()) return 0;
  const TensorView dlse = sequence.query_rows(call.saved.dlse, call.sizes.packed);
  return static_cast<double>(*dlse.at<float>(place.head * dlse.strides[0] + own.rows.query[r] * dlse.strides[1]));
}

template <class Visit, class Finish>
void QueryPass::sweep(Visit&& visit, Finish&& finish) {
  if (call.lists.present()) sweep_landmarks(visit);
  const RowTile& rows = own.rows;
  TileMask& mask = own.mask;
  for (std::int64_t start = previous_tile(sequence.nk), next; start >= 0; start = next) {
    next = previous_tile(start);
    look_ahead();
    const int length = static_cast<int>(std::min<std::int64_t>(tile, sequence.nk - start));
    mask.cut(rows, start, length);
    read_keys(mask.key_begin, mask.key_end, [&](int j) { return start + j; });
    if (dropout.active()) dropout.fill(mask, start, own.keep.get());
    own.products.scores(own.packed_q, own.k, mask, own.p.get());
    look_ahead();
    own.products.scores(own.packed_dout, own.v, mask, own.dp.get());
    for (const Span& span : mask) {
      const KeyBlock block{span, nullptr, 0, start, length};
      if (span.partial)
        kernels().mask_lanes(own.p.get() + block.at(), block.count(), span.key_begin, mask.first, mask.last,
                             span.lane_begin, span.lane_end);
      if (call.problem.soft_edge)
        edges(block, [&](int r, int first, int count, const float* bias, const float*) {
          for (int j = 0; j < count; ++j) own.p[(first + j) * tile + r] += bias[j];
        });
      visit(block);
    }
    finish(start);
  }
}

std::int64_t QueryPass::previous_tile(std::int64_t before) const {
  const std::int64_t key = own.rows.last_key(before);
  if (key < 0) return -1;
  const std::int64_t begin = key / tile * tile, end = std::min(sequence.nk, begin + tile);
  if (own.rows.reach() > cached_keys) {
    k.prefetch(place.kv_head, begin, end);
    v.prefetch(place.kv_head, begin, end);
    key_sums.prefetch(place.b, place.kv_head, begin, end);
  }
  return begin;
}

void QueryPass::foresee(const TilePlace& next) {
  if (next.b != place.b) return;
  prefetch_row_values(sequence.window, next.head, next.begin, next.begin + tile);
  prefetch_row_values(sequence.query_rows(call.saved.lse, call.sizes.packed), next.head, next.begin, next.begin + tile);
  own.ahead.add(q, next.head, next.begin, next.begin + tile, sequence.nq);
  own.ahead.add(dout, next.head, next.begin, next.begin + tile, sequence.nq);
  own.ahead.add(out, next.head, next.begin, next.begin + tile, sequence.nq);
  if (call.lists.present()) {
    const std::int64_t list = call.lists.list_of(sequence, next.head, next.begin);
    if (list != call.lists.list_of(sequence, place.head, place.begin)) {
      const LandmarkList landmarks_of = call.lists.kept(list);
      own.ahead.add(k, next.kv_head, landmarks_of.index, std::min(tile, landmarks_of.count));
      own.ahead.add(v, next.kv_head, landmarks_of.index, std::min(tile, landmarks_of.count));
    }
  }
  const std::int64_t key = own.rows.last_key(sequence.nk) + next.begin - place.begin;
  if (next.head != place.head || key < 0) return;
  own.ahead.add(k, place.kv_head, key - tile + 1, key + 1, sequence.nk);
  own.ahead.add(v, place.kv_head, key - tile + 1, key + 1, sequence.nk);
}

template <class Visit>
void QueryPass::sweep_landmarks(Visit&& visit) {
  const RowTile& rows = own.rows;
  LandmarkRun& run = own.run;
  for (int row = 0; row < rows.count; row = run.row_end) {
    run.fill(rows, row, call.lists, sequence, call.problem.bidirectional);
    const LandmarkList list = call.lists.get(sequence, run.list, own.list);
    const int reachable = run.reachable(list);
    for (int entry = 0; entry < reachable; entry += tile) {
      const int count = std::min(tile, reachable - entry);
      const KeyBlock block{{0, count, lanes_begin(run.row_begin), lanes_end(run.row_end), true}, &run, entry, 0, 0};
      const std::int32_t* index = list.index + entry;
      look_ahead();
      read_keys(0, count, [&](int j) { return index[j]; });
      own.products.scores(own.packed_q, own.k, 0, count, run.row_begin, run.row_end, own.p.get());
      look_ahead();
      own.products.scores(own.packed_dout, own.v, 0, count, run.row_begin, run.row_end, own.dp.get());
      kernels().mask_landmarks(own.p.get(), count, index, list.weight + entry, run.first, run.last, run.newest,
                               block.span.lane_begin, block.span.lane_end);
      if (dropout.active()) dropout.fill(run, index, count, own.keep.get());
      visit(block);
    }
  }
}

template <class KeyOf>
void QueryPass::read_keys(int begin, int end, KeyOf&& key_of) {
  own.k.read(k, place.kv_head, begin, end, key_of);
  own.v.read(v, place.kv_head, begin, end, key_of);
  if (call.gradients.dq.present()) own.k.prepare_sums(begin, end);
}

void QueryPass::probabilities(const KeyBlock& block) {
  kernels().probabilities(own.p.get() + block.at(), block.count(), own.lse, own.norm, block.span.lane_begin,
                          block.span.lane_end);
}

template <class Body>
void QueryPass::edges(const KeyBlock& block, Body&& body) {
  for (int r = block.span.lane_begin; r < std::min(block.span.lane_end, own.rows.count); ++r)
    for_each_edge(own.rows, r, call.problem.soft_edge->tau, block.start, block.length,
                  [&](int first, int count, const float* z) {
                    float bias[tile], slope[tile];
                    kernels().soft_edge(z, bias, slope, count);
                    body(r, first, count, static_cast<const float*>(bias), static_cast<const float*>(slope));
                  });
}

void QueryPass::refine() {
  if (std::none_of(own.refined, own.refined + tile, [](bool refined) { return refined; })) return;
  const auto nothing = [](std::int64_t) {};
  float highest[tile];
  std::fill(highest, highest + tile, -std::numeric_limits<float>::infinity());
  sweep(
      [&](const KeyBlock& block) {
        for (int j = block.span.key_begin; j < block.span.key_end; ++j)
          for (int r = block.span.lane_begin; r < block.span.lane_end; ++r)
            highest[r] = std::max(highest[r], own.p[j * tile + r]);
      },
      nothing);
  for (int r = 0; r < own.rows.count; ++r)
    if (own.refined[r] && std::isfinite(highest[r])) own.lse[r] = highest[r];

  std::fill(own.sum_p, own.sum_p + tile, 0.0);
  std::fill(own.sum_pd, own.sum_pd + tile, 0.0);
  sweep(
      [&](const KeyBlock& block) {
        probabilities(block);
        kernels().row_sums(own.p.get() + block.at(), own.dp.get() + block.at(), keep() ? keep() + block.at() : nullptr,
                           block.count(), own.sum_p, own.sum_pd, block.span.lane_begin, block.span.lane_end);
      },
      nothing);
  for (int r = 0; r < own.rows.count; ++r) {
    if (!own.refined[r] || !(own.sum_p[r] > 0)) continue;
    own.norm[r] = static_cast<float>(1 / own.sum_p[r]);
    own.delta[r] = static_cast<float>(own.sum_pd[r] / own.sum_p[r] - lse_gradient(r));
  }
}

bool QueryPass::wants_sweep() const {
  const AttentionGradients& g = call.gradients;
  return g.dq.present() || (g.dwindow.present() && call.problem.soft_edge) || landmarks.active() || call.wants_keys();
}

void QueryPass::gradients() {
  const AttentionGradients& wanted = call.gradients;
  const bool edge_gradient = wanted.dwindow.present() && call.problem.soft_edge;
  own.dq.clear();
  std::fill(own.dwindow, own.dwindow + tile, 0.0);
  LandmarkBlock* stored = nullptr;
  if (landmarks.active()) landmarks.begin_tile(round_tile);
  if (key_sums.active()) key_sums.leave(n, (own.rows.last_key(sequence.nk) + tile) / tile);  // keys above its last
  sweep(
      [&](const KeyBlock& block) {
        const Span& span = block.span;
        look_ahead();
        probabilities(block);
        float *p = own.p.get() + block.at(), *ds = own.dp.get() + block.at();
        kernels().score_gradients(p, ds, keep() ? keep() + block.at() : nullptr, own.delta, block.count(),
                                  span.lane_begin, span.lane_end);
        if (wanted.dq.present()) add_dq(block);
        if (block.run && landmarks.active()) {
          if (block.entry == 0) stored = open_block(*block.run);
          store_block(*stored, block, p, ds);
        }
        if (!block.run && edge_gradient)
          edges(block, [&](int r, int first, int count, const float*, const float* slope) {
            for (int j = 0; j < count; ++j)
              own.dwindow[r] += static_cast<double>(own.dp[(first + j) * tile + r]) * static_cast<double>(slope[j]);
          });
      },
      [&](std::int64_t start) {
        if (key_sums.active()) add_keys(start);
      });
  if (key_sums.active()) key_sums.leave(n, 0);
  if (wanted.dq.present()) store_dq();
}

void QueryPass::add_dq(const KeyBlock& block) {
  const Span& span = block.span;
  const int begin = block.run ? block.run->row_begin : span.lane_begin,
            end = block.run ? block.run->row_end : std::min(span.lane_end, own.rows.count);
  if (!block.run && span.lane_begin == own.mask.begin()->lane_begin)  // once for the tile
    own.dq.start_block(block.start / tile, 0, own.rows.count);
  own.products.sum_keys(own.dp.get(), own.k, span.key_begin, span.key_end, begin, end, own.dq);
  if (block.run) own.dq.fold(begin, end);
}

void QueryPass::add_keys(std::int64_t start) {
  const TileMask& mask = own.mask;
  look_ahead();
  if (mask.span_count > 1) clear_outside_spans();
  const std::int64_t key_tile = start / tile;
  key_sums.leave(n, key_tile + 1);
  key_sums.enter(n, place.chain, key_tile, open);
  bool first = key_sums.first(place.b, place.kv_head, key_tile);
  if (first && !covers(mask, static_cast<int>(std::min<std::int64_t>(tile, sequence.nk - start)))) {
    key_sums.clear(place.b, place.kv_head, key_tile);
    first = false;
  }
  if (call.gradients.dk.present())  // first: dS is in the cache
    add_to_keys(own.dp.get(), own.q, key_sums.dk(place.b, place.kv_head, key_tile), own.q.width(), first);
  look_ahead();
  if (call.gradients.dv.present())
    add_to_keys(own.p.get(), own.dout, key_sums.dv(place.b, place.kv_head, key_tile), own.dout.width(), first);
  key_sums.leave(n, key_tile);
}

bool QueryPass::covers(const TileMask& mask, int length) {
  int met = 0;
  for_each_key_group(mask, [&](int begin, int end, int, int) { met += end - begin; });
  return met == length;
}

void QueryPass::add_to_keys(const float* weights, const Operand& values, float* sums, std::int64_t width, bool first) {
  const TileMask& mask = own.mask;
  float* rows[tile];
  for (int j = mask.key_begin; j < mask.key_end; ++j) rows[j] = sums + j * 2 * width;
  for_each_key_group(mask, [&](int begin, int end, int lane_begin, int lane_end) {
    own.products.sum_rows(weights, values, begin, end, lane_begin, std::min(lane_end, own.rows.count), rows, width,
                          first);
  });
}

void QueryPass::clear_outside_spans() {
  const TileMask& mask = own.mask;
  const auto clear = [&](int key_begin, int key_end, int lane_begin, int lane_end) {
    for (int j = key_begin; j < key_end; ++j)
      for (float* weights : {own.p.get(), own.dp.get()})
        std::fill(weights + j * tile + lane_begin, weights + j * tile + lane_end, 0.0f);
  };
  int lane = mask.spans[0].lane_begin;
  for (const Span& span : mask) {
    clear(mask.key_begin, mask.key_end, lane, span.lane_begin);
    clear(mask.key_begin, span.key_begin, span.lane_begin, span.lane_end);
    clear(span.key_end, mask.key_end, span.lane_begin, span.lane_end);
    lane = span.lane_end;
  }
}

LandmarkBlock* QueryPass::open_block(const LandmarkRun& run) {
  const LandmarkList list = call.lists.get(sequence, run.list, own.list);
  return &landmarks.add(round_tile, own.rows, run, list, run.reachable(list));
}

void QueryPass::store_block(const LandmarkBlock& stored, const KeyBlock& block, const float* p, const float* ds) {
  const AttentionGradients& wanted = call.gradients;
  if (wanted.dlandmark_log_weight.present())
    for (int j = 0; j < block.count(); ++j) {
      const float* weights = ds + j * tile + block.run->row_begin;
      stored.slot_sum[block.entry + j] = std::accumulate(weights, weights + stored.rows, 0.0);
    }
  if (!landmarks.sums_rows()) {
    store_weights(stored, block, p, ds);
    return;
  }
  if (wanted.dv.present()) store_sums(stored.dv, block, p, own.dout);
  look_ahead();
  if (wanted.dk.present()) store_sums(stored.dk, block, ds, own.q);
}

void QueryPass::store_sums(float* sums, const KeyBlock& block, const float* weights, const Operand& values) {
  const LandmarkRun& run = *block.run;
  float* rows[tile];
  for (int j = 0; j < block.count(); ++j) rows[j] = sums + (block.entry + j) * values.width();
  own.products.sum_rows(weights, values, 0, block.count(), lanes_begin(run.row_begin), run.row_end, rows, 0, true);
}

void QueryPass::store_weights(const LandmarkBlock& stored, const KeyBlock& block, const float* p,
                              const float* ds) const {
  if (!call.wants_keys()) return;
  for (int j = 0; j < block.count(); ++j) {
    const int from = j * tile + block.run->row_begin;
    const std::int64_t to = static_cast<std::int64_t>(block.entry + j) * stored.rows;
    std::copy_n(p + from, stored.rows, stored.dv + to);
    std::copy_n(ds + from, stored.rows, stored.dk + to);
  }
}

void QueryPass::store_dq() {
  float* work = own.work.get() + own.q.width();
  for (int r = 0; r < own.rows.count; ++r) {
    const std::int64_t query = own.rows.query[r];
    float* row = dq.in_place() ? dq.at<float>(place.head, query) : own.work.get();
    own.dq.finish(r, 1, row);
    kernels().scaled(row, call.scale, row, own.q.width());
    if (row == own.work.get()) dq.write(place.head, query, row, work);
  }
}

void QueryPass::store_dwindow() {
  if (!call.gradients.dwindow.present()) return;
  const TensorView dwindow = sequence.query_rows(call.gradients.dwindow, call.sizes.packed);
  const bool shared = dwindow.shape[0] == 1 && call.sizes.hq > 1;
  for (int r = 0; r < own.rows.count; ++r) {
    const double value = call.problem.soft_edge ? own.dwindow[r] / call.problem.soft_edge->tau : 0;
    if (shared && call.problem.soft_edge)
      call.window_gradient[first_row + r] = value;
    else if (!shared || place.head == 0)
      store_double(dwindow, (shared ? 0 : place.head) * dwindow.strides[0] + own.rows.query[r] * dwindow.strides[1],
                   value);
  }
}

}  // namespace dsalt::internal
