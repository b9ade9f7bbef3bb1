// Landmark selection, docs/semantics.md, "Landmark selection". For the candidates of each list, a = sigma(alpha_raw_h):
//   s_j = a z(nv_j) + (1 - a) z(nx_j);  the K highest, ties to the lower index;  lambda = log sigma(s / tau)
//
// Two launches: the statistics of the lists' pieces (and energies that do not lie token by token, copied so); then the
// lists, several consecutive ones of a head by each block, long ones first. Scores are in double. They are ranked
// afresh for every list, since the ratio of the two deviations changes. How a block finds its lists is in
// list_selection.cuh. In one launch instead: single lists, hopper/list_cluster.cuh, and those of sequences that a block
// holds at a time, hopper/prefix_lists.cuh.
#include "cuda_backend.hpp"
#include "dependent_launch.cuh"
#include "hopper/list_cluster.hpp"
#include "hopper/prefix_lists.hpp"
#include "list_radix.cuh"
#include "list_selection.cuh"
#include "select_landmarks.cuh"

namespace dsalt::cuda {
namespace {

constexpr int prepare_threads = 128;

/// A warp for each piece and kv head. Copies, which may be absent, have the rows of the originals.
template <class T>
__global__ __launch_bounds__(prepare_threads) void select_landmarks_prepare_kernel(SelectionLayout layout,
                                                                                   EnergyView<T> nx, EnergyView<T> nv,
                                                                                   EnergyView<T> x_copy,
                                                                                   EnergyView<T> v_copy,
                                                                                   CandidateStatistics* pieces) {
  let_later_kernels_start();  // that of the lists is on its way while the statistics are taken
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * prepare_threads + threadIdx.x) / 32;
  const std::int64_t number = quotient(warp, layout.hkv), g = warp - number * layout.hkv;
  if (number >= layout.pieces) return;
  const Piece piece = layout.piece(number);
  const PieceEnergies<T> energies(layout, nx, nv, piece, g);
  if (x_copy.data != nullptr && g == 0) energies.store_x(layout, x_copy, piece);
  if (v_copy.data != nullptr) energies.store_v(layout, v_copy, piece, g);
  const CandidateStatistics statistics = energies.statistics();
  if (threadIdx.x % 32 == 0) pieces[g * layout.pieces + number] = statistics;
}

template <class T, int threads>
__global__ __launch_bounds__(threads, 1024 / threads) void select_landmarks_kernel(
    SelectionLayout layout, EnergyView<T> x, EnergyView<T> v, const CandidateStatistics* pieces,
    View<const T, 1> alpha_raw, View<std::int32_t, 4> landmarks, View<T, 4> score, View<T, 4> weight, double tau,
    int lists_per_block) {
  using Memory = ListMemory<T, threads>;
  Memory* const memory = dynamic_shared_memory<Memory>();
  __shared__ RadixMemory<threads> radix;
  const std::int64_t heads = layout.sequences * layout.hq, groups = ceil_div(layout.lists, lists_per_block);
  const int warp = threadIdx.x / 32;
  wait_for_earlier_kernels();  // the statistics
  for (std::int64_t number = blockIdx.x; number < heads * groups; number += gridDim.x) {
    const std::int64_t late = quotient(number, heads), head = number - late * heads, b = quotient(head, layout.hq),
                       h = head - b * layout.hq, g = quotient(h, layout.group);
    const std::int64_t first = (groups - 1 - late) * lists_per_block, n = layout.length(b), start = layout.start(b);
    const int count = static_cast<int>(min(static_cast<std::int64_t>(lists_per_block), layout.lists - first));
    const T *const from_x = x.at(b, 0, start), *const from_v = v.at(b, g, start);
    if (warp < count) {
      const std::int64_t t = first + warp;
      List<T> list = {.x = from_x, .v = from_v, .rule = {}, .end = layout.end(t, n), .tau = tau};
      list.set_outputs(landmarks, score, weight, b, h, t);
      describe(memory[warp].state, list,
               list_statistics(pieces + g * layout.pieces + layout.first_piece(b), layout.piece_count(t, n)),
               share_of_score(*alpha_raw.at(h)), list.k > most_ranked<threads> && list.end > threads);
    }
    const ListGroup<T, threads> group = {
        from_x, from_v, memory, count, landmarks.shape[3], layout.end(first + count - 1, n)};
    group.search();
    ListRanking<T, threads>{memory, count, group.k}.write();
    for (int l = 0; l < count; ++l)
      if (memory[l].state.by_radix || memory[l].state.survivors > most_survivors)
        write_by_radix(memory[l].state.list, radix);
    __syncthreads();  // the next lists overwrite shared memory
  }
}

/// A block takes as many lists as fill the device once, where there is memory for them.
template <int threads, class T>
void launch_lists(const Context& context, const char* operation, const SelectionLayout& layout, const EnergyView<T>& x,
                  const EnergyView<T>& v, const CandidateStatistics* pieces, const SelectionInputs& in,
                  const SelectionOutputs& out, double tau) {
  using Memory = ListMemory<T, threads>;
  constexpr std::int64_t resident = 1024 / threads, other_shared_memory = 8192;
  const std::int64_t heads = layout.sequences * layout.hq;
  const std::int64_t fitting = static_cast<std::int64_t>(context.shared_memory_per_block - other_shared_memory) /
                               static_cast<std::int64_t>(sizeof(Memory)) / resident;
  const std::int64_t most = std::clamp<std::int64_t>(fitting, 1, most_lists<threads>);
  const std::int64_t filling = ceil_div(heads * layout.lists, resident * std::max(context.multiprocessors, 1));
  const std::int64_t together = std::min({most, filling, layout.lists});
  const std::int64_t blocks = heads * ceil_div(layout.lists, together);
  const auto launch_kernel = [&](auto... arguments) {
    const auto kernel = select_landmarks_kernel<T, threads>;
    const std::int64_t grid = std::min<std::int64_t>(blocks, 0x7fffffff);
    const std::size_t shared_bytes = static_cast<std::size_t>(together) * sizeof(Memory);
    if (context.hopper())
      launch_clusters(context, operation, kernel, grid, 1, threads, shared_bytes, arguments...);
    else
      launch(context, operation, kernel, grid, dim3(threads), shared_bytes, arguments...);
  };
  launch_kernel(layout, x, v, pieces, device_view<const T, 1>(in.alpha_raw),
                device_view<std::int32_t, 4>(out.landmarks), device_view<T, 4>(out.score),
                device_view<T, 4>(out.landmark_log_weight), tau, static_cast<int>(together));
}

template <class T>
void select(const Context& context, const SelectionProblem& problem, const SelectionInputs& in,
            const SelectionOutputs& out) {
  constexpr const char* operation = "select_landmarks_forward";
  const SelectionLayout layout = selection_layout(problem, in, out.landmarks.shape[2]);
  if constexpr (std::is_same_v<T, float>) {
    if (hopper::takes_list_clusters(context, problem, layout))
      return hopper::select_in_clusters(context, problem, layout, in, out);
    if (hopper::takes_prefix_lists(context, problem, layout))
      return hopper::select_prefix_lists(context, problem, layout, in, out);
  }
  const auto nx = energy_view<T>(layout, in.nx, false), nv = energy_view<T>(layout, in.nv, true);
  const std::int64_t rows = in.nx.size();
  const Scratch<T> x_memory(context, operation, nx.token == 1 ? 0 : rows),
      v_memory(context, operation, nv.token == 1 ? 0 : layout.hkv * rows);
  const std::int64_t of_sequence = layout.starts.present() ? 0 : layout.tokens;
  const EnergyView<T> x_copy = {x_memory.data(), of_sequence, 0, 1}, v_copy = {v_memory.data(), of_sequence, rows, 1};
  const Scratch<CandidateStatistics> pieces(context, operation, layout.hkv * layout.pieces);
  launch(context, operation, select_landmarks_prepare_kernel<T>,
         ceil_div(layout.hkv * layout.pieces * 32, prepare_threads), dim3(prepare_threads), 0, layout, nx, nv, x_copy,
         v_copy, pieces.data());

  const EnergyView<T> x = nx.token == 1 ? nx : x_copy, v = nv.token == 1 ? nv : v_copy;
  // Small blocks where they hold a list of the usual length.
  constexpr int small = 256, large = 1024;
  if (layout.usual_tokens() <= small * CandidateTile<T>::size && problem.k <= most_ranked<small>)
    launch_lists<small>(context, operation, layout, x, v, pieces.data(), in, out, problem.tau);
  else
    launch_lists<large>(context, operation, layout, x, v, pieces.data(), in, out, problem.tau);
}

}  // namespace

void CudaBackend::select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& in,
                                           const SelectionOutputs& out) {
  const CurrentDevice current(context_.device);
  if (out.landmarks.size() == 0) return;
  if (in.nx.dtype == DType::f64)
    select<double>(context_, problem, in, out);
  else
    select<float>(context_, problem, in, out);
}

}  // namespace dsalt::cuda
