// Which thread takes which tile of query rows in attention's backward, and when (the pass itself:
// attention_backward_pass.cpp). A thread walks whole heads where there are enough of them, else tiles are taken one by
// one in ascending order.
#include <omp.h>

#include "attention_backward_pass.hpp"
#include "kernel_scope.hpp"

namespace dsalt::internal {
namespace {

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

}  // namespace

void attention_backward_queries(BackwardCall& call, LandmarkGradients& landmarks) {
  std::vector<std::unique_ptr<QueryScratch>> scratch;
  for (int n = 0; n < call.threads; ++n) scratch.push_back(std::make_unique<QueryScratch>(call));
  KeySums key_sums(call);

  // For waves that are walked: the lowest key that row tile n or a later one of its head admits by position, in place n
  // of the wave.
  Array<std::int64_t> lowest;
  const auto find_lowest = [&](std::int64_t begin, std::int64_t end, std::int64_t first) {
    RowTile& rows = scratch[static_cast<std::size_t>(omp_get_thread_num())]->rows;
    std::int64_t key = INT64_MAX;
    for (std::int64_t n = end - 1; n > begin; lowest[n-- - first] = key) {
      const TilePlace place = call.place(n);
      const AttentionSequence sequence = attention_sequence(call.inputs, place.b);
      const auto count = static_cast<int>(std::min<std::int64_t>(tile, sequence.nq - place.begin));
      rows.fill({call.problem, sequence}, place.head, place.begin, count);
      if (rows.reach() > 0) key = std::min(key, rows.any.begin);
    }
  };

  // Tile n, whose landmark blocks are in place n - first of the round. `next` is likely to be this thread's next tile.
  // No tile after it admits a key below `retired` (-1: that is not known).
  const auto run = [&](std::int64_t n, std::int64_t first, std::int64_t next, std::int64_t end, std::int64_t retired) {
    const KernelScope scope(call.kernels, call.pairs);
    const TilePlace place = call.place(n);
    const AttentionSequence sequence = attention_sequence(call.inputs, place.b);
    QueryPass pass{call,
                   sequence,
                   landmarks,
                   key_sums,
                   DropoutTile(call.kernels, call.problem, place.b * call.sizes.hq),
                   Rows(call.kernels, sequence.q),
                   Rows(call.kernels, sequence.k),
                   Rows(call.kernels, sequence.v),
                   Rows(call.kernels, sequence.query_rows(call.saved.dout, call.sizes.packed)),
                   Rows(call.kernels, sequence.query_rows(call.saved.out, call.sizes.packed)),
                   Rows(call.kernels, sequence.query_rows(call.gradients.dq, call.sizes.packed)),
                   n,
                   place,
                   call.first_row[static_cast<std::size_t>(place.b)] + place.head * sequence.nq + place.begin,
                   n - first,
                   *scratch[static_cast<std::size_t>(omp_get_thread_num())]};
    pass.start();
    if (call.gradients.dq.present()) pass.foresee_dq();
    if (next < end) pass.foresee(call.place(next));
    pass.refine();
    if (pass.wants_sweep()) pass.gradients();
    pass.store_dwindow();
    if (retired < 0) return;
    if (landmarks.active()) landmarks.fold_tile(n, n - first);
    if (key_sums.active())
      key_sums.retire(place.b, place.kv_head, retired, landmarks, pass.own.work.get(),
                      pass.own.work.get() + std::max(pass.own.q.width(), pass.own.v.width()));
  };

  const auto chains_of = [&](std::int64_t first, std::int64_t end) {  // where its key/value heads start
    std::vector<std::int64_t> chains;
    for (std::int64_t n = first; n < end; n = call.next_chain(n)) chains.push_back(n);
    return chains;
  };
  const auto walks = [&](const std::vector<std::int64_t>& chains) {
    const auto heads = static_cast<std::int64_t>(chains.size());
    return heads >= 4 * call.threads || heads % call.threads == 0;
  };

  // `whole`: the round is the wave, and is walked.
  const auto round = [&](std::int64_t first, std::int64_t end, bool whole) {
    std::vector<std::int64_t> chains = chains_of(first, end);
    const bool walked = walks(chains);
    const auto heads = static_cast<std::int64_t>(chains.size());
    chains.push_back(end);
    landmarks.start_round(whole);
    if (walked) {
      // A thread walks a whole head: neighbouring tiles share keys and their sums, and nobody waits.
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t from = chains[static_cast<std::size_t>(head)],
                           to = chains[static_cast<std::size_t>(head) + 1];
        if (whole) find_lowest(from, to, first);
        for (std::int64_t n = from; n < to; ++n)
          run(n, first, n + 1, to, !whole ? -1 : n + 1 < to ? lowest[n + 1 - first] : INT64_MAX);
      }
    } else {
      std::atomic<std::int64_t> next{first};  // ascending: see KeySums::enter
#pragma omp parallel num_threads(call.threads)
      for (std::int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < end;)
        run(n, first, n + call.threads, end, -1);
    }
    if (landmarks.active()) landmarks.fold(first, end - first, whole);
  };

  for (const KeySums::Wave& wave : key_sums.waves()) {
    const std::int64_t tiles = wave.end_tile - wave.first_tile;
    const std::int64_t step = landmarks.active() ? landmarks.tiles_per_round() : tiles;
    const bool whole = tiles > 0 && tiles <= step && walks(chains_of(wave.first_tile, wave.end_tile));
    if (whole) lowest = Array<std::int64_t>::raw(tiles);
    key_sums.start(wave, whole);
    landmarks.start_heads(wave.first_head, wave.end_head);
    for (std::int64_t first = wave.first_tile; first < wave.end_tile; first += step)
      round(first, std::min(first + step, wave.end_tile), whole);
    key_sums.store(landmarks);
  }
  sum_window_gradients(call);
}

}  // namespace dsalt::internal
