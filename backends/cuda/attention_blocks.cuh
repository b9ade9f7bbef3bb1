// How kernels walk over a call: tiles of 64 rows, and for each the blocks of 64 keys that some of its rows admit.
//
// Dense blocks start at absolute multiples of 64, landmark blocks at multiples of 64 of the clean list: a row meets its
// keys in the same groups whatever else is in the tile, and a block that it does not admit changes none of its bits.
#pragma once

#include "attention_products.cuh"
#include "reduce.cuh"

namespace dsalt::cuda {

/// What the rows of a tile admit together.
struct TileExtent {
  int begin, end;                // of all dense keys
  int common_begin, common_end;  // dense keys that every row admits
  int newest;                    // the latest landmark of any row
  int first_query, last_query;

  /// By whole warps, from 64 rows in shared memory.
  template <class T>
  __device__ static TileExtent of(const AttentionRow<T>* rows) {
    TileExtent e{INT32_MAX, 0, 0, INT32_MAX, -1, INT32_MAX, -1};
    for (int n = threadIdx.x % 32; n < attention_tile; n += 32) {
      const AttentionRow<T>& row = rows[n];
      if (row.begin < row.end) e.begin = min(e.begin, row.begin);
      e.end = max(e.end, row.end);
      e.common_begin = max(e.common_begin, row.begin);
      e.common_end = min(e.common_end, row.end);
      if (row.newest < 0) continue;
      e.newest = max(e.newest, row.newest);
      e.first_query = min(e.first_query, row.query);
      e.last_query = max(e.last_query, row.query);
    }
    e.begin = warp_min(e.begin);
    e.end = warp_max(e.end);
    e.common_begin = warp_max(e.common_begin);
    e.common_end = warp_min(e.common_end);
    e.newest = warp_max(e.newest);
    e.first_query = warp_min(e.first_query);
    e.last_query = warp_max(e.last_query);
    return e;
  }
};

/// The blocks of keys of one tile of rows, in order.
template <class T>
class KeyBlocks {
 public:
  __device__ KeyBlocks(const AttentionCall<T>& call, const SequenceRows& s, int z, const TileExtent& extent)
      : extent_(extent), start_(extent.begin / attention_tile * attention_tile), list_(-1), last_list_(-1) {
    if (call.clean.count != nullptr && extent.newest >= 0) {
      list_ = call.list_of(extent.first_query) - 1;
      last_list_ = min(call.list_of(extent.last_query), call.lists - 1);
      first_list_ = (s.b * call.list_heads + call.list_head(z)) * call.lists;
    }
    dense_ = true;
    if (extent.begin >= extent.end) next_list(call);
  }
  __device__ bool valid() const { return dense_ || list_ <= last_list_; }
  __device__ bool dense() const { return dense_; }
  __device__ std::int64_t list() const { return list_; }
  /// What a row that reads list `row_list` admits of this block: no landmarks of other lists.
  __device__ RowBounds bounds(RowBounds row, std::int64_t row_list) const {
    if (!dense_ && row_list != list_) row.newest = -1;
    return row;
  }
  __device__ void next(const AttentionCall<T>& call) {
    start_ += attention_tile;
    if (dense_ ? start_ >= extent_.end : start_ >= count_ || index_[start_] > extent_.newest) next_list(call);
  }
  /// Entry n of the block, n in [0,64).
  __device__ int key(int n) const {
    if (dense_) return start_ + n < extent_.end ? start_ + n : no_key;
    return start_ + n < count_ ? index_[start_ + n] : no_key;
  }
  /// Whether every row admits all 64 keys.
  __device__ bool whole() const {
    return dense_ && start_ >= extent_.common_begin && start_ + attention_tile <= extent_.common_end;
  }
  /// The log-weight of entry n.
  __device__ accumulator_t<T> log_weight(const AttentionCall<T>& call, std::int64_t b, int z, int n) const {
    if (dense_ || !call.weight.present() || start_ + n >= count_) return 0;
    return call.log_weight(b, z, list_, call.clean.slot[(first_list_ + list_) * call.slots + start_ + n]);
  }

 private:
  __device__ void next_list(const AttentionCall<T>& call) {
    dense_ = false;
    start_ = 0;
    for (++list_; list_ <= last_list_; ++list_) {
      count_ = call.clean.count[first_list_ + list_];
      index_ = call.clean.index + (first_list_ + list_) * call.slots;
      if (count_ > 0 && index_[0] <= extent_.newest) return;
    }
  }

  TileExtent extent_;
  bool dense_;
  int start_, count_ = 0;
  std::int64_t list_, last_list_, first_list_ = 0;
  const std::int32_t* index_ = nullptr;
};

/// Soft edges and dropout are rare and long to compute: a loop over the thread's part of the scores that is not
/// unrolled prepares them. row_of(r, c) and key_of(r, c) name row and key of an element.
inline constexpr int extra_elements = attention_tile * attention_tile;

/// Dynamic shared memory of a kernel whose description ends with extra_elements for soft edges.
template <class T>
std::size_t shared_bytes(std::size_t all, const AttentionCall<T>& call) {
  return call.soft ? all : all - extra_elements * sizeof(accumulator_t<T>);
}

/// The element's place in memory for every element of the block's scores; only its own thread uses it.
template <class T>
__device__ inline int extra_place(int r, int c) {
  return (c * Scores<T>::rows + r) * attention_threads + threadIdx.x;
}

/// log sigma((w - e) / tau) of every element in the soft edge, scaled for exp_scaled(); 0 elsewhere.
template <class T, class RowOf, class KeyOf>
__device__ inline void soft_edge_biases(const AttentionCall<T>& call, accumulator_t<T>* biases, RowOf&& row_of,
                                        KeyOf&& key_of) {
  using Real = accumulator_t<T>;
#pragma unroll 1
  for (int c = 0; c < Scores<T>::columns; ++c)
#pragma unroll
    for (int r = 0; r < Scores<T>::rows; ++r) {
      const AttentionRow<T>& row = row_of(r, c);
      const int key = key_of(r, c);
      biases[extra_place<T>(r, c)] =
          row.in_edge(key) ? log_sigmoid(row.edge_argument(call, key)) * exp_unit<Real> : Real{0};
    }
}

/// One bit per element, in the order of extra_place(): whether dropout keeps it.
template <class T, class RowOf, class KeyOf>
__device__ inline std::uint32_t kept_by_dropout(const AttentionCall<T>& call, std::int64_t b, RowOf&& row_of,
                                                KeyOf&& key_of) {
  static_assert(Scores<T>::rows * Scores<T>::columns == 32);
  std::uint32_t kept = 0;
#pragma unroll 1
  for (int c = 0; c < Scores<T>::columns; ++c)
#pragma unroll
    for (int r = 0; r < Scores<T>::rows; ++r) {
      const AttentionRow<T>& row = row_of(r, c);
      if (dropout_keeps(call, b, row.head, row.query, key_of(r, c))) kept |= 1u << (c * Scores<T>::rows + r);
    }
  return kept;
}

/// Writes a thread's part of [64,width] through `tile`, columns [first, first + width) that are below `columns`, to the
/// rows that row_of(n) points to; null rows are left out. The block's threads must have finished with the tile.
template <int width, class T, class RowOf>
__device__ inline void store_tile(Sums<T, width>& sums, Tile<T, width> tile, const RowTensor<T>& target, int first,
                                  int columns, RowOf&& row_of) {
#pragma unroll
  for (int r = 0; r < Sums<T, width>::rows; ++r)
#pragma unroll
    for (int c = 0; c < Sums<T, width>::columns; ++c)
      tile.row(Ownership<T>::row(r))[Sums<T, width>::column(c)] = narrow<T>(sums(r, c));
  __syncthreads();
  constexpr int v = vector_length<T>, per_row = width / v;
  for (int n = threadIdx.x; n < attention_tile * per_row; n += attention_threads) {
    const int row = n / per_row, column = n % per_row * v;
    T* to = row_of(row);
    if (to == nullptr) continue;
    const T* from = tile.row(row) + column;
    if (target.vector && first + column + v <= columns)
      *reinterpret_cast<Vector<T, v>*>(to + first + column) = *reinterpret_cast<const Vector<T, v>*>(from);
    else
      for (int e = 0; e < v && first + column + e < columns; ++e) to[(first + column + e) * target.element] = from[e];
  }
  __syncthreads();  // the tile may be written again
}

/// Calls body(std::integral_constant<int, width>) with the width of tiles in shared memory for heads of `d` and `dv`:
/// 64 or 128 (float64: 32); larger heads are taken in pieces. `tiles` of them must fit.
template <class T, class Body>
void for_tile_width(const Context& context, std::int64_t d, std::int64_t dv, int tiles, Body&& body) {
  if constexpr (std::is_same_v<T, double>) {
    body(std::integral_constant<int, 32>{});
  } else {
    const std::size_t wide = static_cast<std::size_t>(tiles) * Tile<T, 128>::size * sizeof(T) + 32 * 1024;
    if (std::max(d, dv) > 64 && wide <= context.shared_memory_per_block)
      body(std::integral_constant<int, 128>{});
    else
      body(std::integral_constant<int, 64>{});
  }
}

}  // namespace dsalt::cuda
