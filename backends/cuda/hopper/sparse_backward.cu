#include "sparse_backward.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "../launch.cuh"
#include "dense_tensors.cuh"
#include "list_backward.hpp"
#include "list_forward.hpp"
#include "packed_tiles.cuh"
#include "sparse_backward.cuh"
#include "sparse_backward_prepare.cuh"
#include "sparse_forward.hpp"
#include "tensor_map.hpp"
#include "unique_lists.hpp"
#include "warp_specialized.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_backward";

/// Gives every key that a list names a row of sums, in any order. One thread per entry of a row head's lists.
template <class T>
__global__ void number_landmarks_kernel(AttentionCall<T> call, std::int64_t entries, LandmarkSums sums) {
  const std::int64_t entry = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (entry >= entries) return;
  const std::int64_t n = entry % call.slots, t = entry / call.slots % call.lists;
  const int z = static_cast<int>(entry / call.slots / call.lists % call.row_heads);
  const std::int64_t b = entry / call.slots / call.lists / call.row_heads;
  const std::int64_t list = (b * call.list_heads + call.list_head(z)) * call.lists + t;
  if (sums.dlambda != nullptr) sums.dlambda[entry] = 0;
  if (n >= call.clean.count[list]) return;
  const SequenceRows s = call.sequence(b);
  const std::int64_t place =
      key_place(call, b, call.kv_head_of_row_head(z), s.k_start, call.clean.index[list * call.slots + n]);
  if (atomicCAS(sums.row + place, 0, -1) != 0) return;  // another entry's
  const int row = atomicAdd(sums.rows, 1);
  sums.row[place] = row + 1;
  sums.place[row] = static_cast<std::int32_t>(place);
}

/// One warp per row of sums.
template <class T, int kHead>
__global__ void store_landmarks_kernel(AttentionCall<T> call, LandmarkSums sums, Rows<T> dk, Rows<T> dv, float scale) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
  if (row >= *sums.rows) return;
  const std::int64_t place = sums.place[row], key = place % call.nk, outer = place / call.nk;
  const int b = call.packed ? 0 : static_cast<int>(outer / call.kv_heads),
            kv_head = static_cast<int>(outer % call.kv_heads);
  const float* from = sums.dk_dv + static_cast<std::int64_t>(row) * 2 * kHead;
  for (int column = lane; column < kHead; column += 32) {
    dk.at(b, kv_head, key)[column] = narrow<T>(from[column] * scale);
    dv.at(b, kv_head, key)[column] = narrow<T>(from[kHead + column]);
  }
}

/// One block per list: dlambda of its slots, summed over the row heads that share it; 0 where a slot admits nothing.
template <class T>
__global__ void store_dlambda_kernel(AttentionCall<T> call, const float* sums, View<float, 4> dlambda) {
  const std::int64_t list = blockIdx.x, t = list % call.lists, hl = list / call.lists % call.list_heads,
                     b = list / call.lists / call.list_heads;
  for (std::int64_t slot = threadIdx.x; slot < call.slots; slot += blockDim.x) *dlambda.at(b, hl, t, slot) = 0;
  __syncthreads();
  const std::int64_t first_z = call.list_heads == 1 ? 0 : hl, last_z = call.list_heads == 1 ? call.row_heads : hl + 1;
  for (int n = threadIdx.x; n < call.clean.count[list]; n += blockDim.x) {
    float sum = 0;
    for (std::int64_t z = first_z; z < last_z; ++z)
      sum += sums[((b * call.row_heads + z) * call.lists + t) * call.slots + n];
    *dlambda.at(b, hl, t, call.clean.slot[list * call.slots + n]) = sum;
  }
}

/// One block of `rows` threads per slot of a window head: dw, summed over the heads that share a window.
template <int rows>
__global__ void store_dwindow_kernel(DenseCall call, QuerySlots slots, const float* sums, int window_heads,
                                     Rows<float> dwindow) {
  const auto [b, h, m] = query_tile(call, static_cast<int>(blockIdx.x));
  if (b < 0 || h >= window_heads) return;
  const Extent extent = extent_of(call, b);
  const int i = m * rows + static_cast<int>(threadIdx.x);
  if (i >= extent.nq) return;
  float sum = 0;
  if (sums != nullptr)
    for (int head = h; head < (window_heads == 1 ? call.hq : h + 1); ++head)
      sum += sums[slots.slot(call, rows, b, head, m) * rows + threadIdx.x];
  *dwindow.at(b, h, extent.q_start + i) = sum;
}

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
    p.jobs = {1, keys.tiles * keys.hkv};
  } else {
    queries.tiles = static_cast<int>(ceil_div(queries.nq, rows));
    keys.tiles = static_cast<int>(ceil_div(keys.nk, F::keys));
    slots_per_head = queries.tiles;
    heads *= queries.batch;
    key_tiles = keys.tiles * heads;
    p.jobs = {keys.hkv * keys.batch, keys.tiles};
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
  p.inverse_scale = static_cast<float>(1 / scale);
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
  // What starts as zeros lies together: float32 sums of landmarks, ranges, the counter of jobs, landmarks' rows.
  const std::int64_t zero_words = sum_rows * 2 * kHead + key_tiles * 2 + 2 + places;
  const Scratch<std::int32_t> zeros(context, operation, zero_words);
  auto* const dk_dv = reinterpret_cast<float*>(zeros.data());
  auto* const ranges = reinterpret_cast<QueryRange*>(dk_dv + sum_rows * 2 * kHead);
  p.ranges = ranges;
  p.next = reinterpret_cast<std::int32_t*>(ranges + key_tiles);
  p.landmarks = {entries > 0 ? p.next + 2 : nullptr, place.data(), p.next + 1, dk_dv, dlambda.data()};
  check(cudaMemsetAsync(zeros.data(), 0, static_cast<std::size_t>(zero_words) * 4, context.stream()), operation,
        "cudaMemsetAsync");
  const std::int64_t query_blocks = queries.tiles * heads;
  launch(context, operation, sparse_backward_prepare_kernel<F, T, kHead, rows>, query_blocks, 128, 0, queries, p,
         rows_of<const T>(saved.out, packed), rows_of<const T>(saved.dout, packed),
         rows_of<const float>(saved.lse, packed), rows_of<const float>(saved.dlse, packed), query_rows.data(),
         extents.data(), ranges);

  if (entries > 0)
    launch(context, operation, number_landmarks_kernel<T>, ceil_div(entries, 256), 256, 0, sparse, entries,
           p.landmarks);
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
    const std::int64_t most_queries =
        problem.landmark_chunk ? std::min<std::int64_t>(*problem.landmark_chunk, sparse.nq) : sparse.nq;
    p.jobs.segments = static_cast<int>(ceil_div(ceil_div(most_queries, rows) + 1, F::Job::tiles_of_segment));
    p.jobs.blocks_per_list = static_cast<int>(ceil_div(sparse.slots, F::keys));
    p.jobs.row_heads = packed ? sparse.row_heads : sparse.row_heads / sparse.kv_heads;
    p.jobs.lists = static_cast<int>((packed ? sparse.batch : 1) * p.jobs.row_heads * sparse.lists * p.jobs.segments *
                                    p.jobs.blocks_per_list);
  }
  p.job_count = static_cast<int>(p.jobs.count());

  launch(context, operation, warp_specialized_kernel<F>, std::min<std::int64_t>(p.job_count, context.multiprocessors),
         F::threads, F::shared_bytes, p);
  launch(context, operation, query_gradient_kernel<T, kHead, rows>, query_blocks, 256, 0, queries, p.slots,
         rows_of<T>(gradients.dq, packed), p.scale);
  if (entries > 0)
    launch(context, operation, store_landmarks_kernel<T, kHead>, ceil_div(sum_rows, 8), 256, 0, sparse, p.landmarks,
           p.dk, p.dv, p.scale);
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
  if (takes_list_forward(context, problem, in)) return true;
  if (!takes_sparse_forward(context, problem, in)) return false;
  // Jobs: one for each 128 landmarks of a list and, at most, 1024 queries and a part of as many.
  const internal::AttentionSizes n = internal::attention_sizes(in);
  if (!in.landmarks.present() || in.landmarks.size() == 0) return true;
  const std::int64_t queries = std::min<std::int64_t>(problem.landmark_chunk.value_or(n.nq), n.nq);
  const double jobs =
      static_cast<double>(n.batch) * static_cast<double>(n.hq) * static_cast<double>(in.landmarks.shape[2]) *
      static_cast<double>(ceil_div(in.landmarks.shape[3], 128)) * static_cast<double>(queries / 1024 + 2);
  return jobs < 0x1p30;
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
