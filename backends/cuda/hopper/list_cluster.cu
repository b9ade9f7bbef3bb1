#include "list_cluster.hpp"

#include <algorithm>

#include "list_cluster.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr std::int64_t block_tokens = ListCluster::warps * part_tokens;

__global__ __launch_bounds__(ListCluster::threads, 1) void list_cluster_kernel(SelectionCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DSALT_EMULATED)
  start_cluster();
  let_later_kernels_start();
  wait_for_earlier_kernels();  // the energies
  auto& memory = *dynamic_shared_memory<ListCluster::Memory>();
  ListCluster(call, memory, blockIdx.x / blocks_of_cluster()).run();
#endif
}

/// Of a cluster: enough to hold the candidates of a usual sequence once, but no more than take half of the device,
/// since clusters find less room than single blocks.
std::int64_t cluster_blocks(const Context& context, const SelectionLayout& layout) {
  const std::int64_t heads = layout.sequences * layout.hq;
  std::int64_t blocks = 1;
  while (2 * blocks <= ListCluster::most_blocks && blocks * block_tokens < layout.usual_tokens() &&
         2 * (2 * blocks * heads) <= context.multiprocessors)
    blocks *= 2;
  return blocks;
}

}  // namespace

bool takes_list_clusters(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout) {
  constexpr std::int64_t most_rounds = 4, most_tokens = ListCluster::most_pieces * piece_tokens;
  return context.hopper() && layout.lists == 1 && problem.k <= ListCluster::most_k &&
         layout.sequences * layout.hq <= context.multiprocessors && layout.tokens <= most_tokens &&
         layout.usual_tokens() <= most_rounds * block_tokens * cluster_blocks(context, layout);
}

void select_in_clusters(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout,
                        const SelectionInputs& in, const SelectionOutputs& out) {
  const std::int64_t blocks = cluster_blocks(context, layout), heads = layout.sequences * layout.hq;
  const SelectionCall call = selection_call(problem, layout, in, out);
  launch_clusters(context, "select_landmarks_forward", list_cluster_kernel, heads * blocks, static_cast<int>(blocks),
                  ListCluster::threads, sizeof(ListCluster::Memory), call);
}

}  // namespace dsalt::cuda::hopper
