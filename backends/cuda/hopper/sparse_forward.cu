#include "sparse_forward.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "../launch.cuh"
#include "dense_tensors.cuh"
#include "packed_tiles.cuh"
#include "sparse_forward.cuh"
#include "tensor_map.hpp"
#include "warp_specialized.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_forward";

template <class T, int kHead, bool kSoft>
void run(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
         const AttentionOutputs& out) {
  using F = SparseForward<T, kHead, kSoft>;
  const bool packed = in.cu_seqlens_q.present();
  DenseCall call = dense_call(problem, in);
  std::optional<PackedTiles> tiles;
  TileOrder order;
  std::int64_t work;
  if (packed) {
    tiles.emplace(context, operation, call.cu_q, call.batch, call.nq, F::rows);
    call.packed_tiles = tiles->tiles();
    call.tiles = tiles->count();
    work = static_cast<std::int64_t>(call.tiles) * call.hq;
  } else {
    call.tiles = static_cast<int>(ceil_div(call.nq, F::rows));
    order = TileOrder(call.batch * call.hq, call.tiles);
    work = static_cast<std::int64_t>(call.tiles) * call.batch * call.hq;
  }
  const Scratch<int> next(context, operation, 1);
  // The latest kernel before the main one: their beginning and end overlap.
  LandmarkLists lists(context, operation, in);
  const CleanLists clean = lists.prepare(problem, in, next.data());
  const double scale = problem.scale.value_or(1 / std::sqrt(static_cast<double>(kHead)));
  SparseForwardParameters<T> p{make_tensor_map(in.q, 64, operation),
                               make_tensor_map(in.k, F::keys, operation),
                               make_tensor_map(in.v, F::keys, operation),
                               call,
                               attention_call<T>(problem, in),
                               rows_of<T>(out.out, packed),
                               rows_of<float>(out.lse, packed),
                               static_cast<float>(1 / scale),
                               order,
                               static_cast<int>(work),
                               next.data()};
  p.sparse.clean = clean;
  launch_clusters(context, operation, warp_specialized_kernel<F>, std::min<std::int64_t>(work, context.multiprocessors),
                  1, F::threads, F::shared_bytes, p);
}

template <class T, int kHead>
void choose(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
            const AttentionOutputs& out) {
  problem.soft_edge ? run<T, kHead, true>(context, problem, in, out) : run<T, kHead, false>(context, problem, in, out);
}

}  // namespace

bool takes_sparse_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& in) {
  if (problem.mask != Mask::sparse || !takes_attention(context, problem, in)) return false;
  if (problem.soft_edge && problem.soft_edge->tau < 1e-30) return false;  // 1 / tau is taken in float
  // A list that few queries read is a tile of 64 keys for those few rows.
  return !problem.landmark_chunk || *problem.landmark_chunk >= 32 || in.landmarks.size() == 0;
}

void sparse_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs) {
  AttentionInputs in = inputs;
  AttentionOutputs out = outputs;
  const DenseTensors tensors(context, operation, {&in.q, &in.k, &in.v}, {&out.out});
  for_kernel(in.q, [&]<class T, int kHead>(Tag<T>, std::integral_constant<int, kHead>) {
    choose<T, kHead>(context, problem, in, out);
  });
  tensors.copy_back();
}

}  // namespace dsalt::cuda::hopper
