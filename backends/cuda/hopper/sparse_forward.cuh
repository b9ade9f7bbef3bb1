// The sparse forward kernel: adaptive windows and landmarks, at the cost of the keys that the mask admits.
// docs/semantics.md, "The admitted set".
//
// A block takes one tile of query rows of a head after another, from a counter, since tiles differ in length. A
// warpgroup of helpers works ahead of the three warpgroups that compute 64 rows each:
//   planners   (a warp for each 64 rows) take the next tile, find what every row admits and which keys the 64 rows
//              need, and gather landmarks, 64 of a list at a time, into shared memory
//   a copier   brings the queries and the tiles of keys and values that some row's window touches (TMA)
// Landmarks come first, then windows from the last key tile to the first. Key tiles start at multiples of 64 keys and
// blocks of landmarks at multiples of 64 of the clean list; a tile that a row does not admit changes none of its bits:
// a row's result does not depend on the other rows.
#pragma once

#include "../attention_call.cuh"
#include "dense_call.cuh"
#include "sparse_forward_consumer.cuh"
#include "sparse_forward_planner.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

/// In which order the tiles of a padded call are taken: head after head, so that tiles that run together are neighbours
/// and so are their windows; but the first few tiles of every head last, the later ones of them first. A causal window
/// has few keys there, and short tiles at the end leave multiprocessors idle for a shorter time.
struct TileOrder {
  static constexpr int most_early = 8;
  int pairs = 0, early = 0, late = 0;  // (sequence, head) pairs, and tiles of each
  Divider by_pairs, by_late;

  TileOrder() = default;
  __host__ TileOrder(int heads, int tiles)
      : pairs(heads),
        early(tiles < most_early ? tiles : most_early),
        late(tiles - early),
        by_pairs(heads == 0 ? 1 : heads),
        by_late(late == 0 ? 1 : late) {}
  /// Tile number n.
  __device__ Tile at(int n, const DenseCall& call) const {
    const int rest = n - pairs * late;
    int pair, index;
    if (rest < 0) {
      pair = by_late.quotient(n);
      index = early + by_late.remainder(n, pair);
    } else {
      const int turn = by_pairs.quotient(rest);
      pair = by_pairs.remainder(rest, turn);
      index = early - 1 - turn;
    }
    const int sequence = call.by_hq.quotient(pair);
    return {sequence, call.by_hq.remainder(pair, sequence), index};
  }
};

template <class T>
struct SparseForwardParameters {
  CUtensorMap q, k, v;
  DenseCall call;
  AttentionCall<T> sparse;
  Rows<T> out;
  Rows<float> lse;
  float inverse_scale;
  TileOrder order;
  int work;   // tiles of query rows in all, below 2^30
  int* next;  // how many were taken beyond the first of each block, 0 at first
};

template <class T, int kHead, bool kSoft>
struct SparseForward {
  using Parameters = SparseForwardParameters<T>;
  using Element = T;
  static constexpr int head = kHead;
  static constexpr bool soft = kSoft;
  // What a step costs beside its products hides behind the products of the other two warpgroups, and steps of 64 keys
  // waste less at the ends of a window than wider ones.
  static constexpr int groups = 3, keys = 64;
  // Of a thread. What does not fit goes to memory that nothing caches: hardly any of the L1 cache is left.
  static constexpr int registers = 144, helper_registers = 80;
  static constexpr int rows = 64 * groups, boxes = kHead / 64, stages = kHead == 64 ? 4 : 3, plan_stages = 3;
  static constexpr int q_stages = kHead == 64 ? 2 : 1, landmark_stages = q_stages;  // as many as fit
  static constexpr int consumers = 128 * groups, planners = 32 * groups, threads = consumers + 128;
  static constexpr int blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t store_bytes = 16 * 128;  // of a warp
  static constexpr std::uint32_t q_bytes = rows * kHead * 2, tile_bytes = keys * kHead * 2,
                                 block_bytes = landmarks_of_block * kHead * 2;
  static_assert(planners <= 96, "one of the four warps copies");

  struct Barriers {
    Barrier q_full[q_stages][groups], q_empty[q_stages][groups];  // every warpgroup has queries of its own
    Barrier k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
    Barrier landmarks_full[landmark_stages], landmarks_empty[landmark_stages];
    Barrier plan_full[plan_stages], plan_empty[plan_stages];
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
  static constexpr std::uint32_t k_at = q_stages * q_bytes, v_at = k_at + stages * tile_bytes,
                                 landmarks_at = v_at + stages * tile_bytes,
                                 plan_at = landmarks_at + landmark_stages * 2 * block_bytes,
                                 store_at = plan_at + plan_stages * plan_bytes,
                                 names_at = store_at + consumers / 32 * store_bytes,
                                 planner_at = names_at + (sizeof(LandmarkNames<rows>[landmark_stages]) + 15) / 16 * 16,
                                 barriers_at = planner_at + (sizeof(PlannerState<landmark_stages>) + 15) / 16 * 16;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);
  static_assert(shared_bytes <= 227 * 1024);

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ SparseForward(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* q_tile(int stage, int group) const {
    return shared + stage * q_bytes + group * (64 * kHead * 2);
  }
  __device__ unsigned char* k_tile(int n) const { return shared + k_at + n * tile_bytes; }
  __device__ unsigned char* v_tile(int n) const { return shared + v_at + n * tile_bytes; }
  __device__ unsigned char* landmark_keys(int stage) const { return shared + landmarks_at + stage * 2 * block_bytes; }
  __device__ unsigned char* landmark_values(int stage) const { return landmark_keys(stage) + block_bytes; }
  __device__ Plan& plan(int n) const {
    return *reinterpret_cast<Plan*>(shared + plan_at + n % plan_stages * plan_bytes);
  }
  __device__ LandmarkNames<rows>& names(int stage) const {
    return reinterpret_cast<LandmarkNames<rows>*>(shared + names_at)[stage];
  }

  __device__ PlannerState<landmark_stages>& planner_state() const {
    return *reinterpret_cast<PlannerState<landmark_stages>*>(shared + planner_at);
  }

  __device__ void init_barriers() const {
    planner_state() = {};
    for (int stage = 0; stage < q_stages; ++stage)
      for (int group = 0; group < groups; ++group) {
        barrier_init(&barriers.q_full[stage][group], 1);
        barrier_init(&barriers.q_empty[stage][group], 4 * arrivals_of_warp());
      }
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.k_full[stage], 1);
      barrier_init(&barriers.v_full[stage], 1);
      barrier_init(&barriers.k_empty[stage], consumers / 32 * arrivals_of_warp());
      barrier_init(&barriers.v_empty[stage], consumers / 32 * arrivals_of_warp());
    }
    for (int stage = 0; stage < landmark_stages; ++stage) {
      barrier_init(&barriers.landmarks_full[stage], groups * arrivals_of_warp());
      barrier_init(&barriers.landmarks_empty[stage], consumers / 32 * arrivals_of_warp());
    }
    for (int stage = 0; stage < plan_stages; ++stage) {
      barrier_init(&barriers.plan_full[stage], groups * arrivals_of_warp());
      barrier_init(&barriers.plan_empty[stage], consumers / 32 * arrivals_of_warp() + 1);  // and the copying lane
    }
  }

  /// Tile `n`; it may not exist.
  __device__ ForwardWork work(int n) const {
    ForwardWork w{p.call.packed_tiles != nullptr ? tile_at<false>(p.call, n) : p.order.at(n, p.call)};
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
      Barrier* const full = &barriers.plan_full[n % plan_stages];
      lane >= 0 ? barrier_wait(full, n / plan_stages % 2) : barrier_wait_asleep(full, n / plan_stages % 2);
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
        barrier_wait_asleep(&barriers.k_empty[k_count % stages], k_count / stages % 2 ^ 1);
        load(p.k, k_tile(k_count % stages), &barriers.k_full[k_count % stages], tile);
        ++k_count;
      };
      const auto load_v = [&](int tile) {
        barrier_wait_asleep(&barriers.v_empty[v_count % stages], v_count / stages % 2 ^ 1);
        load(p.v, v_tile(v_count % stages), &barriers.v_full[v_count % stages], tile);
        ++v_count;
      };
      // Queries of 64 rows have a free place when these rows are done with the last keys of the tile before. The
      // last rows are first: a tile begins with the last keys, which the rows before pass over. So queries come one
      // warpgroup after the other, as early as no keys have to wait for them.
      int group = groups;
      const int q_stage = q_count % q_stages;
      const auto load_q = [&] {
        if (group == 0) return;
        --group;
        Barrier* full = &barriers.q_full[q_stage][group];
        barrier_wait_asleep(&barriers.q_empty[q_stage][group], q_count / q_stages % 2 ^ 1);
        barrier_expect(full, 64 * kHead * 2);
        for (int box = 0; box < boxes; ++box)
          tma_load(q_tile(q_stage, group) + box * 64 * 128, &p.q, full, 64 * box,
                   w.extent.q_start + w.row0 + 64 * group, w.tile.head, sequence);
      };
      static_assert(stages >= groups);  // keys that come before some queries have places of their own
      if (last > first) load_k(last - 1);
      load_q();
      for (int tile = last - 1; tile >= first; --tile) {
        if (tile > first) load_k(tile - 1);
        load_v(tile);
        load_q();
      }
      while (group > 0) load_q();
      ++q_count;
    });
  }

  __device__ void run(int thread) {
    if (thread >= consumers) {
      fewer_registers<helper_registers>();
      if (thread == consumers) copy();
      if (thread >= consumers + 32 && thread < consumers + 32 + planners)
        SparseForwardPlanner<SparseForward>(*this, thread - consumers - 32).run();
    } else {
      more_registers<registers>();
      SparseForwardConsumer<SparseForward> consumer(*this, thread);
      for_plans(consumer.lane, [&](const Plan& now) { consumer.run(now); });
    }
  }
};

}  // namespace dsalt::cuda::hopper
