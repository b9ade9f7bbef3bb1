// dk_j = scale sum_{h,i} ds_ij q_i and dv_j = sum_{h,i} r_ij P_ij do_i (docs/semantics.md, "Gradients"): one block of
// threads per tile of 64 keys of a kv head walks over the tiles of query rows that admit some of them by position, in
// order, and adds what the landmark passes found.
#include "attention_backward_keys.cuh"

namespace dsalt::cuda {
namespace {

template <class T, int width>
__global__ void __launch_bounds__(attention_threads, 2)
    attention_backward_keys_kernel(AttentionBackwardCall<T> backward, int pieces) {
  using Real = accumulator_t<T>;
  const AttentionCall<T>& call = backward.call;
  auto& memory = *dynamic_shared_memory<KeysMemory<T, width>>();
  const int first_column = static_cast<int>(blockIdx.x % pieces) * width;
  std::int64_t tile = blockIdx.x / pieces % call.key_tiles;
  const int kv_head = static_cast<int>(blockIdx.x / pieces / call.key_tiles);
  const SequenceRows s = call.key_tile(tile, tile);
  const int first_key = static_cast<int>(tile) * attention_tile;
  const int end_key = call.packed ? s.nk : static_cast<int>(call.nk);  // of what is written
  if (tile * attention_tile >= end_key) return;

  const auto key_of = [&](int n) { return first_key + n < s.nk ? first_key + n : no_key; };
  KeyTile<T, width> keys(backward, memory, s, true, kv_head, first_column);
  keys.start(key_of);
  const int row_heads_per_kv_head = call.row_heads / call.kv_heads;
  const std::int64_t row_count = static_cast<std::int64_t>(s.nq) * call.heads_per_row_head;
  const std::int64_t tiles = first_key < s.nk ? (row_count + attention_tile - 1) / attention_tile : 0;
  for (int z = kv_head * row_heads_per_kv_head; z < (kv_head + 1) * row_heads_per_kv_head; ++z)
    for (std::int64_t start = 0; start < tiles; start += attention_threads) {
      // 128 tiles at a time: which of them admit some of these keys?
      bool hit = false, whole = false;
      if (start + threadIdx.x < tiles) {
        const int4 range =
            backward.tile_range[backward.row_place(s, z, (start + threadIdx.x) * attention_tile) / attention_tile];
        hit = range.x < first_key + attention_tile && range.y > first_key;
        whole = range.z <= first_key && range.w >= first_key + attention_tile;
      }
      const std::uint32_t hits = __ballot_sync(0xffffffffu, hit), wholes = __ballot_sync(0xffffffffu, whole);
      __syncthreads();  // nobody reads the hits before any more
      if (threadIdx.x % 32 == 0) {
        memory.hits[threadIdx.x / 32] = hits;
        memory.wholes[threadIdx.x / 32] = wholes;
      }
      __syncthreads();
      for (int word = 0; word < attention_threads / 32; ++word)
        for (std::uint32_t left = memory.hits[word]; left != 0; left &= left - 1) {
          const int bit = __ffs(left) - 1;
          keys.add_rows(z, (start + 32 * word + bit) * attention_tile, row_count, memory.wholes[word] >> bit & 1,
                        key_of);
        }
    }

  copy_async_commit();  // the keys' own, where no rows followed
  copy_async_wait<0>();
  __syncthreads();
  const auto store = [&](Sums<T, width>& sums, const RowTensor<T>& target, int columns, int first_landmark_column,
                         Real factor) {
    if (!target.present() || first_column >= columns) return;
#pragma unroll
    for (int r = 0; r < Sums<T, width>::rows; ++r) {
      const Real* landmark = backward.landmark_dk_dv == nullptr || keys.key[r] == no_key
                                 ? nullptr
                                 : backward.landmark_dk_dv + backward.key_place(s, kv_head, keys.key[r]) +
                                       first_landmark_column + first_column;
#pragma unroll
      for (int c = 0; c < Sums<T, width>::columns; ++c) {
        const int column = Sums<T, width>::column(c);
        if (landmark != nullptr && first_column + column < columns) sums(r, c) += landmark[column];
        sums(r, c) *= factor;
      }
    }
    store_tile(sums, Tile<T, width>{memory.q}, target, first_column, columns, [&](int n) {
      return first_key + n < end_key ? target.at(s.b, kv_head, s.k_start + first_key + n) : nullptr;
    });
  };
  store(keys.dk, backward.dk, call.d, 0, call.scale);
  store(keys.dv, backward.dv, call.dv, call.d, Real{1});
}

}  // namespace

template <class T>
void launch_attention_backward_keys(const Context& context, const AttentionBackwardCall<T>& backward) {
  const AttentionCall<T>& call = backward.call;
  for_tile_width<T>(context, call.d, call.dv, 4, [&](auto width) {
    const std::int64_t pieces = ceil_div(most_columns(backward), width);
    launch(context, "attention_backward", attention_backward_keys_kernel<T, width>,
           call.key_tiles * call.kv_heads * pieces, dim3(attention_threads),
           shared_bytes(sizeof(KeysMemory<T, width>), call), backward, static_cast<int>(pieces));
  });
}

template void launch_attention_backward_keys(const Context&, const AttentionBackwardCall<double>&);
template void launch_attention_backward_keys(const Context&, const AttentionBackwardCall<float>&);
template void launch_attention_backward_keys(const Context&, const AttentionBackwardCall<bf16>&);
template void launch_attention_backward_keys(const Context&, const AttentionBackwardCall<f16>&);

}  // namespace dsalt::cuda
