// The dense forward kernel for many query rows.
//
//   S = Q K^T, P = exp2(scale_log2 (S - max)), O = P V / sum(P), lse = scale max + log(sum)      one tile of query rows
//
// One warp copies (TMA), the warpgroups compute 64 query rows each. Keys are walked from the last tile to the first, so
// that masked tiles come first. A warpgroup issues S of the next tile before O of the present one and computes its
// softmax while the tensor cores work; the warpgroups take turns (named barriers), so that one's products run during
// the other's softmax. Key tiles start at multiples of `kKeys`, and a tile that a row does not see changes none of its
// bits: a row's result does not depend on the other rows.
#pragma once

#include "dense_call.cuh"
#include "fragments.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

template <class T>
struct ForwardParameters {
  CUtensorMap q, k, v;
  DenseCall call;
  Rows<T> out;
  Rows<float> lse;
  int work;  // tiles of query rows in all, below 2^30
};

template <class T, int kHead, int kGroups, int kKeys, bool kCausal>
struct DenseForward {
  using Parameters = ForwardParameters<T>;
  static constexpr int rows = 64 * kGroups, keys = kKeys, stages = 2, boxes = kHead / 64, consumers = 128 * kGroups;
  static constexpr int threads = consumers + 128, blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t q_bytes = rows * kHead * 2, tile_bytes = kKeys * kHead * 2;

  struct Barriers {
    Barrier q_full, q_empty, k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
  };
  static constexpr std::uint32_t barriers_at = q_bytes + 2 * stages * tile_bytes;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + 128;

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ DenseForward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* k_tile(int stage) const { return shared + q_bytes + stage * tile_bytes; }
  __device__ unsigned char* v_tile(int stage) const { return shared + q_bytes + (stages + stage) * tile_bytes; }

  __device__ void init_barriers() const {
    barrier_init(&barriers.q_full, 1);
    barrier_init(&barriers.q_empty, consumers / 32 * arrivals_of_warp());
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.k_full[stage], 1);
      barrier_init(&barriers.v_full[stage], 1);
      barrier_init(&barriers.k_empty[stage], consumers / 32 * arrivals_of_warp());
      barrier_init(&barriers.v_empty[stage], consumers / 32 * arrivals_of_warp());
    }
  }

  template <class Body>
  __device__ void for_work(Body&& body) const {
    for (int n = static_cast<int>(blockIdx.x); n < p.work; n += static_cast<int>(gridDim.x)) {
      const ForwardWork w = forward_work<kCausal>(p.call, n, rows, kKeys);
      if (w.exists()) body(w);
    }
  }

  /// One lane of the copying warp.
  __device__ void produce() {
    int k_count = 0, v_count = 0, q_count = 0;
    for_work([&](const ForwardWork& w) {
      const int kv_head = p.call.by_group.quotient(w.tile.head);
      const int sequence = p.call.cu_q.present() ? 0 : w.tile.sequence;
      const auto load = [&](const CUtensorMap& map, unsigned char* to, Barrier* full, int tile) {
        barrier_expect(full, tile_bytes);
        for (int box = 0; box < boxes; ++box)
          tma_load(to + box * kKeys * 128, &map, full, 64 * box, w.extent.k_start + tile * kKeys, kv_head, sequence);
      };
      const auto load_k = [&](int tile) {
        const int stage = k_count % stages;
        barrier_wait(&barriers.k_empty[stage], k_count / stages % 2 ^ 1);
        load(p.k, k_tile(stage), &barriers.k_full[stage], tile);
        ++k_count;
      };
      if (w.tiles > 0) load_k(w.tiles - 1);
      barrier_wait(&barriers.q_empty, q_count % 2 ^ 1);
      barrier_expect(&barriers.q_full, q_bytes);
      for (int box = 0; box < boxes; ++box)
        tma_load(shared + box * rows * 128, &p.q, &barriers.q_full, 64 * box, w.extent.q_start + w.row0, w.tile.head,
                 sequence);
      ++q_count;
      for (int tile = w.tiles - 1; tile >= 0; --tile) {
        if (tile > 0) load_k(tile - 1);
        const int stage = v_count % stages;
        barrier_wait(&barriers.v_empty[stage], v_count / stages % 2 ^ 1);
        load(p.v, v_tile(stage), &barriers.v_full[stage], tile);
        ++v_count;
      }
    });
  }

  /// One warpgroup: 64 query rows of every tile. Each thread has two rows, `row` of the tile and 8 below it.
  struct Consumer {
    DenseForward& f;
    int thread, group, lane, row;
    int k_count = 0, v_count = 0, q_count = 0;
    float s[kKeys / 2];
    std::uint32_t weights[kKeys / 16][4];  // P, rounded: operand A of the second product
    float o[kHead / 2];
    PairedSoftmax softmax;

    __device__ Consumer(DenseForward& forward, int number)
        : f(forward),
          thread(number),
          group(number / 128),
          lane(number % 32),
          row(64 * (number / 128) + 16 * (number / 32 % 4) + number % 32 / 4) {}

    __device__ void release(Barrier* barrier) const { release_by_warp(barrier, lane); }
    __device__ void take_turn() const { named_sync(1 + group, 256); }
    __device__ void pass_turn() const { named_arrive(1 + (group + 1) % kGroups, 256); }

    __device__ void issue_scores() {
      issue_k_major<T, kHead, kKeys, rows, kKeys>(s, f.shared + group * 64 * 128, f.k_tile(k_count % stages));
    }
    __device__ void issue_values() { issue_weighted_rows<T, kKeys, kHead>(o, weights, f.v_tile(v_count % stages)); }

    /// Values past the last key are somebody else's.
    __device__ void clear_tail(const ForwardWork& w) {
      const int valid = w.extent.nk - (w.tiles - 1) * kKeys;
      if (valid >= kKeys || !f.p.call.shares_tails()) return;
      const int stage = v_count % stages;
      barrier_wait(&f.barriers.v_full[stage], v_count / stages % 2);
      clear_rows(f.v_tile(stage), valid, kKeys, boxes, thread, consumers);
      named_sync(8, consumers);
    }

    __device__ void run(const ForwardWork& w) {
      softmax = PairedSoftmax{};
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) o[n] = 0;
      barrier_wait(&f.barriers.q_full, q_count % 2);
      ++q_count;
      if (w.tiles == 0) {
        release(&f.barriers.q_empty);
        return;
      }
      clear_tail(w);
      const int limit[2] = {w.limit<kCausal>(row), w.limit<kCausal>(row + 8)};
      const int unmasked = w.limit<kCausal>(64 * group);  // the warpgroup's first row sees the fewest keys
      barrier_wait(&f.barriers.k_full[k_count % stages], k_count / stages % 2);
      issue_scores();
      wgmma_wait<0>();
      keep_in_registers(s);
      release(&f.barriers.k_empty[k_count % stages]);
      ++k_count;
      mask_scores(s, (w.tiles - 1) * kKeys, unmasked, limit, lane);
      softmax.start(s, f.p.call.scale_log2);
      round_weights<T>(weights, s);

      int tile = w.tiles - 2;
      for (; tile >= 0 && (tile + 1) * kKeys > unmasked; --tile) step<true>(tile, unmasked, limit);
      for (; tile >= 0; --tile) step<false>(tile, unmasked, limit);

      release(&f.barriers.q_empty);
      barrier_wait(&f.barriers.v_full[v_count % stages], v_count / stages % 2);
      issue_values();
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.v_empty[v_count % stages]);
      ++v_count;
      softmax.finish();
    }

    /// Scores of `tile` and values of the tile before it (in the order of execution) together.
    template <bool masked>
    __device__ void step(int tile, int unmasked, const int (&limit)[2]) {
      float factor[2];
      barrier_wait(&f.barriers.k_full[k_count % stages], k_count / stages % 2);
      take_turn();
      issue_scores();
      barrier_wait(&f.barriers.v_full[v_count % stages], v_count / stages % 2);
      issue_values();
      pass_turn();
      wgmma_wait<1>();
      keep_in_registers(s);
      release(&f.barriers.k_empty[k_count % stages]);
      ++k_count;
      if constexpr (masked) mask_scores(s, tile * kKeys, unmasked, limit, lane);
      const bool scaled = softmax.update(s, f.p.call.scale_log2, factor);
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.v_empty[v_count % stages]);
      ++v_count;
      round_weights<T>(weights, s);
      if (!scaled) return;
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) o[n] *= factor[n / 2 % 2];
    }
  };

  __device__ void run(int thread) {
    if (thread >= consumers) {
      fewer_registers<kGroups == 2 ? 24 : 32>();
      if (thread == consumers) produce();
    } else {
      more_registers<kGroups == 2 ? 240 : 160>();
      Consumer consumer(*this, thread);
      if (consumer.group == kGroups - 1) named_arrive(1, 256);  // the first group has the first turn
      for_work([&](const ForwardWork& w) {
        consumer.run(w);
        store_tile(p, w, consumer.o, consumer.softmax, consumer.row, consumer.lane);
      });
    }
  }
};

}  // namespace dsalt::cuda::hopper
