// The dense forward kernel for at most 128 keys. The mathematics is dense_forward.cuh's; a block is one warpgroup that
// keeps the keys and values of a head in shared memory and walks over tiles of 64 query rows, the next ones on their
// way while it computes. Several blocks share a multiprocessor: one's copies and softmax hide behind another's.
#pragma once

#include "dense_forward.cuh"

namespace dsalt::cuda::hopper {

template <class T, int kHead, bool kCausal>
struct DenseFewKeys {
  using Parameters = ForwardParameters<T>;  // work: (sequence, head) pairs
  static constexpr int most_keys = 128, rows = 64, keys = 64, boxes = kHead / 64, threads = 128;
  static constexpr int blocks_per_multiprocessor = kHead == 64 ? 4 : 2;
  static constexpr std::uint32_t tile_bytes = 64 * kHead * 2;

  struct Barriers {
    Barrier keys_full, q_full[2];
  };
  static constexpr std::uint32_t barriers_at = 6 * tile_bytes;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ DenseFewKeys(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* q_tile(int stage) const { return shared + stage * tile_bytes; }
  __device__ unsigned char* k_tile(int n) const { return shared + (2 + n) * tile_bytes; }
  __device__ unsigned char* v_tile(int n) const { return shared + (4 + n) * tile_bytes; }

  __device__ void init_barriers() const {
    barrier_init(&barriers.keys_full, 1);
    for (Barrier& barrier : barriers.q_full) barrier_init(&barrier, 1);
  }

  __device__ void load(const CUtensorMap& map, unsigned char* to, Barrier* full, int row, int head,
                       int sequence) const {
    for (int box = 0; box < boxes; ++box) tma_load(to + box * 64 * 128, &map, full, 64 * box, row, head, sequence);
  }

  __device__ void run(int thread) {
    const int chunks = static_cast<int>(gridDim.x) / p.work, chunk = static_cast<int>(blockIdx.x) % chunks;
    const int pair = static_cast<int>(blockIdx.x) / chunks;
    ForwardWork w;
    w.tile.sequence = p.call.by_hq.quotient(pair);
    w.tile.head = p.call.by_hq.remainder(pair, w.tile.sequence);
    w.extent = extent_of(p.call, w.tile.sequence);
    const int all = (w.extent.nq + rows - 1) / rows, each = (all + chunks - 1) / chunks;
    const int first = chunk * each, last = min(all, first + each), key_tiles = (w.extent.nk + keys - 1) / keys;
    if (first >= last) return;
    const auto load_queries = [&](int tile) {
      const int stage = (tile - first) % 2;
      barrier_expect(&barriers.q_full[stage], tile_bytes);
      load(p.q, q_tile(stage), &barriers.q_full[stage], tile * rows, w.tile.head, w.tile.sequence);
    };
    if (thread == 0) {
      const int kv_head = p.call.by_group.quotient(w.tile.head);
      if (key_tiles > 0) barrier_expect(&barriers.keys_full, 2 * key_tiles * tile_bytes);
      load_queries(first);
      for (int n = 0; n < key_tiles; ++n) {
        load(p.k, k_tile(n), &barriers.keys_full, n * keys, kv_head, w.tile.sequence);
        load(p.v, v_tile(n), &barriers.keys_full, n * keys, kv_head, w.tile.sequence);
      }
      if (first + 1 < last) load_queries(first + 1);
    }
    __syncwarp();
    if (key_tiles > 0) {
      barrier_wait(&barriers.keys_full, 0);
      const int valid = w.extent.nk - (key_tiles - 1) * keys;
      if (valid < keys && p.call.shares_tails()) {  // values past the last key are somebody else's
        clear_rows(v_tile(key_tiles - 1), valid, keys, boxes, thread, threads);
        __syncthreads();
      }
    }

    const int lane = thread % 32, row = 16 * (thread / 32) + lane / 4;
    for (int tile = first; tile < last; ++tile) {
      const int stage = (tile - first) % 2;
      w.row0 = tile * rows;
      w.tiles = (max(0, w.limit<kCausal>(min(rows, w.extent.nq - w.row0) - 1)) + keys - 1) / keys;
      const int limit[2] = {w.limit<kCausal>(row), w.limit<kCausal>(row + 8)}, unmasked = w.limit<kCausal>(0);
      PairedSoftmax softmax;
      float o[kHead / 2] = {};
      barrier_wait(&barriers.q_full[stage], (tile - first) / 2 % 2);
      for (int n = w.tiles - 1; n >= 0; --n) {
        float s[keys / 2], factor[2];
        std::uint32_t weights[keys / 16][4];
        issue_k_major<T, kHead, keys, rows, keys>(s, q_tile(stage), k_tile(n));
        wgmma_wait<0>();
        keep_in_registers(s);
        if ((n + 1) * keys > unmasked) mask_scores(s, n * keys, unmasked, limit, lane);
        if (n == w.tiles - 1) {
          softmax.start(s, p.call.scale_log2);
        } else if (softmax.update(s, p.call.scale_log2, factor)) {
#pragma unroll
          for (int e = 0; e < kHead / 2; ++e) o[e] *= factor[e / 2 % 2];
        }
        round_weights<T>(weights, s);
        issue_weighted_rows<T, keys, kHead>(o, weights, v_tile(n));
        wgmma_wait<0>();
        keep_in_registers(o);
      }
      __syncthreads();  // every warp has read its rows of Q
      if (thread == 0 && tile + 2 < last) load_queries(tile + 2);
      __syncwarp();
      softmax.finish();
      store_tile(p, w, o, softmax, row, lane);
    }
  }
};

}  // namespace dsalt::cuda::hopper
