// An attention call with few queries, and how its work is cut (docs/semantics.md, "Attention"). A *row* of a kv head is
// query r / group of query head (kv head) group + r % group: all that read the same keys. A block takes a tile of 8 or
// 16 rows and a part of the keys that these admit together:
//
//   steps of 16 keys, from multiples of 16 on, of the windows' union (full and causal: all keys), then of 16 landmarks
//
// The parts are equal numbers of steps, next to each other. How many there are is decided by shapes alone, on the host;
// where they begin by what the rows admit, on the device.
#pragma once

#include "../attention_call.cuh"
#include "../vectors.cuh"
#include "dense_call.cuh"
#include "sparse_masks.cuh"

namespace dsalt::cuda::hopper {

inline constexpr int decode_step = 16;  // keys

/// Where a key is: row `row` of page `page` of the pools. A negative row: it is not there.
struct CachePlace {
  int page = 0, row = -1;
};

/// The page table of a call.
struct CachePages {
  View<const std::int32_t, 2> table;  // [B,M]
  unsigned pages = 0;                 // P
  Divider by_size;
  bool whole_steps = false;  // pages consist of whole steps

  __device__ CachePlace place(std::int64_t b, int key) const {
    const int entry = by_size.quotient(key);
    return {*table.at(b, entry), by_size.remainder(key, entry)};
  }
  __device__ int row_of(int key) const { return by_size.remainder(key, by_size.quotient(key)); }
  /// The keys and values of a page that does not exist are NaN.
  __device__ bool exists(int page) const { return static_cast<unsigned>(page) < pages; }
};

template <class T>
struct DecodeParameters {
  AttentionCall<T> call;
  View<const std::int32_t, 4> landmarks;  // as they came: [B,Hl,T,K]
  CachePages pages;                       // of a paged cache: call.k and call.v are the pools
  Rows<T> out;
  Rows<float> lse;
  int group, tile_rows, tiles, parts;  // tiles: of rows, of one sequence or of the whole pack (some may be empty)
  int entries;                         // landmarks of a block: room in shared memory
  float scale_log2;
  // Of many parts, [tile, kv head, part, tile_rows]: sums of values [D], maximum and sum of weights. Null where the
  // parts of a tile are one cluster.
  float* values;
  float2* statistics;
};

/// The rows of one block. Empty tiles have no rows.
struct DecodeTile {
  SequenceRows s;
  int kv_head = 0, first_row = 0, rows = 0;

  /// `n`: of (sequence or pack, tile, kv head), the last one fastest.
  template <class T>
  __device__ static DecodeTile at(const DecodeParameters<T>& p, unsigned n) {
    DecodeTile result;
    const unsigned slot = n / static_cast<unsigned>(p.call.kv_heads);
    result.kv_head = static_cast<int>(n % static_cast<unsigned>(p.call.kv_heads));
    std::int64_t tile, b;
    if (p.call.packed) {
      // Sequence b's tiles start at floor(cu[b] group / tile_rows) + b: enough room for each.
      const auto start = [&](std::int64_t sequence) {
        return static_cast<std::int64_t>(*p.call.cu_q.at(sequence)) * p.group / p.tile_rows + sequence;
      };
      std::int64_t high = p.call.batch;
      b = 0;
      while (high - b > 1) {
        const std::int64_t middle = (b + high) / 2;
        (start(middle) <= slot ? b : high) = middle;
      }
      tile = slot - start(b);
    } else {
      b = slot / static_cast<unsigned>(p.tiles);
      tile = slot % static_cast<unsigned>(p.tiles);
    }
    result.s = p.call.sequence(b);
    const std::int64_t first = tile * p.tile_rows, all = static_cast<std::int64_t>(result.s.nq) * p.group;
    result.first_row = static_cast<int>(first);
    result.rows = first < all ? static_cast<int>(min(all - first, static_cast<std::int64_t>(p.tile_rows))) : 0;
    return result;
  }
  /// Row n of the tile.
  template <class T>
  __device__ int query(const DecodeParameters<T>& p, int n) const {
    return (first_row + n) / p.group;
  }
  template <class T>
  __device__ int head(const DecodeParameters<T>& p, int n) const {
    return kv_head * p.group + (first_row + n) % p.group;
  }
};

/// The landmark lists that some row of a tile reads, one after another: a list for each of the heads [first_head,
/// first_head + heads) of the lists and each of the lists [first_list, first_list + lists) of a head.
struct DecodeLists {
  int first_head = 0, heads = 0, lists = 0, entries = 0;
  std::int64_t first_list = 0;

  template <class T>
  __device__ static DecodeLists of(const DecodeParameters<T>& p, const DecodeTile& tile) {
    DecodeLists result;
    if (p.entries == 0 || tile.rows == 0) return result;
    const int first_query = tile.query(p, 0), last_query = tile.query(p, tile.rows - 1);
    const bool shared = p.call.list_heads == 1, one_query = first_query == last_query;
    result.first_head = shared ? 0 : one_query ? tile.head(p, 0) : tile.kv_head * p.group;
    result.heads = shared ? 1 : one_query ? tile.rows : p.group;
    result.first_list = p.call.list_of(first_query);
    const std::int64_t last = min(p.call.list_of(last_query), p.call.lists - 1);
    result.lists = static_cast<int>(max(last - result.first_list + 1, std::int64_t{0}));
    result.entries = result.heads * result.lists * static_cast<int>(p.call.slots);
    return result;
  }
  /// The number of the list that a row reads, -1 for none.
  template <class T>
  __device__ int list_of(const AttentionCall<T>& call, int query, int head) const {
    const std::int64_t list = call.list_of(query) - first_list;
    if (list >= lists) return -1;
    return (call.list_heads == 1 ? 0 : head - first_head) * lists + static_cast<int>(list);
  }
};

/// Eight columns of a row, from several partial results.
struct DecodeSum {
  float maximum = -INFINITY, sum = 0;
  float value[8] = {};

  /// `statistics`: maximum and sum. The loads do not wait for each other.
  __device__ void add(float2 statistics, const float* from) {
    const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    if (statistics.x == -INFINITY && statistics.y == 0) return;  // no key
    const float top = fmaxf(maximum, statistics.x);
    const float old = exp2_fast(maximum - top), weight = exp2_fast(statistics.x - top);
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    maximum = top;
    sum = sum * old + statistics.y * weight;
#pragma unroll
    for (int e = 0; e < 8; ++e) value[e] = value[e] * old + values[e] * weight;
  }
  __device__ void keep(float* to) const {
    reinterpret_cast<float4*>(to)[0] = float4{value[0], value[1], value[2], value[3]};
    reinterpret_cast<float4*>(to)[1] = float4{value[4], value[5], value[6], value[7]};
  }
  /// Columns `column` to `column + 8` of row n of a tile.
  template <class T>
  __device__ void store(const DecodeParameters<T>& p, const DecodeTile& tile, int n, int column) const {
    const float inverse = sum == 0 ? 0 : __frcp_rn(sum);  // no key: the row is 0
    const int b = static_cast<int>(tile.s.b), head = tile.head(p, n);
    const std::int64_t row = tile.s.q_start + tile.query(p, n);
    uint4 word;
    word.x = narrow_pair<T>(value[0] * inverse, value[1] * inverse);
    word.y = narrow_pair<T>(value[2] * inverse, value[3] * inverse);
    word.z = narrow_pair<T>(value[4] * inverse, value[5] * inverse);
    word.w = narrow_pair<T>(value[6] * inverse, value[7] * inverse);
    *reinterpret_cast<uint4*>(p.out.at(b, head, row) + column) = word;
    if (p.lse.data != nullptr && column == 0) *p.lse.at(b, head, row) = maximum * log_unit<float> + log(sum);
  }
};

/// Where the rows of a kv head's keys or values are: the only place that knows.
template <class T>
struct CachedRows {
  const T* base;
  std::int64_t page, row;  // page: of a paged cache, whose pools start at `base`

  __device__ const T* operator()(int key) const { return base + key * row; }
  __device__ const T* operator()(const CachePlace& place) const { return base + place.page * page + place.row * row; }
};

}  // namespace dsalt::cuda::hopper
