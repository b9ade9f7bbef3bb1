// Copies pages to contiguous memory: row j of sequence b comes from row j % page of page page_table[b, j / page], for
// j < k_lengths[b]. What lies behind that is neither read nor written. A page that does not exist is not read: its rows
// become NaN.
//
//   reach      [first, end) of the keys that windows of a sequence reach, a block of threads for each sequence
//   pages      64 keys to a block, all of them or those within reach
//   landmarks  16 slots to a block; a key that several slots name is copied as often, to the same bytes
#include "attention_pages.cuh"

#include <algorithm>
#include <limits>

#include "attention_call.cuh"
#include "internal/sequence.hpp"
#include "launch.cuh"
#include "reduce.cuh"
#include "walk.cuh"

namespace dsalt::cuda {
namespace {

constexpr int gather_threads = 256, gather_keys = 64, gather_slots = 16, widest_tile = 128;

/// Elements are moved, not looked at: an unsigned integer of their size.
template <class T>
struct Gather {
  View<const T, 4> pool;  // [P,Hkv,page,E]
  View<const std::int32_t, 2> table;
  View<const std::int32_t, 1> lengths;
  T* copy;            // [B,Hkv,Nk,pitch]
  const int2* reach;  // null: everything
  std::int64_t nk, pitch, key_blocks;

  __device__ std::int64_t end(std::int64_t b) const { return min(static_cast<std::int64_t>(*lengths.at(b)), nk); }
  __device__ bool reaches(std::int64_t b, std::int64_t key) const {
    return reach == nullptr || (key >= reach[b].x && key < reach[b].y);
  }
  /// A vector of elements from `column` on.
  template <bool vectors>
  __device__ Vector<T, vector_length<T>> piece_at(std::int64_t b, std::int64_t head, std::int64_t key,
                                                  std::int64_t column) const {
    constexpr int v = vector_length<T>;
    std::int64_t entry = key;
    const std::int64_t row = take_remainder(entry, pool.shape[2]), page = *table.at(b, entry);
    Vector<T, v> piece;
    if (page >= 0 && page < pool.shape[0])
      piece = load_part<v, vectors>(pool.at(page, head, row), pool.strides[3], column, pool.shape[3]);
    else
      for (T& element : piece.element) element = static_cast<T>(~T{0});  // a NaN of every floating type
    return piece;
  }
  __device__ void store_piece(const Vector<T, vector_length<T>>& piece, std::int64_t b, std::int64_t head,
                              std::int64_t key, std::int64_t column) const {
    auto* to = copy + ((b * pool.shape[1] + head) * nk + key) * pitch + column;
    *reinterpret_cast<Vector<T, vector_length<T>>*>(to) = piece;
  }
};

/// reach[b]: from the first to behind the last key that some window reaches, in whole tiles.
template <class T>
__global__ void __launch_bounds__(gather_threads) find_reach_kernel(AttentionCall<T> call, int2* reach) {
  __shared__ int first_of_warp[gather_threads / 32], end_of_warp[gather_threads / 32];
  const std::int64_t b = blockIdx.x, rows = call.nq * call.window_heads;
  const SequenceRows s = call.sequence(b);
  int first = INT32_MAX, end = 0;
  for (std::int64_t n = threadIdx.x; n < rows; n += gather_threads) {
    AttentionRow<T> row;
    row.head = static_cast<int>(n / call.nq);
    row.query = static_cast<int>(n % call.nq);
    row.fill(call, s);
    if (row.begin >= row.end) continue;
    first = min(first, row.begin);
    end = max(end, row.end);
  }
  first = warp_min(first);
  end = warp_max(end);
  if (threadIdx.x % 32 == 0) {
    first_of_warp[threadIdx.x / 32] = first;
    end_of_warp[threadIdx.x / 32] = end;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < gather_threads / 32; ++warp) {
    first = min(first, first_of_warp[warp]);
    end = max(end, end_of_warp[warp]);
  }
  const std::int64_t up = (static_cast<std::int64_t>(end) + widest_tile - 1) / widest_tile * widest_tile;
  reach[b] = {first / widest_tile * widest_tile, static_cast<int>(min(up, static_cast<std::int64_t>(INT32_MAX)))};
}

template <class T, bool vectors>
__global__ void __launch_bounds__(gather_threads) gather_pages_kernel(Gather<T> gather) {
  constexpr int v = vector_length<T>;
  const std::int64_t b = blockIdx.x / gather.key_blocks;
  const std::int64_t first = blockIdx.x % gather.key_blocks * gather_keys;
  const std::int64_t keys = min(static_cast<std::int64_t>(gather_keys), gather.end(b) - first);
  if (keys <= 0 || !gather.reaches(b, first)) return;
  const std::int64_t pieces = gather.pitch / v, total = gather.pool.shape[1] * keys * pieces;
  constexpr int at_a_time = 4;  // reads under way: each waits for an entry of the table and then for memory
  for (std::int64_t start = threadIdx.x; start < total; start += at_a_time * gather_threads) {
    Vector<T, v> piece[at_a_time];
    std::int64_t head[at_a_time], key[at_a_time], column[at_a_time];
#pragma unroll
    for (int n = 0; n < at_a_time; ++n) {
      head[n] = start + n * gather_threads;
      if (head[n] >= total) continue;
      column[n] = take_remainder(head[n], pieces) * v;
      key[n] = first + take_remainder(head[n], keys);
      piece[n] = gather.template piece_at<vectors>(b, head[n], key[n], column[n]);
    }
#pragma unroll
    for (int n = 0; n < at_a_time; ++n)
      if (start + n * gather_threads < total) gather.store_piece(piece[n], b, head[n], key[n], column[n]);
  }
}

/// Keys that landmarks name and no window reaches. `group`: query heads of a kv head.
template <class T, bool vectors>
__global__ void __launch_bounds__(gather_threads)
    gather_landmarks_kernel(Gather<T> gather, View<const std::int32_t, 4> lists, std::int64_t slots,
                            std::int64_t group) {
  constexpr int v = vector_length<T>;
  const std::int64_t pieces = gather.pitch / v, heads = lists.shape[1] == 1 ? gather.pool.shape[1] : 1;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * gather_slots;
  const std::int64_t count = min(static_cast<std::int64_t>(gather_slots), slots - first);
  for (std::int64_t n = threadIdx.x; n < heads * count * pieces; n += gather_threads) {
    std::int64_t head = n;
    const std::int64_t column = take_remainder(head, pieces) * v;
    std::int64_t b = first + take_remainder(head, count);
    const std::int64_t slot = take_remainder(b, lists.shape[3]), list = take_remainder(b, lists.shape[2]);
    const std::int64_t list_head = take_remainder(b, lists.shape[1]);
    const std::int64_t key = *lists.at(b, list_head, list, slot);
    if (key < 0 || key >= gather.end(b) || gather.reaches(b, key)) continue;
    const std::int64_t kv_head = lists.shape[1] == 1 ? head : list_head / group;
    gather.store_piece(gather.template piece_at<vectors>(b, kv_head, key, column), b, kv_head, key, column);
  }
}

/// a b, or the largest number: memory of that size is refused by name, a product that wraps is not.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}
std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  return __builtin_add_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

/// Whether to look for what is in reach: a sparse call whose landmarks are few beside the keys.
bool is_whole(const AttentionProblem& problem, const AttentionInputs& in) {
  if (problem.mask != Mask::sparse) return true;
  if (!in.landmarks.present()) return false;
  const std::int64_t kv_heads = in.landmarks.shape[1] == 1 ? 1 : in.k.shape[1];
  const std::int64_t slots = in.landmarks.shape[1] * in.landmarks.shape[2] * in.landmarks.shape[3] / kv_heads;
  return slots > internal::paged_capacity(in) / 4;
}

template <class Body>
void for_element_size(std::size_t size, Body&& body) {
  size == 2 ? body(Tag<std::uint16_t>{}) : size == 4 ? body(Tag<std::uint32_t>{}) : body(Tag<std::uint64_t>{});
}

}  // namespace

GatheredPages::Copy GatheredPages::copy_of(const TensorView& pool) const {
  const std::int64_t v = 16 / static_cast<std::int64_t>(size_of(pool.dtype));
  Copy copy{pool, ceil_div(pool.shape[3], v) * v, 0};
  copy.view.shape = {inputs_.q.shape[0], pool.shape[1], nk_, pool.shape[3]};
  copy.view.strides[3] = 1;
  copy.view.strides[2] = copy.pitch;
  copy.view.strides[1] = product(nk_, copy.pitch);
  copy.view.strides[0] = product(pool.shape[1], copy.view.strides[1]);
  const std::int64_t elements = product(copy.view.shape[0], copy.view.strides[0]);
  copy.bytes = product(product(elements, static_cast<std::int64_t>(size_of(pool.dtype))) / 256 + 1, 256);
  return copy;
}

GatheredPages::GatheredPages(const Context& context, const char* operation, const AttentionProblem& problem,
                             const AttentionInputs& inputs)
    : context_(context),
      operation_(operation),
      inputs_(inputs),
      // No length in k_lengths is larger.
      nk_(std::min<std::int64_t>(internal::paged_capacity(inputs), std::numeric_limits<std::int32_t>::max())),
      whole_(is_whole(problem, inputs)),
      k_(copy_of(inputs.k)),
      v_(copy_of(inputs.v)),
      memory_(context, operation,
              sum(sum(k_.bytes, v_.bytes), whole_ ? 0 : inputs.q.shape[0] * static_cast<std::int64_t>(sizeof(int2)))) {
  if (!whole_) find_reach(problem);
  gather(inputs.k, k_, memory_.data());
  gather(inputs.v, v_, memory_.data() + k_.bytes);
  inputs_.k = k_.view;
  inputs_.v = v_.view;
  inputs_.page_table = {};
}

int2* GatheredPages::reach() const {
  return whole_ ? nullptr : reinterpret_cast<int2*>(memory_.data() + k_.bytes + v_.bytes);
}

void GatheredPages::find_reach(const AttentionProblem& problem) {
  for_floating(inputs_.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(context_, operation_, find_reach_kernel<T>, inputs_.q.shape[0], gather_threads, 0,
           attention_call<T>(problem, inputs_), reach());
  });
}

void GatheredPages::gather(const TensorView& pool, Copy& copy, unsigned char* memory) {
  copy.view.data = memory;
  for_element_size(size_of(pool.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t key_blocks = ceil_div(nk_, gather_keys);
    const Gather<T> arguments{device_view<const T, 4>(pool),
                              device_view<const std::int32_t, 2>(inputs_.page_table),
                              device_view<const std::int32_t, 1>(inputs_.k_lengths),
                              reinterpret_cast<T*>(memory),
                              reach(),
                              nk_,
                              copy.pitch,
                              key_blocks};
    const bool vectors = rows_are_packed(pool, vector_length<T>);
    launch(context_, operation_, vectors ? gather_pages_kernel<T, true> : gather_pages_kernel<T, false>,
           inputs_.q.shape[0] * key_blocks, gather_threads, 0, arguments);
    if (whole_ || !inputs_.landmarks.present()) return;
    const std::int64_t slots = inputs_.landmarks.size();
    launch(context_, operation_, vectors ? gather_landmarks_kernel<T, true> : gather_landmarks_kernel<T, false>,
           ceil_div(slots, gather_slots), gather_threads, 0, arguments,
           device_view<const std::int32_t, 4>(inputs_.landmarks), slots, inputs_.q.shape[1] / pool.shape[1]);
  });
}

}  // namespace dsalt::cuda
