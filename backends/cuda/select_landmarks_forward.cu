// Landmark selection, docs/semantics.md, "Landmark selection". For the candidates of each list, a = sigma(alpha_raw_h):
//   s_j = a z(nv_j) + (1 - a) z(nx_j);  the K highest, ties to the lower index;  lambda = log sigma(s / tau)
//
// Scores in double. They are ranked afresh for every list, since the ratio of the two deviations changes. How a block
// finds its list is in list_selection.cuh; long lists come first. Before that, one launch takes the statistics of the
// lists' pieces and brings the energies in order.
#include "cuda_backend.hpp"
#include "list_selection.cuh"
#include "select_landmarks.cuh"

namespace dsalt::cuda {
namespace {

constexpr int prepare_threads = 128;

/// Copies 512 tokens of one row and their bounds, by one warp; `to` and `bound` belong to the sequence's first token.
template <class T>
__device__ void order_part(const EnergyView<T>& from, std::int64_t b, std::int64_t g, std::int64_t start,
                           std::int64_t first, std::int64_t n, T* to, T* bound) {
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (std::int64_t j = first + lane; j - lane < min(first + piece_tokens, n); j += 32) {
    const T value = j < n ? *from.at(b, g, start + j) : static_cast<T>(NAN);
    T largest = value == value ? value : static_cast<T>(-INFINITY);
    for (int step = neighbours / 2; step > 0; step /= 2)
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (j / neighbours * neighbours >= n) continue;  // the second half of the warp may lie past the end
    to[j] = value;
    if (lane % neighbours == 0) bound[j / neighbours] = largest;
  }
}

/// Each warp makes one part of OrderedEnergies or the statistics of one piece.
template <class T>
__global__ __launch_bounds__(prepare_threads) void select_landmarks_prepare_kernel(SelectionLayout layout,
                                                                                   EnergyView<T> nx, EnergyView<T> nv,
                                                                                   OrderedEnergies<T> energies,
                                                                                   std::int64_t parts,
                                                                                   CandidateStatistics* pieces) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * prepare_threads + threadIdx.x) / 32;
  const std::int64_t g = warp % layout.hkv, number = warp / layout.hkv;
  if (number < parts) {
    const std::int64_t b = layout.sequence_of_part(number, piece_tokens), n = layout.length(b), start = layout.start(b);
    const std::int64_t first = (number - layout.first_part(b, piece_tokens)) * piece_tokens;
    const OrderedEnergies<T> to = energies.of(g, layout.first_part(b, neighbours));
    if (g == 0) order_part(nx, b, 0, start, first, n, to.x, to.x_bound);
    order_part(nv, b, g, start, first, n, to.v, to.v_bound);
  } else if (number - parts < layout.pieces) {
    const CandidateStatistics statistics = piece_statistics(layout, nx, nv, layout.piece(number - parts), g);
    if (threadIdx.x % 32 == 0) pieces[g * layout.pieces + number - parts] = statistics;
  }
}

template <class T>
__global__ __launch_bounds__(list_threads) void select_landmarks_kernel(
    SelectionLayout layout, OrderedEnergies<T> energies, const CandidateStatistics* pieces, View<const T, 1> alpha_raw,
    View<std::int32_t, 4> landmarks, View<T, 4> score, View<T, 4> weight, double tau) {
  __shared__ Survivors survivors;
  const std::int64_t heads = layout.sequences * layout.hq;
  for (std::int64_t number = blockIdx.x; number < heads * layout.lists; number += gridDim.x) {
    const std::int64_t t = layout.lists - 1 - number / heads, b = number % heads / layout.hq, h = number % layout.hq;
    const std::int64_t g = h / layout.group, n = layout.length(b);
    const CandidateStatistics of_list =
        join_pieces<list_threads>(pieces + g * layout.pieces + layout.first_piece(b), layout.piece_count(t, n));
    const double raw = *alpha_raw.at(h);
    const List<T> list = {.energies = energies.of(g, layout.first_part(b, neighbours)),
                          .rule = {sigmoid(raw) * of_list.v.inverse_deviation(of_list.count), of_list.v.mean,
                                   sigmoid(-raw) * of_list.x.inverse_deviation(of_list.count), of_list.x.mean},
                          .end = layout.end(t, n),
                          .k = landmarks.shape[3],
                          .tau = tau,
                          .landmarks = landmarks.at(b, h, t),
                          .score = score.at(b, h, t),
                          .weight = weight.at(b, h, t),
                          .landmark_stride = landmarks.strides[3],
                          .score_stride = score.strides[3],
                          .weight_stride = weight.strides[3]};
    write_list(list, survivors);
    __syncthreads();  // the next list writes shared memory
  }
}

template <class T>
void select(const Context& context, const SelectionProblem& problem, const SelectionInputs& in,
            const SelectionOutputs& out) {
  constexpr const char* operation = "select_landmarks_forward";
  const SelectionLayout layout = selection_layout(problem, in, out.landmarks.shape[2]);
  const std::int64_t places = layout.part_count(neighbours), v_places = layout.hkv * places;
  const Scratch<T> energies(context, operation, (places + v_places) * (neighbours + 1));
  T* const bounds = energies.data() + (places + v_places) * neighbours;
  const OrderedEnergies<T> ordered = {energies.data(), energies.data() + places * neighbours, bounds, bounds + places,
                                      places};
  const Scratch<CandidateStatistics> pieces(context, operation, layout.hkv * layout.pieces);

  const std::int64_t parts = layout.part_count(piece_tokens);
  const std::int64_t warps = layout.hkv * (parts + layout.pieces);
  launch(context, operation, select_landmarks_prepare_kernel<T>, ceil_div(warps * 32, prepare_threads),
         dim3(prepare_threads), 0, layout, energy_view<T>(layout, in.nx, false), energy_view<T>(layout, in.nv, true),
         ordered, parts, pieces.data());

  const std::int64_t lists = layout.sequences * layout.hq * layout.lists;
  launch(context, operation, select_landmarks_kernel<T>, std::min<std::int64_t>(lists, 0x7fffffff), dim3(list_threads),
         0, layout, ordered, pieces.data(), device_view<const T, 1>(in.alpha_raw),
         device_view<std::int32_t, 4>(out.landmarks), device_view<T, 4>(out.score),
         device_view<T, 4>(out.landmark_log_weight), problem.tau);
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
