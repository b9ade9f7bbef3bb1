// What the passes of the attention gradient share; attention_backward.cu has the equations and the plan.
#pragma once

#include "attention_blocks.cuh"
#include "landmark_weights.cuh"

namespace dsalt::cuda {

/// Rows of a list are taken in segments of so many, each a sum of its own.
inline constexpr std::int64_t segment_rows = 2048;

/// Everything the passes read and write, by value. Statistics of rows are kept tile by tile: row_place() is their
/// index.
template <class T>
struct AttentionBackwardCall {
  using Real = accumulator_t<T>;

  AttentionCall<T> call;
  RowTensor<const T> out, dout;
  RowTensor<const Real> lse, dlse;
  RowTensor<T> dq, dk, dv;
  Real most_bias;   // of landmarks, scaled for exp_scaled(): as the forward pass bounded them
  Real* row_lse;    // scaled for exp_scaled()
  Real* row_delta;  // delta - dlse
  Real* row_dwindow;
  int4* tile_range;  // of a row tile: the dense keys that some row admits, and those that all rows admit

  std::int64_t segments;                // of each list, an upper bound
  Real* slot_dk_dv;                     // [segments of a round, K, D + Dv], by place in the clean list
  Real* slot_dlambda;                   // [B, row heads, T, segments, K], likewise
  Real* landmark_dk_dv;                 // [rows of k, kv heads, D + Dv]; null without landmarks
  std::int64_t round_begin, round_end;  // segments of this round, indices into [B, row heads, T, segments]

  __device__ std::int64_t row_place(const SequenceRows& s, int z, std::int64_t r) const {
    return (z * call.row_tiles + call.first_row_tile(s)) * attention_tile + r;
  }
  __device__ std::int64_t key_place(const SequenceRows& s, int kv_head, int key) const {
    const std::int64_t row = s.k_start + key + (call.packed ? 0 : s.b * call.nk);
    return (row * call.kv_heads + kv_head) * (call.d + call.dv);
  }
  /// Rows [begin, end) of segment `segment` of list t, which some query reads.
  __device__ void rows_of_segment(const SequenceRows& s, std::int64_t t, std::int64_t segment, std::int64_t& begin,
                                  std::int64_t& end) const {
    std::int64_t first = 0, last = s.nq;
    if (call.chunk > 0) {
      first = max(t * call.chunk - call.chunk_offset, std::int64_t{0});
      if (t + 1 <= (s.nq + call.chunk_offset) / call.chunk) last = (t + 1) * call.chunk - call.chunk_offset;
    }
    begin = first * call.heads_per_row_head + segment * segment_rows;
    end = min(last * call.heads_per_row_head, begin + segment_rows);
  }
};

/// A landmark's bias as in the forward pass, from what its log-weight adds to its logit, or from that log-weight.
template <class T>
__device__ inline accumulator_t<T> bounded_bias(const AttentionBackwardCall<T>& backward, accumulator_t<T> bias) {
  const accumulator_t<T> most = backward.most_bias;
  return bias > most ? most : bias < -most ? -most : bias;
}
template <class T>
__device__ inline accumulator_t<T> landmark_bias(const AttentionBackwardCall<T>& backward,
                                                 accumulator_t<T> log_weight) {
  return bounded_bias(backward, log_weight * exp_unit<accumulator_t<T>>);
}

/// P of an admitted key, from its logit and its row's lse. The lse of a 16-bit call may come from other kernels than
/// these, which round it in another way: beside large log-weights that makes a difference to landmarks.
template <class T>
__device__ inline accumulator_t<T> weight_of(accumulator_t<T> logit, accumulator_t<T> lse, bool is_landmark) {
  if constexpr (is_16_bit<T>)
    if (is_landmark) return landmark_weight(logit, lse);
  return exp_scaled(logit - lse);
}

/// S += A B^T over all columns. Operands of up to `width` columns are in the tiles already; larger ones pass through
/// them piece by piece.
template <int width, class T, class LoadA, class LoadB>
__device__ inline void add_all_scores(Scores<T>& s, Tile<T, width> a, Tile<T, width> b, int columns, LoadA&& load_a,
                                      LoadB&& load_b) {
  if (columns <= width) return add_scores(s, a, b);
  for (int first = 0; first < columns; first += width) {
    __syncthreads();  // nobody reads the tiles any more
    load_a(first);
    load_b(first);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    add_scores(s, a, b);
  }
}

/// Loads the piece of an operand that sums are over, if scores needed more than that.
template <int width, class Load>
__device__ inline void load_piece(int columns, int first, Load&& load) {
  if (columns <= width) return;
  __syncthreads();
  load(first);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
}

/// dq and the soft edge's row_dwindow.
template <class T>
void launch_attention_backward_queries(const Context& context, const AttentionBackwardCall<T>& backward);
/// slot_dk_dv and slot_dlambda of one round of segments.
template <class T>
void launch_attention_backward_slots(const Context& context, const AttentionBackwardCall<T>& backward);
/// dk and dv: dense keys, and landmark_dk_dv added.
template <class T>
void launch_attention_backward_keys(const Context& context, const AttentionBackwardCall<T>& backward);

}  // namespace dsalt::cuda
