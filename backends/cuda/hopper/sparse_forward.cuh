// The sparse forward kernel: adaptive windows and landmarks, at the cost of the keys that the mask admits.
// docs/semantics.md, "The admitted set".
//
// A block takes one tile of query rows of a head after another, from a counter, since tiles differ in length. A
// warpgroup of helpers works ahead of the warpgroups that compute 64 rows each:
//   planners   (a warp for each 64 rows) take the next tile, find what every row admits and which keys the 64 rows
//              need, and gather landmarks, 64 of a list at a time, into shared memory
//   a copier   brings the queries and the tiles of keys and values that some row's window touches (TMA)
// Landmarks come first, then windows from the last key tile to the first. Key tiles start at multiples of their size
// and blocks of landmarks at multiples of 64 of the clean list; a tile that a row does not admit changes none of its
// bits: a row's result does not depend on the other rows.
#pragma once

#include "../attention_call.cuh"
#include "../mma.cuh"
#include "dense_call.cuh"
#include "fragments.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

template <class T>
struct SparseForwardParameters {
  CUtensorMap q, k, v;
  DenseCall call;
  AttentionCall<T> sparse;
  Rows<T> out;
  Rows<float> lse;
  float inverse_scale;
  int work;   // tiles of query rows in all, below 2^30
  int* next;  // the first that nobody has taken, 0 at first
};

template <class T, int kHead, bool kSoft>
struct SparseForward {
  using Parameters = SparseForwardParameters<T>;
  // Narrow heads spend more of their time outside the products: more warpgroups hide it, and narrow tiles waste less.
  static constexpr int groups = kHead == 64 ? 3 : 2, keys = kHead == 64 ? 64 : 128;
  static constexpr int rows = 64 * groups, boxes = kHead / 64, stages = 256 / keys, plan_stages = 2;
  static constexpr int consumers = 128 * groups, planners = 32 * groups, threads = consumers + 128;
  static constexpr int blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t store_bytes = 16 * 128;  // of a warp
  static constexpr std::uint32_t q_bytes = rows * kHead * 2, tile_bytes = keys * kHead * 2,
                                 block_bytes = landmarks_of_block * kHead * 2;
  static_assert(planners <= 96, "one of the four warps copies");

  struct Barriers {
    Barrier q_full[groups], q_empty[groups];  // every warpgroup has queries of its own
    Barrier k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
    Barrier landmarks_full, landmarks_empty, plan_full[plan_stages], plan_empty[plan_stages];
  };
  /// One tile of query rows.
  struct Plan {
    int number;  // -1: there is none
    ForwardWork work;
    int landmark_blocks;
    int first_tile, last_tile;  // key tiles [first, last) that some row's window touches
    RowExtent extent[groups];   // of each 64 rows
    RowMask row[rows];
    RowEdge edge[kSoft ? rows : 1];
  };
  static constexpr std::uint32_t plan_bytes = (sizeof(Plan) + 15) / 16 * 16;
  // Shared memory: queries, then K and V of every stage, K and V of the landmarks, and the rest.
  static constexpr std::uint32_t k_at = q_bytes, v_at = k_at + stages * tile_bytes,
                                 landmarks_at = v_at + stages * tile_bytes, plan_at = landmarks_at + 2 * block_bytes,
                                 store_at = plan_at + plan_stages * plan_bytes,
                                 names_at = store_at + consumers / 32 * store_bytes,
                                 barriers_at = names_at + (sizeof(LandmarkNames<rows>) + 15) / 16 * 16;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);
  static_assert(shared_bytes <= 227 * 1024);

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ SparseForward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* q_tile(int group) const { return shared + group * (64 * kHead * 2); }
  __device__ unsigned char* k_tile(int n) const { return shared + k_at + n % stages * tile_bytes; }
  __device__ unsigned char* v_tile(int n) const { return shared + v_at + n % stages * tile_bytes; }
  __device__ unsigned char* landmark_keys() const { return shared + landmarks_at; }
  __device__ unsigned char* landmark_values() const { return shared + landmarks_at + block_bytes; }
  __device__ Plan& plan(int n) const {
    return *reinterpret_cast<Plan*>(shared + plan_at + n % plan_stages * plan_bytes);
  }
  __device__ LandmarkNames<rows>& names() const { return *reinterpret_cast<LandmarkNames<rows>*>(shared + names_at); }

  __device__ void init_barriers() const {
    for (int group = 0; group < groups; ++group) {
      barrier_init(&barriers.q_full[group], 1);
      barrier_init(&barriers.q_empty[group], 4);
    }
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.k_full[stage], 1);
      barrier_init(&barriers.v_full[stage], 1);
      barrier_init(&barriers.k_empty[stage], consumers / 32);
      barrier_init(&barriers.v_empty[stage], consumers / 32);
    }
    barrier_init(&barriers.landmarks_full, groups);
    barrier_init(&barriers.landmarks_empty, consumers / 32);
    for (int stage = 0; stage < plan_stages; ++stage) {
      barrier_init(&barriers.plan_full[stage], groups);
      barrier_init(&barriers.plan_empty[stage], consumers / 32 + 1);
    }
  }

  /// Tile `n`; it may not exist.
  __device__ ForwardWork work(int n) const {
    ForwardWork w{tile_at<false>(p.call, n)};
    if (!w.exists()) return w;
    w.extent = extent_of(p.call, w.tile.sequence);
    w.row0 = w.tile.index * rows;
    if (w.row0 >= w.extent.nq) w.tile.sequence = -1;
    return w;
  }
  __device__ int rows_of_tile(const ForwardWork& w) const { return min(rows, w.extent.nq - w.row0); }

  /// Calls body(plan) for each of this block's tiles. `lane`: of the warp; one lane of it must call.
  template <class Body>
  __device__ void for_plans(int lane, Body&& body) const {
    for (int n = 0;; ++n) {
      barrier_wait(&barriers.plan_full[n % plan_stages], n / plan_stages % 2);
      const Plan& now = plan(n);
      if (now.number < 0) return;
      body(now);
      if (lane >= 0)
        release_by_warp(&barriers.plan_empty[n % plan_stages], lane);
      else
        barrier_arrive(&barriers.plan_empty[n % plan_stages]);
    }
  }

  /// One lane of the copying warp.
  __device__ void copy() const {
    int k_count = 0, v_count = 0, q_count = 0;
    for_plans(-1, [&](const Plan& now) {
      const ForwardWork& w = now.work;
      const int kv_head = p.call.by_group.quotient(w.tile.head);
      const int sequence = p.call.cu_q.present() ? 0 : w.tile.sequence;
      const int first = now.first_tile, last = now.last_tile;
      const auto load = [&](const CUtensorMap& map, unsigned char* to, Barrier* full, int tile) {
        barrier_expect(full, tile_bytes);
        for (int box = 0; box < boxes; ++box)
          tma_load(to + box * keys * 128, &map, full, 64 * box, w.extent.k_start + tile * keys, kv_head, sequence);
      };
      const auto load_k = [&](int tile) {
        barrier_wait(&barriers.k_empty[k_count % stages], k_count / stages % 2 ^ 1);
        load(p.k, k_tile(k_count), &barriers.k_full[k_count % stages], tile);
        ++k_count;
      };
      const auto load_v = [&](int tile) {
        barrier_wait(&barriers.v_empty[v_count % stages], v_count / stages % 2 ^ 1);
        load(p.v, v_tile(v_count), &barriers.v_full[v_count % stages], tile);
        ++v_count;
      };
      // The first keys have a free place before the queries have: these are in use until the tile before is done.
      if (last > first) load_k(last - 1);
      for (int group = 0; group < groups; ++group) {
        barrier_wait(&barriers.q_empty[group], q_count % 2 ^ 1);
        barrier_expect(&barriers.q_full[group], 64 * kHead * 2);
        for (int box = 0; box < boxes; ++box)
          tma_load(q_tile(group) + box * 64 * 128, &p.q, &barriers.q_full[group], 64 * box,
                   w.extent.q_start + w.row0 + 64 * group, w.tile.head, sequence);
      }
      ++q_count;
      for (int tile = last - 1; tile >= first; --tile) {
        if (tile > first) load_k(tile - 1);
        load_v(tile);
      }
    });
  }

  /// One warp for each 64 rows. `thread` counts from the first of them.
  struct Planner {
    const SparseForward& f;
    const AttentionCall<T>& call;
    int thread, group, lane, block_count = 0;

    __device__ Planner(const SparseForward& forward, int number)
        : f(forward), call(forward.p.sparse), thread(number), group(number / 32), lane(number % 32) {}

    __device__ void run() {
      for (int n = 0;; ++n) {
        Barrier* full = &f.barriers.plan_full[n % plan_stages];
        barrier_wait(&f.barriers.plan_empty[n % plan_stages], n / plan_stages % 2 ^ 1);
        Plan& plan = f.plan(n);
        if (thread == 0) {
          int number;
          do number = atomicAdd(f.p.next, 1);
          while (number < f.p.work && !f.work(number).exists());
          plan.number = number < f.p.work ? number : -1;
        }
        named_sync(9, planners);
        const int number = plan.number;
        if (number < 0) {
          release_by_warp(full, lane);
          return;
        }
        const ForwardWork w = f.work(number);
        const SequenceRows s = call.sequence(w.tile.sequence);
        plan_rows(plan, s, w);
        named_sync(9, planners);
        if (thread == 0) {
          int begin = INT32_MAX, end = 0;
          for (int g = 0; g < groups; ++g) {
            if (plan.extent[g].begin >= plan.extent[g].end) continue;
            begin = min(begin, plan.extent[g].begin);
            end = max(end, plan.extent[g].end);
          }
          plan.first_tile = begin < end ? begin / keys : 0;
          plan.last_tile = begin < end ? (end + keys - 1) / keys : 0;
          int blocks = 0;
          for_landmarks(s, w, [&](const LandmarkBlock&) { ++blocks; });
          plan.landmark_blocks = blocks;
          plan.work = w;
        }
        release_by_warp(full, lane);
        for_landmarks(s, w, [&](const LandmarkBlock& block) { gather(plan, s, w, block); });
      }
    }

    __device__ void plan_rows(Plan& plan, const SequenceRows& s, const ForwardWork& w) const {
      RowExtent extent;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 64 * group + 32 * half + lane;
        AttentionRow<T> row;
        if (w.row0 + n < w.extent.nq) {
          row.query = w.row0 + n;
          row.head = w.tile.head;
          row.fill(call, s);
          extent.include(row);
        }
        plan.row[n] = RowMask::of(row);
        if constexpr (kSoft) plan.edge[n] = RowEdge::of(row);
      }
      extent.reduce();
      if (lane == 0) plan.extent[group] = extent;
    }

    template <class Body>
    __device__ void for_landmarks(const SequenceRows& s, const ForwardWork& w, Body&& body) const {
      const int last_query = w.row0 + f.rows_of_tile(w) - 1;
      for_landmark_blocks(call, s, w.tile.head, w.row0, last_query, body);
    }

    /// Brings 64 landmarks of a list: names, keys and values, as tiles like those that TMA writes.
    __device__ void gather(const Plan& plan, const SequenceRows& s, const ForwardWork& w, const LandmarkBlock& block) {
      barrier_wait(&f.barriers.landmarks_empty, block_count % 2 ^ 1);
      ++block_count;
      LandmarkNames<rows>& names = f.names();
      for (int n = thread; n < landmarks_of_block; n += planners) {
        names.key[n] = block.key(n);
        const float bias = block.log_weight(call, s, w.tile.head, n) * f.p.inverse_scale;
        names.bias[n] = fminf(fmaxf(bias, -1e38f), 1e38f);  // added to a finite score it must stay finite
      }
      const int kv_head = f.p.call.by_group.quotient(w.tile.head);
      const T* k = call.k.at(s.b, kv_head, s.k_start);
      const T* v = call.v.at(s.b, kv_head, s.k_start);
      constexpr int pieces = kHead / 8, rows_at_once = planners / pieces;  // pieces of 16 bytes
      const int piece = thread % pieces, box = piece / 8, inside = piece % 8;
      for (int n = thread / pieces; n < landmarks_of_block && thread < rows_at_once * pieces; n += rows_at_once) {
        const int key = block.key(n), bytes = key == no_key ? 0 : 16, place = key == no_key ? 0 : key;
        const int at = (box * landmarks_of_block + n) * 128 + (inside ^ n % 8) * 16;
        copy_async_16(f.landmark_keys() + at, k + place * call.k.row + piece * 8, bytes);
        copy_async_16(f.landmark_values() + at, v + place * call.v.row + piece * 8, bytes);
      }
      copy_async_commit();
      named_sync(9, planners);  // the keys are there
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int n = 64 * group + 32 * half + lane, query = w.row0 + n;
        const bool reads_list = query >= block.first_query && query < block.last_query;
        names.admitted[n] = reads_list ? names.admitted_by(plan.row[n]) : 0;
      }
      copy_async_wait<0>();
      async_proxy_fence();
      release_by_warp(&f.barriers.landmarks_full, lane);
    }
  };

  /// One warpgroup: 64 query rows of every tile. Each thread has two rows, `row` of the tile and 8 below it.
  struct Consumer {
    const SparseForward& f;
    int thread, group, lane, row;
    unsigned tile_count = 0, key_count = 0, block_count = 0;  // keys and values arrive in step
    float s[keys / 2], o[kHead / 2];
    std::uint32_t weights[keys / 16][4];
    float landmark_s[landmarks_of_block / 2];
    std::uint32_t landmark_weights[landmarks_of_block / 16][4];
    RunningSoftmax softmax;
    RowMask mask[2];
    const RowEdge* edges = nullptr;

    __device__ Consumer(const SparseForward& forward, int number)
        : f(forward),
          thread(number),
          group(number / 128),
          lane(number % 32),
          row(64 * (number / 128) + 16 * (number / 32 % 4) + number % 32 / 4) {}

    __device__ void release(Barrier* barrier) const { release_by_warp(barrier, lane); }
    __device__ void take_turn() const { named_sync(1 + group, 256); }
    __device__ void pass_turn() const { named_arrive(1 + (group + 1) % groups, 256); }

    /// Scores of the tile of keys number n.
    __device__ void issue_scores(unsigned n) {
      barrier_wait(&f.barriers.k_full[n % stages], n / stages % 2);
      take_turn();
      issue_k_major<T, kHead, keys, 64, keys>(s, f.q_tile(group), f.k_tile(n));
    }
    __device__ void issue_values(unsigned n) {
      barrier_wait(&f.barriers.v_full[n % stages], n / stages % 2);
      issue_weighted_rows<T, keys, kHead>(o, weights, f.v_tile(n));
    }
    __device__ void issue_landmark_scores() {
      barrier_wait(&f.barriers.landmarks_full, block_count % 2);
      issue_k_major<T, kHead, landmarks_of_block, 64, landmarks_of_block>(landmark_s, f.q_tile(group),
                                                                          f.landmark_keys());
    }
    __device__ void issue_landmark_values() {
      issue_weighted_rows<T, landmarks_of_block, kHead>(o, landmark_weights, f.landmark_values());
    }
    __device__ void scale_sums(const float (&factor)[2]) {
      if (__all_sync(0xffffffffu, factor[0] == 1 && factor[1] == 1)) return;
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) o[n] *= factor[n / 2 % 2];
    }

    __device__ void run(const Plan& plan) {
      softmax = RunningSoftmax{};
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) o[n] = 0;
      barrier_wait(&f.barriers.q_full[group], tile_count % 2);
      ++tile_count;
      mask[0] = plan.row[row];
      mask[1] = plan.row[row + 8];
      if constexpr (kSoft) edges = plan.edge + row;
      const int first = plan.first_tile, last = plan.last_tile, blocks = plan.landmark_blocks;
      clear_tail(plan.work.extent.nk, last);
      const RowExtent& extent = plan.extent[group];
      // The key tiles [first, last) are there; these 64 rows need [begin, end).
      const bool any = extent.begin < extent.end;
      const int end = any ? (extent.end + keys - 1) / keys : first, begin = any ? extent.begin / keys : first;
      const int whole_begin = extent.whole_begin, whole_end = extent.whole_end;
      const bool beside = landmarks_beside_keys && any && blocks > 0;
      for (int n = 0; n < blocks - beside; ++n) landmarks();
      int tile = last - 1;
      for (; tile >= end; --tile) skip();
      if (any) {
        beside ? first_with_landmarks(tile) : first_tile(tile);
        for (--tile; tile >= begin; --tile) {
          if (tile * keys >= whole_begin && (tile + 1) * keys <= whole_end)
            step<false>(tile);
          else
            step<true>(tile);
        }
        release(&f.barriers.q_empty[group]);
        issue_values(key_count);
        wgmma_wait<0>();
        keep_in_registers(o);
        release(&f.barriers.v_empty[key_count % stages]);
        ++key_count;
        for (; tile >= first; --tile) skip();
      } else {
        release(&f.barriers.q_empty[group]);
      }
      softmax.finish();
      store(plan.work);
    }

    /// out and lse. A warp's 16 rows of out pass through shared memory, so that they leave in whole lines.
    __device__ void store(const ForwardWork& w) const {
      unsigned char* lines = f.shared + store_at + thread / 32 * store_bytes;
      const int row0 = w.row0 + row - lane / 4;  // the warp's first
      const std::int64_t at = w.extent.q_start + row0;
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = softmax.sum[r];
        inverse[r] = sum == 0 ? 0 : __frcp_rn(sum);  // no key: the row is 0
        const int n = lane / 4 + 8 * r;
        if (f.p.lse.data != nullptr && row0 + n < w.extent.nq && lane % 4 == 0)
          *f.p.lse.at(w.tile.sequence, w.tile.head, at + n) = log_sum(softmax.maximum[r], sum, f.p.call.scale_log2);
      }
      T* out = f.p.out.at(w.tile.sequence, w.tile.head, at + lane / 8) + lane % 8 * 8;
#pragma unroll
      for (int box = 0; box < boxes; ++box) {
        if (box > 0) __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          std::uint32_t r[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int element = 32 * box + 8 * k + 2 * n;
            r[n] = narrow_pair<T>(o[element] * inverse[n % 2], o[element + 1] * inverse[n % 2]);
          }
          const int line = lane / 8 % 2 * 8 + lane % 8, piece = 2 * k + lane / 16;
          stmatrix_x4(lines + line * 128 + (piece ^ line % 8) * 16, r);
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int line = 4 * n + lane / 8;
          const uint4 value = *reinterpret_cast<const uint4*>(lines + line * 128 + (lane % 8 ^ line % 8) * 16);
          if (row0 + line < w.extent.nq) *reinterpret_cast<uint4*>(out + 4 * n * f.p.out.row + 64 * box) = value;
        }
      }
      __syncwarp();  // the lines may be written again
    }

    /// Values past the last key are somebody else's.
    __device__ void clear_tail(int nk, int last) {
      const int valid = nk - (last - 1) * keys;
      if (last == 0 || valid >= keys || !f.p.call.shares_tails()) return;
      barrier_wait(&f.barriers.v_full[key_count % stages], key_count / stages % 2);
      clear_rows(f.v_tile(key_count), valid, keys, boxes, thread, consumers);
      named_sync(8, consumers);
    }

    __device__ void weigh_landmarks(float (&factor)[2]) {
      mask_landmarks(landmark_s, f.names(), row, lane, f.p.sparse.weight.present());
      softmax.update<true>(landmark_s, f.p.call.scale_log2, factor);
      round_weights<T>(landmark_weights, landmark_s);
    }
    __device__ void landmarks() {
      float factor[2];
      issue_landmark_scores();
      wgmma_wait<0>();
      keep_in_registers(landmark_s);
      weigh_landmarks(factor);
      scale_sums(factor);
      issue_landmark_values();
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.landmarks_empty);
      ++block_count;
    }

    /// Takes registers for both scores.
    static constexpr bool landmarks_beside_keys = groups == 2;

    template <bool masked>
    __device__ void weigh(int tile, float (&factor)[2]) {
      if constexpr (masked) {
        mask_window(s, tile * keys, mask, lane);
        if constexpr (kSoft) add_soft_edge(s, tile * keys, edges, lane, f.p.sparse, f.p.inverse_scale);
      }
      softmax.update<true>(s, f.p.call.scale_log2, factor);
    }
    __device__ void first_tile(int tile) {
      float factor[2];
      issue_scores(key_count);
      pass_turn();
      wgmma_wait<0>();
      keep_in_registers(s);
      release(&f.barriers.k_empty[key_count % stages]);
      weigh<true>(tile, factor);
      round_weights<T>(weights, s);
      scale_sums(factor);
    }
    /// The last block of landmarks beside the first tile of keys.
    __device__ void first_with_landmarks(int tile) {
      float factor[2];
      issue_landmark_scores();
      issue_scores(key_count);
      pass_turn();
      wgmma_wait<1>();
      keep_in_registers(landmark_s);
      weigh_landmarks(factor);
      scale_sums(factor);
      issue_landmark_values();
      wgmma_wait<1>();
      keep_in_registers(s);
      release(&f.barriers.k_empty[key_count % stages]);
      weigh<true>(tile, factor);
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.landmarks_empty);
      ++block_count;
      round_weights<T>(weights, s);
      scale_sums(factor);
    }

    /// A tile that only other warpgroups need. It may be handed back only once it is there: an arrival must not count
    /// for the tile before.
    __device__ void skip() {
      const unsigned stage = key_count % stages, parity = key_count / stages % 2;
      take_turn();
      pass_turn();
      barrier_wait(&f.barriers.k_full[stage], parity);
      release(&f.barriers.k_empty[stage]);
      barrier_wait(&f.barriers.v_full[stage], parity);
      release(&f.barriers.v_empty[stage]);
      ++key_count;
    }

    /// Scores of `tile` and values of the tile before it (in the order of execution) together.
    template <bool masked>
    __device__ void step(int tile) {
      const unsigned before = key_count, now = key_count + 1;
      float factor[2];
      issue_scores(now);
      issue_values(before);
      pass_turn();
      wgmma_wait<1>();
      keep_in_registers(s);
      release(&f.barriers.k_empty[now % stages]);
      weigh<masked>(tile, factor);
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.v_empty[before % stages]);
      ++key_count;
      round_weights<T>(weights, s);
      scale_sums(factor);
    }
  };

  __device__ void run(int thread) {
    if (thread >= consumers) {
      fewer_registers<groups == 2 ? 40 : 32>();
      if (thread == consumers) copy();
      if (thread >= consumers + 32 && thread < consumers + 32 + planners) Planner(*this, thread - consumers - 32).run();
    } else {
      more_registers<groups == 2 ? 232 : 160>();
      Consumer consumer(*this, thread);
      if (consumer.group == groups - 1) named_arrive(1, 256);  // the first group has the first turn
      for_plans(consumer.lane, [&](const Plan& now) { consumer.run(now); });
    }
  }
};

}  // namespace dsalt::cuda::hopper
