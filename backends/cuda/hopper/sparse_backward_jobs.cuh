// What the sparse backward kernel (sparse_backward.cuh) is told: what is known of query rows, where landmarks have
// their sums, whose gradients a block computes next, and which query tiles may admit these keys.
#pragma once

#include "../attention_call.cuh"
#include "dense_call.cuh"
#include "sparse_masks.cuh"

namespace dsalt::cuda::hopper {

/// What the kernels know of a query tile (a slot, QuerySlots) of `rows` rows: rows that do not exist have lse_log2 =
/// inf (their weights are 0).
template <int rows, bool soft>
struct QueryRows {
  float lse[rows], delta[rows];   // lse * log2(e), delta - dlse
  int begin[rows], length[rows];  // keys of the window; where there are none, unless bidirectional, begin follows the
                                  // newest key: then landmarks are admitted up to begin
};
template <int rows>
struct QueryRows<rows, true> : QueryRows<rows, false> {
  RowEdge edge[rows];
};

/// Float32 sums of the gradients of keys that are landmarks. A place is that of a key among those of all kv heads:
/// [B,Hkv,Nk] or, packed, [Hkv,R].
struct LandmarkSums {
  std::int32_t* row = nullptr;    // [places]: 1 + its row of dk_dv; 0: not a landmark; null: there are no lists
  std::int32_t* place = nullptr;  // [rows]: the inverse
  std::int32_t* rows = nullptr;   // how many
  float* dk_dv = nullptr;         // [rows, 2 D], dk not yet scaled
  float* dlambda = nullptr;       // [B, row heads, T, K], in the order of clean lists; null: not wanted
};
template <class T>
__device__ inline std::int64_t key_place(const AttentionCall<T>& call, std::int64_t b, int kv_head,
                                         std::int64_t k_start, int key) {
  return call.packed ? kv_head * call.nk + k_start + key : (b * call.kv_heads + kv_head) * call.nk + key;
}

/// Key tiles of a call, numbered head after head.
struct KeyTiles {
  static constexpr int keys = 128;

  /// The first of sequence b, of head 0; tile t is at that + t.
  __device__ static std::int64_t first(const DenseCall& call, int b) {
    if (!call.cu_k.present()) return static_cast<std::int64_t>(b) * call.hq * call.tiles;
    return (call.cu_k[b] + static_cast<std::int64_t>(b) * keys) / keys;
  }
  /// From one query head to the next.
  __device__ static std::int64_t per_head(const DenseCall& call) {
    return call.cu_k.present() ? call.nk / keys + call.batch + 1 : call.tiles;
  }
};

/// Query tiles [first, end) of a head that may admit keys of a key tile as windows. All zeros: none.
struct QueryRange {
  int before_first, end;  // INT32_MAX - first, so that zeros are the empty range and both numbers only grow

  __device__ int first() const { return INT32_MAX - before_first; }
  __device__ void include(int tile) {
    atomicMax(&before_first, INT32_MAX - tile);
    atomicMax(&end, tile + 1);
  }
};

/// How the jobs of a call are numbered: in groups of a sequence's kv head (packed: one for all), whose lists and key
/// tiles take turns, both in the order of their queries, so that jobs that run together meet the same query tiles.
struct BackwardJobs {
  int groups = 0, tiles = 0;  // key tiles of a group
  int lists = 0;              // list jobs of a group: row_heads x T x blocks_per_list x segments
  int row_heads = 0;          // of a group
  int blocks_per_list = 0;    // of 128 landmarks
  int segments = 0;           // of a list's queries

  __host__ __device__ std::int64_t count() const {
    return static_cast<std::int64_t>(groups) * (static_cast<std::int64_t>(tiles) + lists);
  }
};

/// Up to 128 keys of a kv head: a tile of consecutive keys, or landmarks of one list for a segment of its queries.
template <class T, int kQueries>
struct BackwardJob {
  static constexpr int keys = KeyTiles::keys, tiles_of_segment = 1024 / kQueries;

  bool is_list;
  int sequence, kv_head, first_head, heads;
  int first_key;                                       // of a tile; of landmarks: the place in the list
  int valid;                                           // keys that exist, at most 128
  int first_tile, last_tile, first_query, last_query;  // landmarks: the segment's tiles, the list's queries
  Extent extent;
  std::int64_t key_tile;  // KeyTiles, of head 0
  std::int64_t list, first_entry;
  const std::int32_t *index, *list_slot;

  /// Whether there is a job `n`.
  __device__ bool locate(const BackwardJobs& jobs, const DenseCall& call, const AttentionCall<T>& sparse, int n) {
    const int per_group = jobs.tiles + jobs.lists, group = n / per_group, place = n % per_group;
    const auto lists_before = [&](int i) {
      return static_cast<int>(static_cast<std::int64_t>(i) * jobs.lists / per_group);
    };
    const int lists = lists_before(place);
    return lists_before(place + 1) > lists ? locate_list(jobs, call, sparse, group, lists)
                                           : locate_tile(call, group * jobs.tiles + place - lists);
  }

  __device__ bool locate_tile(const DenseCall& call, int n) {
    is_list = false;
    heads = call.hq / call.hkv;
    int tile;
    if (call.packed_tiles != nullptr) {
      const int2 place = call.packed_tiles[n % call.tiles];
      kv_head = n / call.tiles;
      sequence = place.x;
      tile = place.y;
      if (sequence < 0) return false;
    } else {
      tile = n % call.tiles;
      kv_head = n / call.tiles % call.hkv;
      sequence = n / call.tiles / call.hkv;
    }
    first_head = kv_head * heads;
    extent = extent_of(call, sequence);
    first_key = tile * keys;
    valid = min(keys, extent.nk - first_key);
    key_tile = KeyTiles::first(call, sequence) + tile;
    return true;
  }

  __device__ bool locate_list(const BackwardJobs& jobs, const DenseCall& call, const AttentionCall<T>& sparse,
                              int group, int n) {
    const auto digit = [&](int count) {
      const int value = n % count;
      n /= count;
      return value;
    };
    const int block = digit(jobs.blocks_per_list), lists = static_cast<int>(sparse.lists);
    int z = digit(jobs.row_heads);
    const int segment = digit(jobs.segments);
    list = digit(lists);
    sequence = n;
    if (!sparse.packed) {
      z += group % sparse.kv_heads * jobs.row_heads;
      sequence = group / sparse.kv_heads;
    }
    is_list = true;
    heads = sparse.heads_per_row_head;
    first_head = z * heads;
    kv_head = sparse.kv_head_of_row_head(z);
    const std::int64_t clean =
        (static_cast<std::int64_t>(sequence) * sparse.list_heads + sparse.list_head(z)) * sparse.lists + list;
    first_key = block * keys;
    valid = min(keys, sparse.clean.count[clean] - first_key);
    if (valid <= 0) return false;
    index = sparse.clean.index + clean * sparse.slots;
    list_slot = sparse.clean.slot + clean * sparse.slots;
    first_entry =
        ((static_cast<std::int64_t>(sequence) * sparse.row_heads + z) * lists + list) * sparse.slots + first_key;
    extent = extent_of(call, sequence);
    first_query = 0;
    last_query = extent.nq;
    if (sparse.chunk != 0) {  // somebody reads the list, so it starts before the last query
      const std::int64_t start = list * sparse.chunk - sparse.chunk_offset;
      first_query = static_cast<int>(max(start, std::int64_t{0}));
      last_query = static_cast<int>(min(start + sparse.chunk, static_cast<std::int64_t>(extent.nq)));
    }
    int first = first_query;  // the first that can see a landmark of the block
    if (!sparse.bidirectional) first = max(first, index[first_key] - (extent.nk - extent.nq));
    first_tile = first_query / kQueries + segment * tiles_of_segment;
    last_tile = min(first_tile + tiles_of_segment, (last_query + kQueries - 1) / kQueries);
    first_tile = max(first_tile, first / kQueries);
    return first_tile < last_tile;
  }

  __device__ int key(int n) const { return n < valid ? first_key + n : no_key; }
};

}  // namespace dsalt::cuda::hopper
