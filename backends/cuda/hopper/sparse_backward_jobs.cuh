// What the sparse backward kernel (sparse_backward.cuh) is told: what is known of query rows, whose gradients a block
// computes next, and which query tiles may admit these keys.
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

/// Up to 128 consecutive keys of a kv head.
struct BackwardJob {
  int sequence, kv_head, first_head, heads;
  int first_key, valid;  // keys that exist, at most 128
  int keys_end;          // keys before that one have gradients, of zeros where they do not exist
  Extent extent;
  std::int64_t key_tile;  // KeyTiles, of head 0

  /// Whether there is a job `n`.
  __device__ bool locate(const DenseCall& call, int n) {
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
    first_key = tile * KeyTiles::keys;
    valid = min(KeyTiles::keys, extent.nk - first_key);
    keys_end = call.cu_q.present() ? extent.nk : call.nk;
    key_tile = KeyTiles::first(call, sequence) + tile;
    return true;
  }
  __device__ int key(int n) const { return n < valid ? first_key + n : no_key; }
};

}  // namespace dsalt::cuda::hopper
