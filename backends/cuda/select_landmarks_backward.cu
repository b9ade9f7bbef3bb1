// Gradient of the log-weights of given lists, docs/semantics.md, "Landmark selection". With a = sigma(alpha_raw_h),
// ds = dlambda sigma(-s/tau) / tau at the used slots, dz = a ds for nv and (1 - a) ds for nx, and per list G = sum dz,
// Q = sum dz z over M candidates of mean mu and deviation sd:
//   dalpha_raw_h = a (1 - a) sum ds (z(nv) - z(nx))
//   dn_j = dz_j / sd  -  G / (M sd)  -  Q (n_j - mu) / ((M - 1) sd^2)          for every candidate j
//
// The last two terms are linear in n_j: their coefficients are summed over the lists that have j as a candidate, which
// are the last ones (suffix sums), and applied once. The first term belongs to slots: a block owns 256 tokens and looks
// through the slots of the lists that may name them. So every sum has one order, without atomics.
#include "cuda_backend.hpp"
#include "select_landmarks.cuh"
#include "sigmoid.cuh"

namespace dsalt::cuda {
namespace {

constexpr int list_threads = 128, gather_threads = 256;
constexpr int tile_tokens = 256;

/// What a slot hands to its token; token -1: nothing.
struct SlotGradients {
  std::int32_t* token;
  double *x, *v;
};

/// constant + slope (n_j - centre), for nx and nv.
struct Linear {
  double x_constant, x_slope, v_constant, v_slope;
};

/// The statistics of the pieces and how to find them. Linear terms are about the means of a sequence's first piece,
/// which do not depend on the number of lists.
struct Statistics {
  const CandidateStatistics* pieces;
  __device__ const CandidateStatistics* of(const SelectionLayout& layout, std::int64_t b, std::int64_t g) const {
    return pieces + g * layout.pieces + layout.first_piece(b);
  }
};

template <class T>
__global__ __launch_bounds__(list_threads) void select_landmarks_pieces_kernel(SelectionLayout layout, EnergyView<T> nx,
                                                                               EnergyView<T> nv,
                                                                               CandidateStatistics* pieces) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * list_threads + threadIdx.x) / 32;
  const std::int64_t number = quotient(warp, layout.hkv), g = warp - number * layout.hkv;
  if (number >= layout.pieces) return;
  const CandidateStatistics statistics = PieceEnergies<T>(layout, nx, nv, layout.piece(number), g).statistics();
  if (threadIdx.x % 32 == 0) pieces[g * layout.pieces + number] = statistics;
}

/// One list a block: its slots' gradients, its linear terms and its share of dalpha_raw.
template <class T>
__global__ __launch_bounds__(list_threads) void select_landmarks_lists_kernel(
    SelectionLayout layout, EnergyView<T> nx, EnergyView<T> nv, View<const T, 1> alpha_raw,
    View<const std::int32_t, 4> landmarks, View<const T, 4> dlambda, double tau, Statistics statistics,
    SlotGradients slots, Linear* linear, double* dalpha) {
  const std::int64_t k = landmarks.shape[3], lists = layout.sequences * layout.hq * layout.lists;
  for (std::int64_t number = blockIdx.x; number < lists; number += gridDim.x) {
    const std::int64_t head = quotient(number, layout.lists), t = number - head * layout.lists;
    const std::int64_t b = quotient(head, layout.hq), h = head - b * layout.hq, g = quotient(h, layout.group);
    const std::int64_t start = layout.start(b), n = layout.length(b), end = layout.end(t, n);
    const CandidateStatistics* pieces = statistics.of(layout, b, g);
    const CandidateStatistics list = list_statistics(pieces, layout.piece_count(t, n));
    const double inverse_x = list.x.inverse_deviation(list.count), inverse_v = list.v.inverse_deviation(list.count);
    const double raw = *alpha_raw.at(h), alpha = sigmoid(raw), rest = sigmoid(-raw);

    double sum = 0, sum_zx = 0, sum_zv = 0;  // of ds, ds zx, ds zv
    for (std::int64_t slot = threadIdx.x; slot < k; slot += list_threads) {
      std::int32_t j = *landmarks.at(b, h, t, slot);
      double x = NAN, v = NAN;
      if (j >= 0 && j < end) {
        x = *nx.at(b, 0, start + j);
        v = *nv.at(b, g, start + j);
      }
      const bool used = x == x && v == v;
      const double zx = (x - list.x.mean) * inverse_x, zv = (v - list.v.mean) * inverse_v;
      const double ds = used ? *dlambda.at(b, h, t, slot) * sigmoid(-(alpha * zv + rest * zx) / tau) / tau : 0;
      if (used) {
        sum += ds;
        sum_zx += ds * zx;
        sum_zv += ds * zv;
      }
      if (slots.token == nullptr) continue;
      slots.token[number * k + slot] = used ? j : -1;
      slots.x[number * k + slot] = rest * ds * inverse_x;
      slots.v[number * k + slot] = alpha * ds * inverse_v;
    }
    sum = block_sum(sum);
    sum_zx = block_sum(sum_zx);
    sum_zv = block_sum(sum_zv);
    if (threadIdx.x != 0) continue;
    dalpha[number] = alpha * rest * (sum_zv - sum_zx);
    if (linear == nullptr) continue;
    Linear terms = {};
    const auto add = [&](const Moments& energy, const Moments& first_piece, double inverse, double factor, double sum_z,
                         double& constant, double& slope) {
      if (inverse == 0) return;  // z = 0 by rule
      const double bend = factor * sum_z / (list.count - 1) * inverse * inverse;
      constant = (energy.mean - first_piece.mean) * bend - factor * sum / list.count * inverse;
      slope = -bend;
    };
    add(list.x, pieces->x, inverse_x, rest, sum_zx, terms.x_constant, terms.x_slope);
    add(list.v, pieces->v, inverse_v, alpha, sum_zv, terms.v_constant, terms.v_slope);
    linear[number] = terms;
  }
}

__device__ inline Linear operator+(const Linear& a, const Linear& b) {
  return {a.x_constant + b.x_constant, a.x_slope + b.x_slope, a.v_constant + b.v_constant, a.v_slope + b.v_slope};
}

/// The linear terms summed over the heads of a kv head, and over list t and all later ones: entry t of `sums` serves
/// the candidates that list t added. A warp per (sequence, kv head). Later lists of zeros change nothing, to the last
/// bit.
__device__ inline void sum_from_list(const SelectionLayout& layout, std::int64_t b, std::int64_t g,
                                     const Linear* linear, Linear* sums) {
  const int lane = threadIdx.x % 32;
  const auto for_each_lane = [](const Linear& from, auto&& shuffle) {
    return Linear{shuffle(from.x_constant), shuffle(from.x_slope), shuffle(from.v_constant), shuffle(from.v_slope)};
  };
  Linear later = {};
  for (std::int64_t first = (layout.lists - 1) / 32 * 32; first >= 0; first -= 32) {
    const std::int64_t t = first + lane;
    Linear sum = {};
    for (std::int64_t h = g * layout.group; h < (g + 1) * layout.group && t < layout.lists; ++h)
      sum = sum + linear[(b * layout.hq + h) * layout.lists + t];
    for (int step = 1; step < 32; step *= 2) {
      const Linear other =
          for_each_lane(sum, [step](double value) { return __shfl_down_sync(0xffffffffu, value, step); });
      if (lane + step < 32) sum = sum + other;
    }
    sum = sum + later;
    later = for_each_lane(sum, [](double value) { return __shfl_sync(0xffffffffu, value, 0); });
    if (t < layout.lists) sums[(b * layout.hkv + g) * layout.lists + t] = sum;
  }
}

/// The first blocks sum linear terms, a warp per (sequence, kv head); the others dalpha_raw, each for one head.
template <class T>
__global__ __launch_bounds__(list_threads) void select_landmarks_sums_kernel(SelectionLayout layout,
                                                                             std::int64_t linear_blocks,
                                                                             const Linear* linear, Linear* sums,
                                                                             const double* dalpha,
                                                                             View<T, 1> dalpha_raw) {
  if (blockIdx.x < linear_blocks) {
    const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * list_threads + threadIdx.x) / 32;
    if (warp >= layout.sequences * layout.hkv || layout.lists == 0) return;
    return sum_from_list(layout, warp / layout.hkv, warp % layout.hkv, linear, sums);
  }
  const std::int64_t h = blockIdx.x - linear_blocks;
  double sum = 0;
  for (std::int64_t n = threadIdx.x; n < layout.sequences * layout.lists; n += list_threads)
    sum += dalpha[(n / layout.lists * layout.hq + h) * layout.lists + n % layout.lists];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *dalpha_raw.at(h) = narrow<T>(sum);
}

/// dn of 256 tokens for one kv head. Each warp looks through its share of the slots and adds to sums of its own, one
/// hit after the other in the order of heads, lists and slots. dnx is one of Hkv shares: [Hkv][rows].
template <class T>
__global__ __launch_bounds__(gather_threads) void select_landmarks_gather_kernel(
    SelectionLayout layout, EnergyView<T> nx, EnergyView<T> nv, Statistics statistics, SlotGradients slots,
    std::int64_t k, const Linear* sums, double* dnx_shares, EnergyView<T> dnv) {
  constexpr int warps = gather_threads / 32, ahead = 4;
  __shared__ double x_sums[warps][tile_tokens], v_sums[warps][tile_tokens];
  static_assert(tile_tokens == gather_threads);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t g = blockIdx.x % layout.hkv, part = blockIdx.x / layout.hkv;
  const std::int64_t b = layout.sequence_of_part(part, tile_tokens), n = layout.length(b);
  const std::int64_t first = (part - layout.first_part(b, tile_tokens)) * tile_tokens;
  if (first >= n) return;
  for (int token = lane; token < tile_tokens; token += 32) x_sums[warp][token] = v_sums[warp][token] = 0;
  __syncwarp();

  const std::int64_t first_list = min(layout.first_list(first, n), layout.lists),
                     slot_count = (layout.lists - first_list) * k;
  for (std::int64_t h = g * layout.group; h < (g + 1) * layout.group; ++h) {
    const std::int64_t base = ((b * layout.hq + h) * layout.lists + first_list) * k;
    for (std::int64_t at = warp * 32 * ahead; at < slot_count; at += gather_threads * ahead) {
      std::int64_t local[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        local[i] = at + i * 32 + lane < slot_count ? slots.token[base + at + i * 32 + lane] - first : -1;
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        std::uint32_t hits = __ballot_sync(0xffffffffu, local[i] >= 0 && local[i] < tile_tokens);
        for (; hits != 0; hits &= hits - 1) {
          if (lane == __ffs(hits) - 1) {
            x_sums[warp][local[i]] += slots.x[base + at + i * 32 + lane];
            v_sums[warp][local[i]] += slots.v[base + at + i * 32 + lane];
          }
          __syncwarp();
        }
      }
    }
  }
  __syncthreads();

  const std::int64_t j = first + threadIdx.x, row = layout.start(b) + j;
  if (j >= n) return;
  double dx = 0, dv = 0;
  for (int from = 0; from < warps; ++from) {
    dx += x_sums[from][threadIdx.x];
    dv += v_sums[from][threadIdx.x];
  }
  const double x = *nx.at(b, 0, row), v = *nv.at(b, g, row);
  const std::int64_t t = layout.first_list(j, n);
  if (t < layout.lists && x == x && v == v) {
    const CandidateStatistics* about = statistics.of(layout, b, g);
    const Linear linear = sums[(b * layout.hkv + g) * layout.lists + t];
    dx += linear.x_constant + linear.x_slope * (x - about->x.mean);
    dv += linear.v_constant + linear.v_slope * (v - about->v.mean);
  }
  if (dnx_shares != nullptr) {
    const std::int64_t rows = layout.starts.present() ? layout.tokens : layout.sequences * layout.tokens;
    dnx_shares[g * rows + (layout.starts.present() ? row : b * layout.tokens + j)] = dx;
  }
  if (dnv.data != nullptr) *dnv.at(b, g, row) = narrow<T>(dv);
}

/// Sums the shares of the kv heads.
template <class T>
__global__ __launch_bounds__(gather_threads) void select_landmarks_dnx_kernel(SelectionLayout layout,
                                                                              const double* shares, EnergyView<T> dnx) {
  const std::int64_t rows = layout.starts.present() ? layout.tokens : layout.sequences * layout.tokens;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * gather_threads + threadIdx.x;
  if (row >= (layout.starts.present() ? layout.start(layout.sequences) : rows)) return;
  double sum = 0;
  for (std::int64_t g = 0; g < layout.hkv; ++g) sum += shares[g * rows + row];
  T* const to = layout.starts.present() ? dnx.at(0, 0, row) : dnx.at(row / layout.tokens, 0, row % layout.tokens);
  *to = narrow<T>(sum);
}

template <class T>
void select_backward(const Context& context, const SelectionProblem& problem, const SelectionInputs& in,
                     const SelectionSaved& saved, const SelectionGradients& gradients) {
  constexpr const char* operation = "select_landmarks_backward";
  const SelectionLayout layout = selection_layout(problem, in, saved.landmarks.shape[2]);
  const auto nx = energy_view<T>(layout, in.nx, false), nv = energy_view<T>(layout, in.nv, true);
  const bool of_energies = gradients.dnx.present() || gradients.dnv.present();
  const Scratch<CandidateStatistics> pieces(context, operation, layout.hkv * layout.pieces);
  launch(context, operation, select_landmarks_pieces_kernel<T>, ceil_div(layout.hkv * layout.pieces * 32, list_threads),
         dim3(list_threads), 0, layout, nx, nv, pieces.data());

  const std::int64_t lists = layout.sequences * layout.hq * layout.lists,
                     slot_count = of_energies ? lists * problem.k : 0;
  const Scratch<std::int32_t> tokens(context, operation, slot_count);
  const Scratch<double> of_slots(context, operation, 2 * slot_count), dalpha(context, operation, lists);
  const Scratch<Linear> linear(context, operation, of_energies ? lists : 0),
      sums(context, operation, of_energies ? layout.sequences * layout.hkv * layout.lists : 0);
  const SlotGradients slots = {tokens.data(), of_slots.data(), of_slots.data() + slot_count};
  const Statistics statistics = {pieces.data()};
  launch(context, operation, select_landmarks_lists_kernel<T>, std::min<std::int64_t>(lists, 0x7fffffff),
         dim3(list_threads), 0, layout, nx, nv, device_view<const T, 1>(in.alpha_raw),
         device_view<const std::int32_t, 4>(saved.landmarks), device_view<const T, 4>(saved.dlandmark_log_weight),
         problem.tau, statistics, slots, linear.data(), dalpha.data());

  const std::int64_t linear_blocks = of_energies ? ceil_div(layout.sequences * layout.hkv * 32, list_threads) : 0;
  const std::int64_t alpha_blocks = gradients.dalpha_raw.present() ? layout.hq : 0;
  launch(context, operation, select_landmarks_sums_kernel<T>, linear_blocks + alpha_blocks, dim3(list_threads), 0,
         layout, linear_blocks, linear.data(), sums.data(), dalpha.data(), device_view<T, 1>(gradients.dalpha_raw));
  if (!of_energies) return;

  const std::int64_t rows = in.nx.size();
  const Scratch<double> shares(context, operation, gradients.dnx.present() ? layout.hkv * rows : 0);
  launch(context, operation, select_landmarks_gather_kernel<T>, layout.hkv * layout.part_count(tile_tokens),
         dim3(gather_threads), 0, layout, nx, nv, statistics, slots, problem.k, sums.data(), shares.data(),
         energy_view<T>(layout, gradients.dnv, true));
  if (gradients.dnx.present())
    launch(context, operation, select_landmarks_dnx_kernel<T>, ceil_div(rows, gather_threads), dim3(gather_threads), 0,
           layout, shares.data(), energy_view<T>(layout, gradients.dnx, false));
}

}  // namespace

void CudaBackend::select_landmarks_backward(const SelectionProblem& problem, const SelectionInputs& in,
                                            const SelectionSaved& saved, const SelectionGradients& gradients) {
  const CurrentDevice current(context_.device);
  if (in.nx.dtype == DType::f64)
    select_backward<double>(context_, problem, in, saved, gradients);
  else
    select_backward<float>(context_, problem, in, saved, gradients);
}

}  // namespace dsalt::cuda
