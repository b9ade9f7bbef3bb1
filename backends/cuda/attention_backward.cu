// Gradients of <dout, out> + <dlse, lse>: docs/semantics.md, "Attention", "Gradients".
//
//   delta_i = <o_i, do_i>     dP_ij = r_ij <do_i, v_j>     ds_ij = P_ij (dP_ij - delta_i + dlse_i),  P_ij = exp(s_ij -
//   lse_i) dq_i = scale sum_j ds_ij k_j      dk_j = scale sum_{h,i} ds_ij q_i      dv_j = sum_{h,i} r_ij P_ij do_i
//
// with the stored out and lse. No sum is made of atomics: each has one owner, which adds in a fixed order.
//   1. rows     delta, lse, and which dense keys each tile of rows admits
//   2. queries  by tile of rows: dq, dw of each row                              (attention_backward_queries.cu)
//   3. slots    by 64 entries of a landmark list and segment of its rows: sums for dk, dv, dlambda by list entry; then
//               each key adds up those that belong to it, in the order of lists. As many segments at a time as fit in a
//               bounded memory.                                                  (attention_backward_slots.cu, here)
//   4. keys     by tile of keys: the dense part of dk and dv, plus what 3 found  (attention_backward_keys.cu)
//   5. dw and dlambda: sums over heads and segments
#include <algorithm>
#include <limits>

#include "attention_backward.cuh"
#include "cuda_backend.hpp"
#include "hopper/dense_backward.hpp"
#include "hopper/dense_call.cuh"
#include "hopper/sparse_backward.hpp"

namespace dsalt::cuda {
namespace {

constexpr const char* operation = "attention_backward";
constexpr std::int64_t round_bytes = std::int64_t{256} << 20;
constexpr int fold_columns = 128;

template <class T>
__global__ void __launch_bounds__(attention_threads) attention_backward_rows_kernel(AttentionBackwardCall<T> backward) {
  using Real = accumulator_t<T>;
  const AttentionCall<T>& call = backward.call;
  std::int64_t tile = blockIdx.x % call.row_tiles;
  const int z = static_cast<int>(blockIdx.x / call.row_tiles);
  const SequenceRows s = call.row_tile(tile, tile);
  const std::int64_t first_row = tile * attention_tile,
                     row_count = static_cast<std::int64_t>(s.nq) * call.heads_per_row_head;
  if (first_row >= row_count) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t place = backward.row_place(s, z, first_row);
  if (warp == 0) {
    int4 range{INT32_MAX, 0, 0, INT32_MAX};
    for (int n = lane; n < attention_tile; n += 32) {
      AttentionRow<T> row;
      row.fill(call, s, z, first_row + n);
      if (row.begin < row.end) range.x = min(range.x, row.begin);
      range.y = max(range.y, row.end);
      range.z = max(range.z, row.begin);
      range.w = min(range.w, row.end);
    }
    range = {warp_min(range.x), warp_max(range.y), warp_max(range.z), warp_min(range.w)};
    if (lane == 0) backward.tile_range[place / attention_tile] = range;
  }
  for (int n = warp; n < attention_tile && first_row + n < row_count; n += attention_threads / 32) {
    const std::int64_t query = s.q_start + (first_row + n) / call.heads_per_row_head,
                       head = z * call.heads_per_row_head + (first_row + n) % call.heads_per_row_head;
    const T* out = backward.out.at(s.b, head, query);
    const T* dout = backward.dout.at(s.b, head, query);
    Real delta = 0;
    for (int c = lane; c < call.dv; c += 32)
      delta += widen(out[c * backward.out.element]) * widen(dout[c * backward.dout.element]);
    delta = warp_sum(delta);
    if (lane > 0) continue;
    backward.row_lse[place + n] = *backward.lse.at(s.b, head, query) * exp_unit<Real>;
    backward.row_delta[place + n] = delta - (backward.dlse.present() ? *backward.dlse.at(s.b, head, query) : Real{0});
  }
}

/// Adds a round of slot_dk_dv to landmark_dk_dv: one block per key tile of a kv head and 128 columns. Lists are
/// ascending, so a binary search finds the entries of the tile. Every thread owns a column, every list has a key once.
template <class T>
__global__ void __launch_bounds__(attention_threads) attention_backward_fold_kernel(AttentionBackwardCall<T> backward) {
  using Real = accumulator_t<T>;
  static_assert(fold_columns == attention_threads);
  const AttentionCall<T>& call = backward.call;
  const int columns = call.d + call.dv, pieces = (columns + fold_columns - 1) / fold_columns;
  const int column = static_cast<int>(blockIdx.x % pieces) * fold_columns + threadIdx.x;
  std::int64_t tile = blockIdx.x / pieces % call.key_tiles;
  const int kv_head = static_cast<int>(blockIdx.x / pieces / call.key_tiles);
  const SequenceRows s = call.key_tile(tile, tile);
  if (tile * attention_tile >= s.nk) return;
  const int first_key = static_cast<int>(tile) * attention_tile;
  const bool mine = column < call.d ? backward.dk.present() : column < columns && backward.dv.present();

  Real* sums = dynamic_shared_memory<Real>() + threadIdx.x;
  for (int n = 0; n < attention_tile; ++n) sums[n * fold_columns] = 0;
  __shared__ int found_begin[attention_threads], found_end[attention_threads];
  const int row_heads_per_kv_head = call.row_heads / call.kv_heads;
  const std::int64_t first = (s.b * call.row_heads + kv_head * row_heads_per_kv_head) * call.lists,
                     last = first + row_heads_per_kv_head * call.lists;  // (b, row head, t)
  const std::int64_t begin = max(first, backward.round_begin / backward.segments),
                     end = min(last, (backward.round_end + backward.segments - 1) / backward.segments);
  bool any = false;
  for (std::int64_t start = begin; start < end; start += attention_threads) {
    // 128 lists at a time: which entries are keys of this tile?
    int low = 0, high = 0;
    if (start + threadIdx.x < end) {
      const std::int64_t t = (start + threadIdx.x) % call.lists;
      const int z = static_cast<int>((start + threadIdx.x) / call.lists % call.row_heads);
      const std::int64_t list = (s.b * call.list_heads + call.list_head(z)) * call.lists + t;
      const std::int32_t* index = call.clean.index + list * call.slots;
      const auto lower_bound = [&](int from, std::int64_t key) {
        int to = call.clean.count[list];
        while (from < to) {
          const int middle = from + (to - from) / 2;
          if (index[middle] < key)
            from = middle + 1;
          else
            to = middle;
        }
        return from;
      };
      low = lower_bound(0, first_key);
      high = lower_bound(low, static_cast<std::int64_t>(first_key) + attention_tile);
    }
    if (!__syncthreads_or(low < high)) continue;
    any = true;
    found_begin[threadIdx.x] = low;
    found_end[threadIdx.x] = high;
    __syncthreads();
    for (int n = 0; n < attention_threads && start + n < end; ++n) {
      if (found_begin[n] == found_end[n]) continue;
      const std::int64_t bzt = start + n, t = bzt % call.lists;
      const int z = static_cast<int>(bzt / call.lists % call.row_heads);
      const std::int32_t* index =
          call.clean.index + ((s.b * call.list_heads + call.list_head(z)) * call.lists + t) * call.slots;
      for (std::int64_t segment = 0; segment < backward.segments; ++segment) {
        const std::int64_t place = bzt * backward.segments + segment;
        std::int64_t row, end_row;
        backward.rows_of_segment(s, t, segment, row, end_row);
        if (row >= end_row) break;
        if (place < backward.round_begin || place >= backward.round_end || !mine) continue;
        for (int entry = found_begin[n]; entry < found_end[n]; ++entry)
          sums[(index[entry] - first_key) * fold_columns] +=
              backward.slot_dk_dv[((place - backward.round_begin) * call.slots + entry) * columns + column];
      }
    }
    __syncthreads();  // nobody reads what was found any more
  }
  if (!any || !mine) return;
  for (int n = 0; n < attention_tile && first_key + n < s.nk; ++n)
    backward.landmark_dk_dv[backward.key_place(s, kv_head, first_key + n) + column] += sums[n * fold_columns];
}

/// dlambda of one list: sums over the row heads that share it and over segments; 0 at other slots.
template <class T>
__global__ void __launch_bounds__(attention_threads)
    attention_backward_dlambda_kernel(AttentionBackwardCall<T> backward, View<accumulator_t<T>, 4> dlambda) {
  using Real = accumulator_t<T>;
  const AttentionCall<T>& call = backward.call;
  const std::int64_t list = blockIdx.x, t = list % call.lists, hl = list / call.lists % call.list_heads,
                     b = list / call.lists / call.list_heads;
  for (std::int64_t slot = threadIdx.x; slot < call.slots; slot += attention_threads) *dlambda.at(b, hl, t, slot) = 0;
  __syncthreads();
  const int first_z = call.list_heads == 1 ? 0 : static_cast<int>(hl);
  const int last_z = call.list_heads == 1 ? call.row_heads : first_z + 1;
  const SequenceRows s = call.sequence(b);
  for (int entry = threadIdx.x; entry < call.clean.count[list]; entry += attention_threads) {
    Real sum = 0;
    for (int z = first_z; z < last_z; ++z)
      for (std::int64_t segment = 0; segment < backward.segments; ++segment) {
        std::int64_t row, end_row;
        backward.rows_of_segment(s, t, segment, row, end_row);
        if (row >= end_row) break;
        const std::int64_t place = ((b * call.row_heads + z) * call.lists + t) * backward.segments + segment;
        sum += backward.slot_dlambda[place * call.slots + entry];
      }
    *dlambda.at(b, hl, t, call.clean.slot[list * call.slots + entry]) = sum;
  }
}

/// dw of each query, summed over the heads that share a window; 0 where there is no soft edge.
template <class T>
__global__ void __launch_bounds__(attention_tile)
    attention_backward_dwindow_kernel(AttentionBackwardCall<T> backward, RowTensor<accumulator_t<T>> dwindow) {
  using Real = accumulator_t<T>;
  const AttentionCall<T>& call = backward.call;
  std::int64_t tile = blockIdx.x;
  const SequenceRows s = call.row_tile(tile, tile);
  const std::int64_t row = tile * attention_tile + threadIdx.x;
  if (row >= static_cast<std::int64_t>(s.nq) * call.heads_per_row_head || row % call.heads_per_row_head != 0) return;
  Real sum = 0;
  for (int h = 0; h < call.heads; ++h) {
    if (backward.row_dwindow != nullptr)
      sum +=
          backward.row_dwindow[backward.row_place(s, h / call.heads_per_row_head, row + h % call.heads_per_row_head)];
    if (call.window_heads == 1 && h + 1 < call.heads) continue;
    *dwindow.at(s.b, call.window_heads == 1 ? 0 : h, s.q_start + row / call.heads_per_row_head) = sum;
    sum = 0;
  }
}

template <class T>
void landmark_gradients(const Context& context, AttentionBackwardCall<T>& backward, const TensorView& dlambda,
                        Scratch<accumulator_t<T>>& slot_dlambda) {
  using Real = accumulator_t<T>;
  const AttentionCall<T>& call = backward.call;
  const bool keys = backward.dk.present() || backward.dv.present();
  const std::int64_t places = call.batch * call.row_heads * call.lists * backward.segments;
  const std::int64_t place_elements = call.slots * (call.d + call.dv);
  const std::int64_t round =
      keys ? std::clamp<std::int64_t>(round_bytes / static_cast<std::int64_t>(sizeof(Real)) / place_elements, 1, places)
           : places;
  Scratch<Real> slot_dk_dv(context, operation, keys ? round * place_elements : 0);
  backward.slot_dk_dv = slot_dk_dv.data();
  backward.slot_dlambda = slot_dlambda.data();
  for (std::int64_t begin = 0; begin < places; begin += round) {
    backward.round_begin = begin;
    backward.round_end = std::min(begin + round, places);
    launch_attention_backward_slots(context, backward);
    if (!keys) continue;
    const std::int64_t blocks = call.key_tiles * call.kv_heads * ceil_div(call.d + call.dv, fold_columns);
    launch(context, operation, attention_backward_fold_kernel<T>, blocks, dim3(attention_threads),
           attention_tile * fold_columns * sizeof(Real), backward);
  }
  if (dlambda.present())
    launch(context, operation, attention_backward_dlambda_kernel<T>, call.batch * call.list_heads * call.lists,
           dim3(attention_threads), 0, backward, device_view<Real, 4>(dlambda));
}

template <class T>
void backward_of(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                 const CleanLists& clean, const AttentionSaved& saved, const AttentionGradients& gradients) {
  using Real = accumulator_t<T>;
  AttentionBackwardCall<T> backward{};
  AttentionCall<T>& call = backward.call;
  call = attention_call<T>(problem, inputs);
  call.clean = clean;
  backward.out = row_tensor<const T>(saved.out, call.packed, true);
  backward.dout = row_tensor<const T>(saved.dout, call.packed, true);
  backward.lse = row_tensor<const Real>(saved.lse, call.packed, false);
  backward.dlse = row_tensor<const Real>(saved.dlse, call.packed, false);
  backward.dq = row_tensor<T>(gradients.dq, call.packed, true);
  backward.dk = row_tensor<T>(gradients.dk, call.packed, true);
  backward.dv = row_tensor<T>(gradients.dv, call.packed, true);

  backward.most_bias = std::numeric_limits<Real>::infinity();
  if constexpr (is_16_bit<T>)
    if (hopper::takes_attention(context, problem, inputs))
      backward.most_bias = most_landmark_exponent(call.score_factor);

  const bool wants_window = gradients.dwindow.present() && call.soft;
  const bool wants_keys = gradients.dk.present() || gradients.dv.present();
  const TensorView& dlambda = gradients.dlandmark_log_weight;
  const std::int64_t tiles = call.row_tiles * call.row_heads, rows = tiles * attention_tile;
  Scratch<Real> row_lse(context, operation, rows), row_delta(context, operation, rows),
      row_dwindow(context, operation, wants_window ? rows : 0);
  Scratch<int4> tile_range(context, operation, tiles);
  backward.row_lse = row_lse.data();
  backward.row_delta = row_delta.data();
  backward.row_dwindow = row_dwindow.data();
  backward.tile_range = tile_range.data();
  launch(context, operation, attention_backward_rows_kernel<T>, tiles, dim3(attention_threads), 0, backward);

  if (gradients.dq.present() || wants_window) launch_attention_backward_queries(context, backward);
  if (gradients.dwindow.present())
    launch(context, operation, attention_backward_dwindow_kernel<T>, call.row_tiles, dim3(attention_tile), 0, backward,
           row_tensor<Real>(gradients.dwindow, call.packed, false));

  const bool has_slots = call.batch * call.lists * call.slots > 0;
  backward.segments = std::max<std::int64_t>(
      1, ceil_div((call.chunk == 0 ? call.nq : std::min(call.chunk, call.nq)) * call.heads_per_row_head, segment_rows));
  const std::int64_t key_rows = call.nk * (call.packed ? 1 : call.batch);
  Scratch<Real> landmark_dk_dv(context, operation,
                               has_slots && wants_keys ? key_rows * call.kv_heads * (call.d + call.dv) : 0);
  Scratch<Real> slot_dlambda(
      context, operation,
      has_slots && dlambda.present() ? call.batch * call.row_heads * call.lists * backward.segments * call.slots : 0);
  if (has_slots && (wants_keys || dlambda.present())) {
    backward.landmark_dk_dv = landmark_dk_dv.data();
    if (landmark_dk_dv.data() != nullptr)
      check(cudaMemsetAsync(landmark_dk_dv.data(), 0,
                            static_cast<std::size_t>(key_rows * call.kv_heads * (call.d + call.dv)) * sizeof(Real),
                            context.stream()),
            operation, "cudaMemsetAsync");
    landmark_gradients(context, backward, dlambda, slot_dlambda);
  }
  if (wants_keys) launch_attention_backward_keys(context, backward);
}

}  // namespace

void CudaBackend::attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                     const AttentionSaved& saved, const AttentionGradients& gradients) {
  const CurrentDevice current(context_.device);
  if (hopper::takes_dense_backward(context_, problem, inputs, gradients))
    return hopper::dense_backward(context_, problem, inputs, saved, gradients);
  if (hopper::takes_sparse_backward(context_, problem, inputs))
    return hopper::sparse_backward(context_, problem, inputs, saved, gradients);
  LandmarkLists lists(context_, operation, inputs);
  const CleanLists clean = lists.prepare(problem, inputs);
  for_floating(inputs.q.dtype, [&](auto tag) {
    backward_of<typename decltype(tag)::type>(context_, problem, inputs, clean, saved, gradients);
  });
}

}  // namespace dsalt::cuda
