#include "dense_backward.hpp"

#include <cmath>
#include <optional>

#include "../launch.cuh"
#include "dense_backward.cuh"
#include "dense_tensors.cuh"
#include "packed_tiles.cuh"
#include "tensor_map.hpp"
#include "warp_specialized.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_backward";

template <class T, int kHead, bool kCausal, bool kOrdered>
void run(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
         const AttentionSaved& saved, const AttentionGradients& gradients) {
  constexpr int rows = kHead == 64 ? 128 : 64;  // queries of a tile
  using F = DenseBackward<T, kHead, rows, kCausal, kOrdered>;
  const bool packed = in.cu_seqlens_q.present();

  DenseCall queries = dense_call(problem, in), keys = queries;
  std::optional<PackedTiles> query_list, key_list;
  std::int64_t slots_per_head, heads = queries.hq, key_blocks;
  if (packed) {
    query_list.emplace(context, operation, queries.cu_q, queries.batch, queries.nq, rows);
    key_list.emplace(context, operation, queries.cu_k, queries.batch, queries.nk, F::keys);
    queries.packed_tiles = query_list->tiles(), queries.tiles = query_list->count();
    keys.packed_tiles = key_list->tiles(), keys.tiles = key_list->count();
    slots_per_head = queries.nq / rows + queries.batch + 1;
    key_blocks = static_cast<std::int64_t>(keys.tiles) * keys.hkv;
  } else {
    queries.tiles = static_cast<int>(ceil_div(queries.nq, rows));
    keys.tiles = static_cast<int>(ceil_div(keys.nk, F::keys));
    slots_per_head = queries.tiles;
    heads *= queries.batch;
    key_blocks = static_cast<std::int64_t>(keys.tiles) * keys.hkv * keys.batch;
  }
  const std::int64_t slots = slots_per_head * heads;
  const Scratch<float> statistics(context, operation, slots * 2 * rows), dq(context, operation, slots * rows * kHead);
  const Scratch<int> turns(context, operation, slots);
  const DenseQuerySlots query_slots{{dq.data(), static_cast<int>(slots_per_head)}, statistics.data(), turns.data()};

  const std::int64_t query_blocks = queries.tiles * heads;
  launch(context, operation, dense_backward_prepare_kernel<T, kHead, rows>, query_blocks, 128, 0, queries, query_slots,
         rows_of<const T>(saved.out, packed), rows_of<const T>(saved.dout, packed),
         rows_of<const float>(saved.lse, packed), rows_of<const float>(saved.dlse, packed));
  const auto scale = static_cast<float>(problem.scale.value_or(1 / std::sqrt(static_cast<double>(kHead))));
  const typename F::Parameters p{make_tensor_map(in.q, rows, operation),
                                 make_tensor_map(in.k, F::keys, operation),
                                 make_tensor_map(in.v, F::keys, operation),
                                 make_tensor_map(saved.dout, rows, operation),
                                 keys,
                                 query_slots,
                                 rows_of<T>(gradients.dk, packed),
                                 rows_of<T>(gradients.dv, packed),
                                 scale};
  launch(context, operation, warp_specialized_kernel<F>, key_blocks, F::threads, F::shared_bytes, p);
  launch(context, operation, query_gradient_kernel<T, kHead, rows>, query_blocks, 256, 0, queries, query_slots,
         rows_of<T>(gradients.dq, packed), scale);
}

template <class T, int kHead>
void choose(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
            const AttentionSaved& saved, const AttentionGradients& gradients) {
  const bool causal = problem.mask == Mask::causal;
  if (context.deterministic)
    causal ? run<T, kHead, true, true>(context, problem, in, saved, gradients)
           : run<T, kHead, false, true>(context, problem, in, saved, gradients);
  else
    causal ? run<T, kHead, true, false>(context, problem, in, saved, gradients)
           : run<T, kHead, false, false>(context, problem, in, saved, gradients);
}

}  // namespace

bool takes_dense_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
                          const AttentionGradients& gradients) {
  return takes_dense(context, problem, in) &&
         (gradients.dq.present() || gradients.dk.present() || gradients.dv.present());
}

void dense_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
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
