// Gradients of <dout, out> + <dlse, lse>                                      (docs/semantics.md, "Gradients")
//
// Equations and order of the passes: attention_backward.hpp.
#include "attention_backward.hpp"

#include "cpu_backend.hpp"

namespace dsalt::internal {

BackwardCall::BackwardCall(MemoryPool& the_pool, const Kernels& kernel_table, const AttentionProblem& the_problem,
                           const AttentionInputs& the_inputs, const AttentionSaved& the_saved,
                           const AttentionGradients& the_gradients, int team)
    : pool(the_pool),
      kernels(kernel_table),
      problem(the_problem),
      inputs(the_inputs),
      saved(the_saved),
      gradients(the_gradients),
      threads(team),
      sizes(attention_sizes(the_inputs)),
      group(sizes.hq / sizes.hkv),
      scale(score_scale(the_problem, sizes.d)),
      pairs(runs_as_pairs(kernel_table, the_inputs, scale)),
      lists(the_problem, the_inputs, team),
      first_row(static_cast<std::size_t>(sizes.batch) + 1, 0),
      first_tile(static_cast<std::size_t>(sizes.batch) + 1, 0) {
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const std::int64_t nq = sequence_extent(inputs, b).nq;
    const auto n = static_cast<std::size_t>(b);
    first_row[n + 1] = first_row[n] + sizes.hq * nq;
    first_tile[n + 1] = first_tile[n] + sizes.hq * tiles(nq);
  }
  const TensorView& dwindow = gradients.dwindow;
  const bool shared = dwindow.present() && dwindow.shape[1] == 1 && sizes.hq > 1;
  if (shared && problem.soft_edge) window_gradient = Array<double>::raw(first_row.back());
}

TilePlace BackwardCall::place(std::int64_t n) const {
  TilePlace place;
  place.b = sequence_of(first_tile, n);
  const std::int64_t first = first_tile[static_cast<std::size_t>(place.b)];
  const std::int64_t per_kv_head = group * tiles(sequence_extent(inputs, place.b).nq),
                     local = (n - first) % per_kv_head;
  place.kv_head = (n - first) / per_kv_head;
  place.head = place.kv_head * group + local % group;
  place.begin = local / group * tile;
  place.chain = n - local;
  return place;
}

void CpuBackend::attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                    const AttentionSaved& saved, const AttentionGradients& gradients) {
  const AttentionSizes sizes = attention_sizes(inputs);
  if (sizes.batch == 0 || sizes.hq == 0 || sizes.hkv == 0) return;
  // No more threads, and memory for them, than there are row and key tiles.
  const auto tiles = [&](std::int64_t rows) { return rows / tile + sizes.batch; };
  const std::int64_t most = sizes.packed ? sizes.hq * (tiles(sizes.nq) + tiles(sizes.nk))
                                         : sizes.hq * (tiles(sizes.batch * sizes.nq) + tiles(sizes.batch * sizes.nk));
  const int team = static_cast<int>(std::min<std::int64_t>(threads(), most));
  BackwardCall call(pool_, kernels_, problem, inputs, saved, gradients, team);
  LandmarkGradients landmarks(call);
  attention_backward_queries(call, landmarks);
  if (gradients.dlandmark_log_weight.present()) landmarks.store_weights();
}

}  // namespace dsalt::internal
