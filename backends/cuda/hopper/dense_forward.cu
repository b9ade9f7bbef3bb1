#include "dense_forward.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "../launch.cuh"
#include "dense_few_keys.cuh"
#include "dense_forward.cuh"
#include "dense_short.cuh"
#include "dense_tensors.cuh"
#include "packed_tiles.cuh"
#include "tensor_map.hpp"
#include "warp_specialized.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_forward";

/// One call, ready to be run by one of the kernels.
struct Call {
  const Context& context;
  const AttentionInputs& in;
  const AttentionOutputs& out;
  DenseCall dense;

  std::int64_t pairs() const { return static_cast<std::int64_t>(dense.batch) * dense.hq; }

  template <class F, class T>
  ForwardParameters<T> parameters(const DenseCall& call, std::int64_t work) const {
    const bool packed = in.cu_seqlens_q.present();
    return {make_tensor_map(in.q, F::rows, operation),
            make_tensor_map(in.k, F::keys, operation),
            make_tensor_map(in.v, F::keys, operation),
            call,
            rows_of<T>(out.out, packed),
            rows_of<float>(out.lse, packed),
            static_cast<int>(work)};
  }

  /// F's tiles in blocks of its own (`parts` 0: as many as there are multiprocessors) or in clusters of `parts` blocks.
  template <class F, class T>
  void run(int parts) const {
    DenseCall call = dense;
    std::optional<PackedTiles> list;
    std::int64_t work;
    if (in.cu_seqlens_q.present()) {
      list.emplace(context, operation, call.cu_q, call.batch, call.nq, F::rows);
      call.packed_tiles = list->tiles();
      call.tiles = list->count();
      work = static_cast<std::int64_t>(call.tiles) * call.hq;
    } else {
      call.tiles = static_cast<int>(ceil_div(call.nq, F::rows));
      call.by_section = Divider(call.tiles * call.heads_per_section);
      work = call.tiles * pairs();
    }
    const std::int64_t blocks = parts > 0 ? work * parts : std::min<std::int64_t>(work, context.multiprocessors);
    launch_clusters(context, operation, warp_specialized_kernel<F>, blocks, std::max(parts, 1), F::threads,
                    F::shared_bytes, parameters<F, T>(call, work));
  }

  /// As many blocks for each head as run at a time.
  template <class F, class T>
  void run_few_keys() const {
    const std::int64_t resident = static_cast<std::int64_t>(context.multiprocessors) * F::blocks_per_multiprocessor;
    const std::int64_t chunks = std::clamp<std::int64_t>(resident / pairs(), 1, ceil_div(dense.nq, F::rows));
    launch_clusters(context, operation, warp_specialized_kernel<F>, pairs() * chunks, 1, F::threads, F::shared_bytes,
                    parameters<F, T>(dense, pairs()));
  }

  template <class T, int kHead, bool kCausal>
  void choose() const {
    constexpr int large_groups = kHead == 64 ? 3 : 2;
    using Large = DenseForward<T, kHead, large_groups, 128, kCausal>;
    using FewKeys = DenseFewKeys<T, kHead, kCausal>;
    constexpr int splits = kHead == 64 ? 3 : 2;  // warpgroups of a block: as many as have registers
    // The large kernel reads keys least often, and gives a row the same bits in any batch.
    const std::int64_t large_tiles = pairs() * ceil_div(dense.nq, Large::rows);
    const bool enough = dense.nq > 64 && large_tiles * 10 >= context.multiprocessors * 9;
    if (context.deterministic || dense.cu_q.present()) return run<Large, T>(0);
    if (dense.nk <= FewKeys::most_keys) return run_few_keys<FewKeys, T>();
    if (enough) {
      // Rows that do not exist cost a warpgroup as much time as others, and three hide more than two: narrow tiles are
      // for calls of which they leave out much.
      using Narrow = DenseForward<T, kHead, 2, 128, kCausal>;
      if (large_groups > 2 && warpgroup_turns<Narrow>() * 5 <= warpgroup_turns<Large>() * 4) return run<Narrow, T>(0);
      return run<Large, T>(0);
    }
    run_parts<DenseShort<T, kHead, splits, kCausal>, T>(splits);
  }

  /// How many warpgroups' work a multiprocessor does, if F's tiles are shared out evenly.
  template <class F>
  std::int64_t warpgroup_turns() const {
    return ceil_div(pairs() * ceil_div(dense.nq, F::rows), context.multiprocessors) * (F::consumers / 128);
  }

  /// In clusters of as many blocks as run all at the same time and have keys to read.
  template <class F, class T>
  void run_parts(int splits) const {
    const std::int64_t tiles = pairs() * ceil_div(dense.nq, F::rows), key_tiles = ceil_div(dense.nk, F::keys);
    int parts = F::most_parts;
    while (parts > 1 && (parts * splits > key_tiles || tiles > resident_clusters<F>(parts))) --parts;
    run<F, T>(parts);
  }

  /// How many clusters of `parts` blocks the device runs at a time: fewer than its multiprocessors would suggest, since
  /// a cluster must find its place among those of one group.
  template <class F>
  int resident_clusters(int parts) const {
    static std::mutex mutex;
    static std::map<std::pair<int, int>, int> known;  // of (device, parts)
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = known.try_emplace({context.device, parts}, 0);
    if (is_new)
      entry->second =
          most_resident_clusters(context, operation, warp_specialized_kernel<F>, parts, F::threads, F::shared_bytes);
    return entry->second;
  }
};

}  // namespace

void dense_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                   const AttentionOutputs& outputs) {
  AttentionInputs in = inputs;
  AttentionOutputs out = outputs;
  const DenseTensors tensors(context, operation, {&in.q, &in.k, &in.v}, {&out.out});
  const Call call{context, in, out, dense_call(problem, in)};
  for_kernel(in.q, [&]<class T, int kHead>(Tag<T>, std::integral_constant<int, kHead>) {
    problem.mask == Mask::causal ? call.choose<T, kHead, true>() : call.choose<T, kHead, false>();
  });
  tensors.copy_back();
}

}  // namespace dsalt::cuda::hopper
