// The landmarks' part of dk, dv and dlambda (docs/semantics.md, "Gradients"): one block of threads per 64 entries of a
// clean list and segment of the rows that read it; sums end in memory by list entry.
#include "attention_backward_keys.cuh"

namespace dsalt::cuda {
namespace {

template <class T, int width>
__global__ void __launch_bounds__(attention_threads, 2)
    attention_backward_slots_kernel(AttentionBackwardCall<T> backward, int pieces) {
  using Real = accumulator_t<T>;
  const AttentionCall<T>& call = backward.call;
  auto& memory = *dynamic_shared_memory<KeysMemory<T, width>>();
  const int first_column = static_cast<int>(blockIdx.x % pieces) * width;
  const std::int64_t slot_tiles = (call.slots + attention_tile - 1) / attention_tile;
  const std::int64_t start = blockIdx.x / pieces % slot_tiles * attention_tile;
  const std::int64_t place = backward.round_begin + blockIdx.x / pieces / slot_tiles;  // of the segment
  const std::int64_t segment = place % backward.segments, t = place / backward.segments % call.lists,
                     bz = place / backward.segments / call.lists;
  const int z = static_cast<int>(bz % call.row_heads);
  const SequenceRows s = call.sequence(bz / call.row_heads);
  const std::int64_t list = (s.b * call.list_heads + call.list_head(z)) * call.lists + t;
  const int count = call.clean.count[list];
  if (start >= count) return;
  std::int64_t row, end_row;
  backward.rows_of_segment(s, t, segment, row, end_row);
  if (row >= end_row) return;

  const std::int32_t* index = call.clean.index + list * call.slots;
  const auto key_of = [&](int n) { return start + n < count ? index[start + n] : no_key; };
  KeyTile<T, width> keys(backward, memory, s, false, call.kv_head_of_row_head(z), first_column);
  keys.start(key_of);
#pragma unroll
  for (int r = 0; r < Scores<T>::rows; ++r) {
    const std::int64_t entry = start + Ownership<T>::row(r);
    if (call.weight.present() && entry < count)
      keys.log_weight[r] =
          landmark_bias(backward, call.log_weight(s.b, z, t, call.clean.slot[list * call.slots + entry]));
  }
  for (; row < end_row; row += attention_tile) {
    const std::int64_t last_query = (min(row + attention_tile, end_row) - 1) / call.heads_per_row_head;
    if (!call.bidirectional && last_query + s.nk - s.nq < index[start]) continue;
    keys.add_rows(z, row, end_row, false, key_of);
  }
  copy_async_commit();  // the keys' own, where no rows followed
  copy_async_wait<0>();

#pragma unroll
  for (int r = 0; r < Scores<T>::rows; ++r) {
    const std::int64_t entry = start + Ownership<T>::row(r);
    const Real dlambda = Ownership<T>::row_sum(keys.dlambda[r]);
    if (entry >= count) continue;
    if (backward.slot_dlambda != nullptr && first_column == 0 && threadIdx.x % Ownership<T>::lanes == 0)
      backward.slot_dlambda[place * call.slots + entry] = dlambda;
    Real* sums = backward.slot_dk_dv + ((place - backward.round_begin) * call.slots + entry) * (call.d + call.dv);
#pragma unroll
    for (int c = 0; c < Sums<T, width>::columns; ++c) {
      const int column = first_column + Sums<T, width>::column(c);
      if (backward.dk.present() && column < call.d) sums[column] = keys.dk(r, c);
      if (backward.dv.present() && column < call.dv) sums[call.d + column] = keys.dv(r, c);
    }
  }
}

}  // namespace

template <class T>
void launch_attention_backward_slots(const Context& context, const AttentionBackwardCall<T>& backward) {
  const AttentionCall<T>& call = backward.call;
  for_tile_width<T>(context, call.d, call.dv, 4, [&](auto width) {
    const std::int64_t pieces = ceil_div(most_columns(backward), width);
    const std::int64_t blocks =
        (backward.round_end - backward.round_begin) * ceil_div(call.slots, attention_tile) * pieces;
    launch(context, "attention_backward", attention_backward_slots_kernel<T, width>, blocks, dim3(attention_threads),
           shared_bytes(sizeof(KeysMemory<T, width>), call), backward, static_cast<int>(pieces));
  });
}

template void launch_attention_backward_slots(const Context&, const AttentionBackwardCall<double>&);
template void launch_attention_backward_slots(const Context&, const AttentionBackwardCall<float>&);
template void launch_attention_backward_slots(const Context&, const AttentionBackwardCall<bf16>&);
template void launch_attention_backward_slots(const Context&, const AttentionBackwardCall<f16>&);

}  // namespace dsalt::cuda
