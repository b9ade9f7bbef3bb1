#include "sparse_backward.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "../launch.cuh"
#include "dense_tensors.cuh"
#include "landmark_backward.hpp"
#include "list_backward.hpp"
#include "list_forward.hpp"
#include "packed_tiles.cuh"
#include "sparse_backward.cuh"
#include "sparse_backward_finish.cuh"
#include "sparse_backward_prepare.cuh"
#include "sparse_forward.hpp"
#include "tensor_map.hpp"
#include "unique_lists.hpp"
#include "warp_specialized.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_backward";

template <class T, int kHead, bool kSoft>
void run(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
         const AttentionSaved& saved, const AttentionGradients& gradients) {
  constexpr int rows = kHead == 64 ? 128 : 64;  // queries of a tile
  using F = SparseBackward<T, kHead, rows, kSoft>;
  const bool packed = in.cu_seqlens_q.present();

  typename F::Parameters p{};
  // Query tiles and key tiles.
  DenseCall queries = dense_call(problem, in), keys = queries;
  std::optional<PackedTiles> query_list, key_list;
  std::int64_t slots_per_head, heads = queries.hq, key_tiles;
  if (packed) {
    query_list.emplace(context, operation, queries.cu_q, queries.batch, queries.nq, rows);
    key_list.emplace(context, operation, queries.cu_k, queries.batch, queries.nk, F::keys);
    queries.packed_tiles = query_list->tiles(), queries.tiles = query_list->count();
    keys.packed_tiles = key_list->tiles(), keys.tiles = key_list->count();
    slots_per_head = queries.nq / rows + queries.batch + 1;
    key_tiles = (keys.nk / F::keys + keys.batch + 1) * heads;
    p.job_count = keys.tiles * keys.hkv;
  } else {
    queries.tiles = static_cast<int>(ceil_div(queries.nq, rows));
    keys.tiles = static_cast<int>(ceil_div(keys.nk, F::keys));
    slots_per_head = queries.tiles;
    heads *= queries.batch;
    key_tiles = keys.tiles * heads;
    p.job_count = keys.hkv * keys.batch * keys.tiles;
  }
  const std::int64_t slots = slots_per_head * heads;
  const bool wants_window = gradients.dwindow.present() && kSoft;
  const Scratch<float> dq(context, operation, slots * rows * kHead),
      dwindow(context, operation, wants_window ? slots * rows : 0);
  const Scratch<typename F::Queries> query_rows(context, operation, slots);
  const Scratch<RowExtent> extents(context, operation, slots);

  p.q = make_tensor_map(in.q, rows, operation);
  p.k = make_tensor_map(in.k, F::keys, operation);
  p.v = make_tensor_map(in.v, F::keys, operation);
  p.dout = make_tensor_map(saved.dout, rows, operation);
  p.call = keys;
  p.sparse = attention_call<T>(problem, in);
  p.slots = {dq.data(), static_cast<int>(slots_per_head)};
  p.rows = query_rows.data();
  p.extents = extents.data();
  p.dk = rows_of<T>(gradients.dk, packed);
  p.dv = rows_of<T>(gradients.dv, packed);
  p.dwindow = dwindow.data();
  const double scale = problem.scale.value_or(1 / std::sqrt(static_cast<double>(kHead)));
  p.scale = static_cast<float>(scale);
  const AttentionCall<T>& sparse = p.sparse;

  // Landmarks.
  const bool narrow_lists = has_narrow_lists(problem, in);
  std::optional<LandmarkLists> lists;
  std::optional<UniqueLists> unique_lists;
  if (narrow_lists)
    p.sparse.clean = unique_lists.emplace(context, operation, in).prepare(problem, in);
  else
    p.sparse.clean = lists.emplace(context, operation, in).prepare(problem, in);
  const std::int64_t entries = sparse.batch * sparse.row_heads * sparse.lists * sparse.slots;
  const std::int64_t places = entries > 0 ? sparse.nk * sparse.kv_heads * (packed ? 1 : sparse.batch) : 0;
  const std::int64_t sum_rows = std::min(entries, places);
  const bool wants_lambda = gradients.dlandmark_log_weight.present();
  const Scratch<std::int32_t> place(context, operation, sum_rows);
  const Scratch<float> dlambda(context, operation, wants_lambda ? entries : 0);
  // What starts as zeros lies together: float32 sums of landmarks, ranges, the counters of both kernels' jobs and of
  // landmarks, landmarks' rows.
  constexpr int counters = 3;
  const std::int64_t zero_words = sum_rows * 2 * kHead + key_tiles * 2 + counters + places;
  const Scratch<std::int32_t> zeros(context, operation, zero_words);
  auto* const dk_dv = reinterpret_cast<float*>(zeros.data());
  auto* const ranges = reinterpret_cast<QueryRange*>(dk_dv + sum_rows * 2 * kHead);
  p.ranges = ranges;
  p.next = reinterpret_cast<std::int32_t*>(ranges + key_tiles);
  p.landmarks = {entries > 0 ? p.next + counters : nullptr, place.data(), p.next + 1, dk_dv, dlambda.data()};
  check(cudaMemsetAsync(zeros.data(), 0, static_cast<std::size_t>(zero_words) * 4, context.stream()), operation,
        "cudaMemsetAsync");
  const std::int64_t query_blocks = queries.tiles * heads;
  launch(context, operation, sparse_backward_prepare_kernel<F, T, kHead, rows>, query_blocks + ceil_div(entries, 128),
         128, 0, queries, static_cast<unsigned>(query_blocks), entries, p, rows_of<const T>(saved.out, packed),
         rows_of<const T>(saved.dout, packed), rows_of<const float>(saved.lse, packed),
         rows_of<const float>(saved.dlse, packed), query_rows.data(), extents.data(), ranges,
         entries > 0 && !narrow_lists);
  if (narrow_lists) {
    list_backward<T>(context, kHead,
                     {p.sparse,
                      queries,
                      p.slots,
                      query_rows.data()->lse,
                      query_rows.data()->delta,
                      sizeof(typename F::Queries) / sizeof(float),
                      rows,
                      p.landmarks,
                      rows_of<const T>(saved.dout, packed),
                      queries.scale_log2,
                      {}});
  } else if (entries > 0) {
    landmark_backward<T>(context, kHead,
                         {p.sparse, queries, p.slots, query_rows.data(), sizeof(typename F::Queries), p.landmarks,
                          p.next + 2, in.q, saved.dout, saved.out, static_cast<float>(1 / scale)});
  }

  launch(context, operation, warp_specialized_kernel<F>, std::min<std::int64_t>(p.job_count, context.multiprocessors),
         F::threads, F::shared_bytes, p);
  const std::int64_t landmark_blocks = ceil_div(sum_rows, 8);
  launch(context, operation, sparse_backward_finish_kernel<T, kHead, rows>, landmark_blocks + query_blocks, 256, 0,
         sparse, p.landmarks, p.dk, p.dv, static_cast<unsigned>(landmark_blocks), queries, p.slots,
         rows_of<T>(gradients.dq, packed), p.scale);
  if (wants_lambda && entries > 0)
    launch(context, operation, store_dlambda_kernel<T>, sparse.batch * sparse.list_heads * sparse.lists, 128, 0, sparse,
           dlambda.data(), device_view<float, 4>(gradients.dlandmark_log_weight));
  if (gradients.dwindow.present())
    launch(context, operation, store_dwindow_kernel<rows>, query_blocks, rows, 0, queries, p.slots, dwindow.data(),
           sparse.window_heads, rows_of<float>(gradients.dwindow, packed));
}

template <class T, int kHead>
void choose(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
            const AttentionSaved& saved, const AttentionGradients& gradients) {
  problem.soft_edge ? run<T, kHead, true>(context, problem, in, saved, gradients)
                    : run<T, kHead, false>(context, problem, in, saved, gradients);
}

}  // namespace

bool takes_sparse_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& in) {
  if (context.deterministic) return false;
  return takes_list_forward(context, problem, in) || takes_sparse_forward(context, problem, in);
}

void sparse_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                     const AttentionSaved& saved_tensors, const AttentionGradients& wanted) {
  AttentionInputs in = inputs;
  AttentionSaved saved = saved_tensors;
  AttentionGradients gradients = wanted;
  const Unwanted dq(context, operation, gradients.dq, in.q), dk(context, operation, gradients.dk, in.k),
      dv(context, operation, gradients.dv, in.v);
  const DenseTensors tensors(context, operation, {&in.q, &in.k, &in.v, &saved.out, &saved.dout},
                             {&gradients.dq, &gradients.dk, &gradients.dv});
  for_kernel(in.q, [&]<class T, int kHead>(Tag<T>, std::integral_constant<int, kHead>) {
    choose<T, kHead>(context, problem, in, saved, gradients);
  });
  tensors.copy_back();
}

}  // namespace dsalt::cuda::hopper
