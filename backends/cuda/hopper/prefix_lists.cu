#include "prefix_lists.hpp"

#include <algorithm>
#include <bit>

#include "../dependent_launch.cuh"
#include "prefix_lists.cuh"

namespace dsalt::cuda::hopper {
namespace {

__global__ __launch_bounds__(PrefixLists::threads, 1) void prefix_lists_kernel(PrefixListsCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DSALT_EMULATED)
  start_cluster();
  let_later_kernels_start();
  wait_for_earlier_kernels();  // the energies
  PrefixLists(call, *dynamic_shared_memory<PrefixLists::Memory>()).run();
#endif
}

/// Of a cluster: two find each other on every part of the device.
constexpr std::int64_t cluster_blocks = 2;

/// Of a head: as many as have room on the device at a time, and a power of two, which is fast to divide by.
std::int64_t head_blocks(const Context& context, const SelectionLayout& layout) {
  const std::int64_t room = context.multiprocessors / std::max<std::int64_t>(1, layout.sequences * layout.hq);
  const auto blocks =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::min(room, layout.lists))));
  return blocks < cluster_blocks ? 0 : blocks;
}

std::int64_t stretch_parts(const SelectionLayout& layout) { return ceil_div(layout.chunk, part_tokens); }

}  // namespace

bool takes_prefix_lists(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout) {
  if (!context.hopper() || !layout.causal || problem.k > PrefixLists::most_k || layout.chunk > layout.tokens)
    return false;
  const std::int64_t parts = PrefixLists::most_parts, blocks = head_blocks(context, layout);
  return blocks > 0 && layout.lists <= blocks * PrefixLists::most_lists && layout.lists <= parts &&
         (layout.lists - 1) * stretch_parts(layout) <= parts;
}

void select_prefix_lists(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout,
                         const SelectionInputs& in, const SelectionOutputs& out) {
  const std::int64_t blocks = head_blocks(context, layout), lists_of_block = ceil_div(layout.lists, blocks);
  const PrefixListsCall call = {selection_call(problem, layout, in, out),
                                static_cast<int>(layout.lists),
                                static_cast<int>(layout.chunk),
                                static_cast<int>(std::min<std::int64_t>(layout.recent, 1 << 30)),
                                std::countr_zero(static_cast<std::uint64_t>(blocks)),
                                static_cast<int>(stretch_parts(layout)),
                                static_cast<int>(layout.pieces_per_stretch)};
  using Memory = PrefixLists::Memory;
  const std::size_t unused = (PrefixLists::most_lists - lists_of_block) * sizeof(PrefixLists::Ranking::Memory);
  launch_clusters(context, "select_landmarks_forward", prefix_lists_kernel, layout.sequences * layout.hq * blocks,
                  cluster_blocks, PrefixLists::threads, sizeof(Memory) - unused, call);
}

}  // namespace dsalt::cuda::hopper
