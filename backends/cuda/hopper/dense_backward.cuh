// The dense backward kernel: one block has one tile of keys and walks the query tiles that see it, for every query head
// that reads these keys.
//
//   S^T = K Q^T, P^T = exp2(scale_log2 S^T - lse_log2), dP^T = V dO^T, dS^T = P^T (dP^T - delta)
//   dV += P^T dO,  dK += dS^T Q          sums in registers, operand A straight from registers
//   dQ += dS K                           dS through shared memory; added to float32 sums in global memory
//
// One warp copies, two warpgroups compute 64 keys each. dQ's sums lie in the order in which the threads hold them, so
// that every addition is a coalesced 16 bytes; a last kernel scales, rounds and puts them in place. The additions of
// different blocks come in any order, unless `kOrdered`: then each query tile takes them in the order of the key tiles.
#pragma once

#include "backward_fragments.cuh"
#include "dense_call.cuh"
#include "fragments.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

/// What the dense kernels keep beside the sums of dQ. Rows that do not exist have lse_log2 = inf (their weights are 0)
/// and delta = 0.
struct DenseQuerySlots : QuerySlots {
  float* statistics = nullptr;  // [slots, 2, rows]: lse * log2(e), delta - dlse
  int* turns = nullptr;         // [slots]: key tiles that have added to dq
};

template <class T, int kHead, int kQueries, bool kCausal, bool kOrdered>
struct DenseBackward {
  static constexpr int keys = 128, stages = 2, boxes = kHead / 64, query_boxes = kQueries / 64;
  static constexpr int consumers = 256, threads = consumers + 128, blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t key_bytes = keys * kHead * 2, query_bytes = kQueries * kHead * 2,
                                 ds_bytes = keys * kQueries * 2, statistics_bytes = kQueries * 8;
  static_assert(query_boxes * boxes == 2, "dQ is cut into two 64 x 64 products");

  struct Barriers {
    Barrier keys_full, q_full[stages], q_empty[stages], do_full[stages], do_empty[stages];
  };
  // Shared memory: K, V, then per stage Q and dO, two dS, statistics, barriers.
  static constexpr std::uint32_t q_at = 2 * key_bytes, do_at = q_at + stages * query_bytes,
                                 ds_at = do_at + stages * query_bytes, statistics_at = ds_at + 2 * ds_bytes,
                                 barriers_at = statistics_at + stages * statistics_bytes;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + 128;

  struct Parameters {
    CUtensorMap q, k, v, dout;
    DenseCall call;  // tiles: of keys
    DenseQuerySlots slots;
    Rows<T> dk, dv;
    float scale;
  };

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  // This block's keys, and the query tiles that see them.
  bool idle = false;
  int sequence = 0, kv_head = 0, first_key = 0, key_tile = 0, group = 1, first_tile = 0, last_tile = 0;
  Extent extent{};

  __device__ DenseBackward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  /// Which keys are this block's. Reads lengths from global memory, so it may not be called before run().
  __device__ void locate() {
    const DenseCall& call = p.call;
    group = call.hq / call.hkv;
    const int n = static_cast<int>(blockIdx.x);
    if (call.packed_tiles != nullptr) {
      const int2 tile = call.packed_tiles[n % call.tiles];
      kv_head = n / call.tiles;
      sequence = tile.x;
      key_tile = tile.y;
      idle = sequence < 0;
    } else {
      key_tile = n % call.tiles;
      kv_head = n / call.tiles % call.hkv;
      sequence = n / call.tiles / call.hkv;
    }
    if (idle) return;
    extent = extent_of(call, sequence);
    first_key = key_tile * keys;
    last_tile = first_key < extent.nk ? (extent.nq + kQueries - 1) / kQueries : 0;
    if constexpr (kCausal) first_tile = max(0, first_key - (extent.nk - extent.nq)) / kQueries;
    last_tile = max(last_tile, first_tile);
  }

  __device__ unsigned char* k_tile() const { return shared; }
  __device__ unsigned char* v_tile() const { return shared + key_bytes; }
  __device__ unsigned char* q_tile(int stage) const { return shared + q_at + stage * query_bytes; }
  __device__ unsigned char* do_tile(int stage) const { return shared + do_at + stage * query_bytes; }
  __device__ unsigned char* ds_tile(int n) const { return shared + ds_at + n % 2 * ds_bytes; }
  __device__ float* statistics(int stage) const {
    return reinterpret_cast<float*>(shared + statistics_at + stage * statistics_bytes);
  }

  __device__ void init_barriers() const {
    barrier_init(&barriers.keys_full, 1);
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.q_full[stage], 1);
      barrier_init(&barriers.do_full[stage], 1);
      barrier_init(&barriers.q_empty[stage], consumers / 32 * arrivals_of_warp());
      barrier_init(&barriers.do_empty[stage], consumers / 32 * arrivals_of_warp());
    }
  }

  template <class Body>
  __device__ void for_queries(Body&& body) const {
    int n = 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (int tile = first_tile; tile < last_tile; ++tile) body(n++, head, tile);
  }

  __device__ void produce() {
    const int entry = p.call.cu_q.present() ? 0 : sequence;
    if (last_tile > first_tile) {
      barrier_expect(&barriers.keys_full, 2 * key_bytes);
      for (int box = 0; box < boxes; ++box) {
        tma_load(k_tile() + box * keys * 128, &p.k, &barriers.keys_full, 64 * box, extent.k_start + first_key, kv_head,
                 entry);
        tma_load(v_tile() + box * keys * 128, &p.v, &barriers.keys_full, 64 * box, extent.k_start + first_key, kv_head,
                 entry);
      }
    }
    for_queries([&](int n, int head, int tile) {
      const int stage = n % stages, parity = n / stages % 2 ^ 1, row = extent.q_start + tile * kQueries;
      barrier_wait(&barriers.q_empty[stage], parity);
      barrier_expect(&barriers.q_full[stage], query_bytes + statistics_bytes);
      for (int box = 0; box < boxes; ++box)
        tma_load(q_tile(stage) + box * kQueries * 128, &p.q, &barriers.q_full[stage], 64 * box, row, head, entry);
      bulk_load(statistics(stage),
                p.slots.statistics + p.slots.slot(p.call, kQueries, sequence, head, tile) * 2 * kQueries,
                statistics_bytes, &barriers.q_full[stage]);
      barrier_wait(&barriers.do_empty[stage], parity);
      barrier_expect(&barriers.do_full[stage], query_bytes);
      for (int box = 0; box < boxes; ++box)
        tma_load(do_tile(stage) + box * kQueries * 128, &p.dout, &barriers.do_full[stage], 64 * box, row, head, entry);
    });
  }

  struct Consumer {
    DenseBackward& f;
    int thread, half, warp, lane, key_row;  // half: which 64 keys; key_row: of the tile, of this thread (and 8 below)
    int steps = 0;                          // that are done
    std::int64_t slot = 0;                  // of the query tile whose dQ is still to come
    float dk[kHead / 2], dv[kHead / 2];

    __device__ Consumer(DenseBackward& backward, int number)
        : f(backward),
          thread(number),
          half(number / 128),
          warp(number / 32 % 4),
          lane(number % 32),
          key_row(64 * (number / 128) + 16 * (number / 32 % 4) + number % 32 / 4) {}

    __device__ void release(Barrier* barrier) const { release_by_warp(barrier, lane); }

    __device__ void issue_key_query(float (&d)[kQueries / 2], const unsigned char* key_tile,
                                    const unsigned char* query_tile) const {
      issue_k_major<T, kHead, kQueries, keys, kQueries>(d, key_tile + half * 64 * 128, query_tile);
    }

    __device__ void run() {
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) dk[n] = dv[n] = 0;
      if (f.last_tile > f.first_tile) {
        barrier_wait(&f.barriers.keys_full, 0);
        const int valid = f.extent.nk - f.first_key;
        if (valid < keys && f.p.call.shares_tails()) {  // keys past the last are somebody else's
          clear_rows(f.k_tile(), valid, keys, boxes, thread, consumers);
          named_sync(1, consumers);
        }
        f.for_queries([&](int n, int head, int tile) {
          const int row0 = tile * kQueries;
          const int shift = f.extent.nk - f.extent.nq;
          bool masked = f.first_key + keys > f.extent.nk || row0 + kQueries > f.extent.nq;
          if constexpr (kCausal) masked |= f.first_key + keys - 1 > row0 + shift;
          if (n == 0)
            step<true, true>(n, head, tile);
          else
            masked ? step<true>(n, head, tile) : step<false>(n, head, tile);
          ++steps;
        });
        float dq[32];
        wait_for_other(steps - 1);
        issue_dq(dq, steps - 1);
        wgmma_wait<0>();
        keep_in_registers(dq);
        add_dq(dq);
      }
      store();
    }

    /// dQ of a step, which needs the dS of both warpgroups, is left to the next one: so they need not go side by side,
    /// and one multiplies while the other takes exponentials.
    template <bool masked, bool first = false>
    __device__ void step(int n, int head, int tile) {
      const int stage = n % stages, parity = n / stages % 2, row0 = tile * kQueries;
      const int queries = f.extent.nq - row0;  // valid ones
      float s[kQueries / 2], dp[kQueries / 2];
      std::uint32_t weights[kQueries / 16][4], ds[kQueries / 16][4];

      barrier_wait(&f.barriers.q_full[stage], parity);
      if (masked && queries < kQueries && f.p.call.cu_q.present()) {  // the rows below are another sequence's
        barrier_wait(&f.barriers.do_full[stage], parity);
        clear_rows(f.q_tile(stage), queries, kQueries, boxes, thread, consumers);
        clear_rows(f.do_tile(stage), queries, kQueries, boxes, thread, consumers);
        named_sync(1, consumers);
      }
      issue_key_query(s, f.k_tile(), f.q_tile(stage));
      barrier_wait(&f.barriers.do_full[stage], parity);
      issue_key_query(dp, f.v_tile(), f.do_tile(stage));

      const float* lse = f.statistics(stage);
      const float* delta = lse + kQueries;
      wgmma_wait<1>();
      keep_in_registers(s);
      const float scale = f.p.call.scale_log2;
#pragma unroll
      for (int c = 0; c < kQueries / 8; ++c) {
        const float2 l = *reinterpret_cast<const float2*>(lse + 8 * c + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& value = s[4 * c + i];
          value = exp2_fast(fmaf(value, scale, -(i % 2 ? l.y : l.x)));
          if constexpr (masked) {
            const int query = 8 * c + lane % 4 * 2 + i % 2, key = f.first_key + key_row + i / 2 * 8;
            bool seen = key < f.extent.nk && query < queries;
            if constexpr (kCausal) seen &= key <= row0 + query + f.extent.nk - f.extent.nq;
            if (!seen) value = 0;
          }
        }
      }
      wgmma_wait<0>();
      keep_in_registers(dp);
#pragma unroll
      for (int k = 0; k < kQueries / 16; ++k)
#pragma unroll
        for (int part = 0; part < 2; ++part) {  // eight queries
          const int c = 2 * k + part;
          const float2 d = *reinterpret_cast<const float2*>(delta + 8 * c + lane % 4 * 2);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float p0 = s[4 * c + 2 * r], p1 = s[4 * c + 2 * r + 1];
            float d0 = p0 * (dp[4 * c + 2 * r] - d.x), d1 = p1 * (dp[4 * c + 2 * r + 1] - d.y);
            if constexpr (masked) {  // what is not seen may be NaN
              d0 = p0 == 0 ? 0 : d0;
              d1 = p1 == 0 ? 0 : d1;
            }
            weights[k][2 * part + r] = narrow_pair<T>(p0, p1);
            ds[k][2 * part + r] = narrow_pair<T>(d0, d1);
          }
        }

      issue_weighted_rows<T, kQueries, kHead>(dv, weights, f.do_tile(stage));
      // The other warpgroup is done with the step before: its dS is there, and this place is no longer read.
      if constexpr (!first) wait_for_other(n - 1);
      store_transposed<keys>(f.ds_tile(n), ds, half, warp, lane);
      async_proxy_fence();
      float dq[32];
      if constexpr (!first) issue_dq(dq, n - 1);
      issue_weighted_rows<T, kQueries, kHead>(dk, ds, f.q_tile(stage));
      wgmma_wait<first ? 1 : 2>();
      keep_in_registers(dv);
      release(&f.barriers.do_empty[stage]);
      if constexpr (!first) {
        wgmma_wait<1>();
        keep_in_registers(dq);
        add_dq(dq);
      }
      wgmma_wait<0>();
      keep_in_registers(dk);
      release(&f.barriers.q_empty[stage]);
      named_arrive(step_done(half, n), consumers);
      slot = f.p.slots.slot(f.p.call, kQueries, f.sequence, head, tile);
    }

    /// The number of the barrier for warpgroup `of`'s step n.
    __device__ static int step_done(int of, int n) { return 3 + 2 * of + n % 2; }
    __device__ void wait_for_other(int n) const { named_sync(step_done(half ^ 1, n), consumers); }

    /// This warpgroup's part of dQ of step n.
    __device__ void issue_dq(float (&dq)[32], int n) const {
      issue_query_gradient<T, keys, query_boxes, boxes>(dq, f.ds_tile(n), f.k_tile(), half);
    }
    /// Adds it to the sums of `slot`.
    __device__ void add_dq(const float (&dq)[32]) const {
      if constexpr (kOrdered) wait_for_turn(f.p.slots.turns + slot);
      add_query_gradient(f.p.slots.dq + slot * (kQueries * kHead), dq, half, thread);
      if constexpr (kOrdered) {
        named_sync(2, consumers);
        if (thread == 0) {
          __threadfence();
          atomicAdd(f.p.slots.turns + slot, 1);
        }
      }
    }
    /// Blocks start in the order of their numbers, so those of lower key tiles run already or are done: nobody waits
    /// for a block that cannot start.
    __device__ void wait_for_turn(const int* turn) const {
      if (thread == 0)
        while (load_acquire(turn) < f.key_tile) continue;
      named_sync(2, consumers);
    }

    /// Padded: keys past k_lengths get zeros. Packed: rows of other sequences are left alone.
    __device__ void store() {
      const int end = f.p.call.cu_q.present() ? f.extent.nk : f.p.call.nk;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = f.first_key + key_row + 8 * r;
        const std::int64_t at = f.extent.k_start + key;
        store_row(f.p.dk.at(f.sequence, f.kv_head, at), key < end, dk, r, f.p.scale, lane);
        store_row(f.p.dv.at(f.sequence, f.kv_head, at), key < end, dv, r, 1.0f, lane);
      }
    }
  };

  __device__ void run(int thread) {
    locate();
    if (thread >= consumers) {
      fewer_registers<24>();
      if (thread == consumers && !idle) produce();
    } else {
      more_registers<240>();
      if (!idle) Consumer(*this, thread).run();
    }
  }
};

/// Before: statistics of every query row of a slot, zeros in its dq and its turn. One block of 128 threads per slot of
/// a head.
template <class T, int kHead, int kRows>
__global__ void dense_backward_prepare_kernel(DenseCall call, DenseQuerySlots slots, Rows<const T> out,
                                              Rows<const T> dout, Rows<const float> lse, Rows<const float> dlse) {
  const auto [b, h, m] = query_tile(call, static_cast<int>(blockIdx.x));
  if (b < 0) return;
  const Extent extent = extent_of(call, b);
  const std::int64_t slot = slots.slot(call, kRows, b, h, m);
  float4* dq = reinterpret_cast<float4*>(slots.dq + slot * kRows * kHead);
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kHead / 4; at += 128) dq[at] = float4{};
  if (threadIdx.x == 0) slots.turns[slot] = 0;

  float* lse_log2 = slots.statistics + slot * 2 * kRows;
  row_statistics<kHead, kRows>(b, h, m * kRows, extent, out, dout, lse, dlse, lse_log2, lse_log2 + kRows);
}

}  // namespace dsalt::cuda::hopper
