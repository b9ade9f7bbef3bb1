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
#include "dense_call.cuh"
#include "sparse_forward_consumer.cuh"
#include "sparse_forward_planner.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"

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
  int* next;  // how many were taken beyond the first of each block, 0 at first
};

template <class T, int kHead, bool kSoft>
struct SparseForward {
  using Parameters = SparseForwardParameters<T>;
  using Element = T;
  static constexpr int head = kHead;
  static constexpr bool soft = kSoft;
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
    ForwardWork work;  // if it does not exist, there are no more
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
                                 planner_at = names_at + (sizeof(LandmarkNames<rows>) + 15) / 16 * 16,
                                 barriers_at = planner_at + (sizeof(PlannerState) + 15) / 16 * 16;
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

  __device__ PlannerState& planner_state() const { return *reinterpret_cast<PlannerState*>(shared + planner_at); }

  __device__ void init_barriers() const {
    planner_state() = {};
    for (int group = 0; group < groups; ++group) {
      barrier_init(&barriers.q_full[group], 1);
      barrier_init(&barriers.q_empty[group], 4 * arrivals_of_warp());
    }
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.k_full[stage], 1);
      barrier_init(&barriers.v_full[stage], 1);
      barrier_init(&barriers.k_empty[stage], consumers / 32 * arrivals_of_warp());
      barrier_init(&barriers.v_empty[stage], consumers / 32 * arrivals_of_warp());
    }
    barrier_init(&barriers.landmarks_full, groups * arrivals_of_warp());
    barrier_init(&barriers.landmarks_empty, consumers / 32 * arrivals_of_warp());
    for (int stage = 0; stage < plan_stages; ++stage) {
      barrier_init(&barriers.plan_full[stage], groups * arrivals_of_warp());
      barrier_init(&barriers.plan_empty[stage], consumers / 32 * arrivals_of_warp() + 1);  // and the copying lane
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
      if (!now.work.exists()) return;
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

  __device__ void run(int thread) {
    if (thread >= consumers) {
      fewer_registers<groups == 2 ? 40 : 32>();
      if (thread == consumers) copy();
      if (thread >= consumers + 32 && thread < consumers + 32 + planners)
        SparseForwardPlanner<SparseForward>(*this, thread - consumers - 32).run();
    } else {
      more_registers<groups == 2 ? 232 : 160>();
      SparseForwardConsumer<SparseForward> consumer(*this, thread);
      if (consumer.group == groups - 1) named_arrive(1, 256);  // the first group has the first turn
      for_plans(consumer.lane, [&](const Plan& now) { consumer.run(now); });
    }
  }
};

}  // namespace dsalt::cuda::hopper
