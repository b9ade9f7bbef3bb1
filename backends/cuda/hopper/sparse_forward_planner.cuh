// The warps that work ahead in the sparse forward kernel (sparse_forward.cuh): they take tiles of query rows, find what
// every row admits and which keys 64 rows need, and gather landmarks.
#pragma once

#include "../attention_call.cuh"
#include "../mma.cuh"
#include "dense_call.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

/// What the planners remember from tile to tile. They are three warps for what twelve wait for, so they compute nothing
/// twice, and ask early for what takes long.
template <int landmark_stages>
struct PlannerState {
  ForwardWork next;  // the tile after; it may not exist
  struct {
    const std::int32_t* index = nullptr;
    int sequence = -1, kv_head = -1;
  } landmarks[landmark_stages];  // in shared memory
};

/// One warp for each 64 rows. `thread` counts from the first of them.
template <class F>
struct SparseForwardPlanner {
  using T = typename F::Element;
  using Plan = typename F::Plan;
  static constexpr int keys = F::keys, rows = F::rows, groups = F::groups, planners = F::planners,
                       plan_stages = F::plan_stages, kHead = F::head;

  const F& f;
  const AttentionCall<T>& call;
  int thread, group, lane, block_count = 0;

  __device__ SparseForwardPlanner(const F& forward, int number)
      : f(forward), call(forward.p.sparse), thread(number), group(number / 32), lane(number % 32) {}

  __device__ void run() {
    if (thread == 0) find_next(static_cast<int>(blockIdx.x));
    for (int n = 0;; ++n) {
      Barrier* full = &f.barriers.plan_full[n % plan_stages];
      barrier_wait_asleep(&f.barriers.plan_empty[n % plan_stages], n / plan_stages % 2 ^ 1);
      Plan& plan = f.plan(n);
      named_sync(9, planners);
      const ForwardWork w = f.planner_state().next;
      if (thread == 0) plan.work = w;
      if (!w.exists()) {
        release_by_warp(full, lane);
        return;
      }
      const int following = thread == 0 ? take() : 0;  // its answer is needed at the end only
      const SequenceRows s{w.tile.sequence, w.extent.q_start, w.extent.k_start, w.extent.nq, w.extent.nk};
      if (thread == planners - 1) {
        int blocks = 0;
        for_landmarks(s, w, [&](const LandmarkBlock&) { ++blocks; });
        plan.landmark_blocks = blocks;
      }
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
      }
      release_by_warp(full, lane);
      for_landmarks(s, w, [&](const LandmarkBlock& block) { gather(plan, s, w, block); });
      if (thread == 0) find_next(following);
    }
  }

  /// The first tiles need no counter: every block has one.
  __device__ int take() const { return static_cast<int>(gridDim.x) + atomicAdd(f.p.next, 1); }
  /// The next tile: number `n` or, if that does not exist, one that follows.
  __device__ void find_next(int n) const {
    ForwardWork w;
    for (; n < f.p.work; n = take())
      if (w = f.work(n); w.exists()) break;
    f.planner_state().next = n < f.p.work ? w : ForwardWork{};
  }

  __device__ void plan_rows(Plan& plan, const SequenceRows& s, const ForwardWork& w) const {
    RowExtent extent;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 64 * group + 32 * half + lane, query = w.row0 + n;
      if constexpr (F::soft) {
        AttentionRow<T> row;
        if (query < w.extent.nq) {
          row.query = query;
          row.head = w.tile.head;
          row.fill(call, s);
          extent.include(row);
        }
        plan.row[n] = RowMask::of(row);
        plan.edge[n] = RowEdge::of(row);
      } else {
        RowMask row;
        if (query < w.extent.nq) {
          row = RowMask::of_hard_window(call, s, query, w.tile.head);
          extent.include(row);
        }
        plan.row[n] = row;
      }
    }
    extent.reduce();
    if (lane == 0) plan.extent[group] = extent;
  }

  template <class Body>
  __device__ void for_landmarks(const SequenceRows& s, const ForwardWork& w, Body&& body) const {
    const int last_query = w.row0 + f.rows_of_tile(w) - 1;
    for_landmark_blocks(call, s, w.tile.head, w.row0, last_query, body);
  }

  /// Brings 64 landmarks of a list, unless they are there, and says which rows admit them.
  __device__ void gather(const Plan& plan, const SequenceRows& s, const ForwardWork& w, const LandmarkBlock& block) {
    const int stage = block_count % F::landmark_stages;
    barrier_wait_asleep(&f.barriers.landmarks_empty[stage], block_count / F::landmark_stages % 2 ^ 1);
    ++block_count;
    const int kv_head = f.p.call.by_group.quotient(w.tile.head);
    const std::int32_t* wanted = block.index + block.start;
    auto& held = f.planner_state().landmarks[stage];
    if (held.index != wanted || held.kv_head != kv_head || held.sequence != w.tile.sequence) {
      copy(stage, s, w, block, kv_head);
      if (thread == 0) {
        held.index = wanted;
        held.kv_head = kv_head;
        held.sequence = w.tile.sequence;
      }
    }
    LandmarkNames<rows>& names = f.names(stage);
    std::uint64_t by_some_row = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = 64 * group + 32 * half + lane, query = w.row0 + n;
      const bool reads_list = query >= block.first_query && query < block.last_query;
      const std::uint64_t admitted = reads_list ? names.admitted_by(plan.row[n], call.bidirectional) : 0;
      names.admitted[n] = admitted;
      by_some_row |= admitted;
    }
    const bool any = __any_sync(0xffffffffu, by_some_row != 0),
               beyond = __any_sync(0xffffffffu, by_some_row >> 32 != 0);
    if (lane == 0) names.width[group] = beyond ? 64 : any ? 32 : 0;
    copy_async_wait<0>();
    async_proxy_fence();
    release_by_warp(&f.barriers.landmarks_full[stage], lane);
  }

  /// Names, and keys and values as tiles like those that TMA writes.
  __device__ void copy(int stage, const SequenceRows& s, const ForwardWork& w, const LandmarkBlock& block,
                       int kv_head) const {
    LandmarkNames<rows>& names = f.names(stage);
    for (int n = thread; n < landmarks_of_block; n += planners) {
      names.key[n] = block.key(n);
      names.bias[n] = landmark_bias(block.log_weight(call, s, w.tile.head, n), f.p.inverse_scale);
    }
    named_sync(9, planners);
    const T* k = call.k.at(s.b, kv_head, s.k_start);
    const T* v = call.v.at(s.b, kv_head, s.k_start);
    constexpr int pieces = kHead / 8, rows_at_once = planners / pieces;  // pieces of 16 bytes
    const int piece = thread % pieces, box = piece / 8, inside = piece % 8;
    if (thread < rows_at_once * pieces) {
#pragma unroll 4
      for (int n = thread / pieces; n < landmarks_of_block; n += rows_at_once) {
        const int key = names.key[n], bytes = key == no_key ? 0 : 16, place = key == no_key ? 0 : key;
        const int at = (box * landmarks_of_block + n) * 128 + (inside ^ n % 8) * 16;
        copy_async_16(f.landmark_keys(stage) + at, k + place * call.k.row + piece * 8, bytes);
        copy_async_16(f.landmark_values(stage) + at, v + place * call.v.row + piece * 8, bytes);
      }
    }
    copy_async_commit();
  }
};

}  // namespace dsalt::cuda::hopper
