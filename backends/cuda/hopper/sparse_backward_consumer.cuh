// The warpgroups that compute in the sparse backward kernel (sparse_backward.cuh has the equations).
//
// Of a tile of keys, and of more than 64 landmarks, each of the two takes 64 keys. dQ needs the dS of both: over a tile
// of keys it is multiplied in the step after, so that they may be most of a step apart. Up to 64 landmarks are taken
// whole by both, for other queries: nothing is shared, and while one multiplies the other takes exponentials.
#pragma once

#include "backward_fragments.cuh"
#include "sparse_backward_jobs.cuh"
#include "sparse_backward_scores.cuh"

namespace dsalt::cuda::hopper {

template <class F>
struct SparseBackwardConsumer : SparseBackwardScores<F> {
  using Scores = SparseBackwardScores<F>;
  using Scores::dlambda;
  using Scores::f;
  using Scores::lane;
  using Kind = typename Scores::Kind;
  using Keys = typename Scores::Keys;
  using T = typename F::Element;
  using Queries = typename F::Queries;
  using Job = typename F::Job;
  using Step = typename F::Step;
  static constexpr int keys = F::keys, stages = F::stages, boxes = F::boxes, query_boxes = F::query_boxes,
                       consumers = F::consumers, kHead = F::head, kQueries = F::queries;

  int thread, half, warp;
  float dk[kHead / 2], dv[kHead / 2];
  int steps = 0;                  // of both warpgroups together, so far
  float* pending_sums = nullptr;  // for the dQ of the latest of these

  __device__ SparseBackwardConsumer(const F& backward, int number)
      : Scores{backward, number % 32, {0, 0}}, thread(number), half(number / 128), warp(number / 32 % 4) {}

  __device__ void release(int n) const { release_by_warp(&f.barriers.empty[n % stages], lane); }
  __device__ Step wait_for_step(int n) const {
    barrier_wait(&f.barriers.q_full[n % stages], n / stages % 2);
    return f.step_of(n);
  }
  __device__ void wait_for_dout(int n) const { barrier_wait(&f.barriers.do_full[n % stages], n / stages % 2); }

  __device__ __forceinline__ void run() {
    int n = 0;
    for (int j = 0;; ++j) {
      const Step first = wait_for_step(n);
      if (first.head < 0) return;
      const Job& job = f.job(j);
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) dk[i] = dv[i] = 0;
      if (job.is_list)
        run_list(job, n);
      else
        run_tile(job, n);
    }
  }

  __device__ __forceinline__ void run_tile(const Job& job, int& n) {
    bool pending = false;
    for (;; ++n) {
      const Step now = wait_for_step(n);
      if (now.tile < 0) break;
      if (!pending) wait_for_keys(job);
      const int first = job.first_key + 64 * half;
      if (now.begin >= first + 64 || now.end <= first) {
        step_without_keys(job, n, now, pending);
      } else if (!pending) {
        step<Kind::window, false>(job, n, now);
      } else {
        const bool whole = first >= now.whole_begin && first + 64 <= now.whole_end && first + 64 <= job.extent.nk &&
                           (now.tile + 1) * kQueries <= job.extent.nq;
        whole ? step<Kind::whole, true>(job, n, now) : step<Kind::window, true>(job, n, now);
      }
      pending = true;
    }
    if (pending) finish_pending();
    release(n++);
    store_tile(job);
  }

  __device__ __forceinline__ void run_list(const Job& job, int& n) {
    dlambda[0] = dlambda[1] = 0;
    gather(job);
    const bool few = job.valid <= 64, forward_only = !f.p.sparse.bidirectional;
    for (;; ++n) {
      const Step now = wait_for_step(n);
      if (now.tile < 0) break;
      const int row0 = now.tile * kQueries;
      const bool past = forward_only && row0 >= job.first_query && row0 + kQueries <= job.last_query;
      if (!few) {
        past ? step<Kind::past_landmarks, false>(job, n, now) : step<Kind::landmarks, false>(job, n, now);
        finish_pending();
      } else if (query_boxes == 1 && n % 2 != half) {
        release(n);  // the other warpgroup's queries
      } else {
        past ? step_alone<Kind::past_landmarks>(job, n, now) : step_alone<Kind::landmarks>(job, n, now);
      }
    }
    release(n++);
    store_list(job, few);
  }

  __device__ void wait_for_keys(const Job& job) const {
    barrier_wait(&f.barriers.keys_full, job.keys_parity);
    if (job.valid >= keys || !f.p.call.shares_tails()) return;  // keys past the last are somebody else's
    clear_rows(f.k_tile(), job.valid, keys, boxes, thread, consumers);
    clear_rows(f.v_tile(), job.valid, keys, boxes, thread, consumers);
    named_sync(1, consumers);
  }

  /// Brings the job's landmarks: names, keys and values, as tiles like those that TMA writes.
  __device__ void gather(const Job& job) const {
    named_sync(1, consumers);  // nobody is at the job before
    const AttentionCall<T>& call = f.p.sparse;
    if (thread < keys) {
      const bool exists = thread < job.valid;
      f.names()[thread] = exists ? job.index[job.first_key + thread] : no_key;
      const float weight =
          exists ? call.log_weight(job.sequence, job.first_head, job.list, job.list_slot[job.first_key + thread])
                 : 0.0f;
      f.biases()[thread] = landmark_bias(weight, f.p.inverse_scale);
    }
    const T* k = call.k.at(call.packed ? 0 : job.sequence, job.kv_head, job.extent.k_start);
    const T* v = call.v.at(call.packed ? 0 : job.sequence, job.kv_head, job.extent.k_start);
    constexpr int pieces = kHead / 8;  // of 16 bytes
    const int piece = thread % pieces, box = piece / 8, inside = piece % 8;
    for (int n = thread / pieces; n < keys; n += consumers / pieces) {
      const int key = n < job.valid ? job.index[job.first_key + n] : 0, bytes = n < job.valid ? 16 : 0;
      const int at = (box * keys + n) * 128 + (inside ^ n % 8) * 16;
      copy_async_16(f.k_tile() + at, k + key * call.k.row + piece * 8, bytes);
      copy_async_16(f.v_tile() + at, v + key * call.v.row + piece * 8, bytes);
    }
    copy_async_commit();
    copy_async_wait<0>();
    async_proxy_fence();
    named_sync(1, consumers);
  }

  /// Leaves its dQ to the step after, or to finish_pending(), so that the warpgroups need not go side by side: while
  /// one takes exponentials, the other multiplies. `pending`: the step before has left one. (Inlined by force, like
  /// what calls it: ptxas serialises the products of a kernel that calls functions while some are under way.)
  template <Kind kind, bool pending>
  __device__ __forceinline__ void step(const Job& job, int n, const Step& now) {
    const int stage = n % stages, row0 = now.tile * kQueries, key_row = 64 * half + 16 * warp + lane / 4;
    const std::int64_t slot = f.p.slots.slot(f.p.call, kQueries, job.sequence, now.head, now.tile);
    float s[kQueries / 2], dp[kQueries / 2];
    std::uint32_t weights[kQueries / 16][4], ds[kQueries / 16][4];

    clear_tail(n, job.extent.nq - row0);
    issue_k_major<T, kHead, kQueries, keys, kQueries>(s, f.k_tile() + half * 64 * 128, f.q_tile(stage));
    wait_for_dout(n);
    issue_k_major<T, kHead, kQueries, keys, kQueries>(dp, f.v_tile() + half * 64 * 128, f.do_tile(stage));

    const Queries& rows = f.query_rows(stage);
    const Keys mine = this->template keys_of<kind>(job, key_row);
    wgmma_wait<1>();
    keep_in_registers(s);
    this->template weigh<kind>(s, job, mine, rows, 0, row0);
    wgmma_wait<0>();
    keep_in_registers(dp);
    this->template differentiate<kind>(s, dp, weights, ds, mine, rows, 0, slot * kQueries);

    issue_weighted_rows<T, kQueries, kHead>(dv, weights, f.do_tile(stage));
    if constexpr (pending) wait_for_ds(steps - 1);
    store_transposed<keys>(f.ds_tile(steps), ds, half, warp, lane);
    async_proxy_fence();
    if constexpr (pending) {
      float dq[32];
      issue_query_gradient<T, keys, query_boxes, boxes>(dq, f.ds_tile(steps - 1), f.k_tile(), half);
      issue_weighted_rows<T, kQueries, kHead>(dk, ds, f.q_tile(stage));
      wgmma_wait<1>();
      keep_in_registers(dv);
      keep_in_registers(dq);
      add_query_gradient(pending_sums, dq, half, thread);
    } else {
      issue_weighted_rows<T, kQueries, kHead>(dk, ds, f.q_tile(stage));
    }
    wgmma_wait<0>();
    keep_in_registers(dv);
    keep_in_registers(dk);
    end_step(n, slot);
  }

  /// Both warpgroups' dS of that step is there, and nobody reads that of the step before any longer.
  __device__ void wait_for_ds(int step) const { barrier_wait(&f.barriers.ds_done[step % 2], step / 2 % 2); }
  /// Of both warpgroups' steps. Its dQ is pending now.
  __device__ void end_step(int n, std::int64_t slot) {
    release_by_warp(&f.barriers.ds_done[steps % 2], lane);
    release(n);
    ++steps;
    pending_sums = f.p.slots.dq + slot * (kQueries * kHead);
  }
  __device__ void finish_pending() const {
    wait_for_ds(steps - 1);
    add_pending();
  }
  __device__ void add_pending() const {
    float dq[32];
    issue_query_gradient<T, keys, query_boxes, boxes>(dq, f.ds_tile(steps - 1), f.k_tile(), half);
    wgmma_wait<0>();
    keep_in_registers(dq);
    add_query_gradient(pending_sums, dq, half, thread);
  }

  /// No row admits a key of this warpgroup: its dS is 0.
  __device__ __forceinline__ void step_without_keys(const Job& job, int n, const Step& now, bool pending) {
    clear_tail(n, job.extent.nq - now.tile * kQueries);
    if (pending) wait_for_ds(steps - 1);
    const std::uint32_t zeros[kQueries / 16][4] = {};
    store_transposed<keys>(f.ds_tile(steps), zeros, half, warp, lane);
    async_proxy_fence();
    if (pending) add_pending();
    end_step(n, f.p.slots.slot(f.p.call, kQueries, job.sequence, now.head, now.tile));
  }

  /// All of up to 64 landmarks for 64 queries: those of box `half`, or of the whole tile.
  template <Kind kind>
  __device__ __forceinline__ void step_alone(const Job& job, int n, const Step& now) {
    constexpr int queries = 64;
    const int stage = n % stages, column0 = query_boxes == 2 ? queries * half : 0, row0 = now.tile * kQueries;
    const std::int64_t slot = f.p.slots.slot(f.p.call, kQueries, job.sequence, now.head, now.tile);
    float* const sums = f.p.slots.dq + slot * (kQueries * kHead);
    unsigned char *const q = f.q_tile(stage) + column0 * 128, *const dout = f.do_tile(stage) + column0 * 128;
    float s[queries / 2], dp[queries / 2];
    std::uint32_t weights[queries / 16][4], ds[queries / 16][4];

    const int valid = max(job.extent.nq - row0 - column0, 0);
    if (valid < queries && f.p.call.cu_q.present()) {  // as clear_tail()
      wait_for_dout(n);
      clear_rows(q, valid, queries, boxes, thread % 128, 128);
      clear_rows(dout, valid, queries, boxes, thread % 128, 128);
      named_sync(2 + half, 128);
    }
    issue_k_major<T, kHead, queries, keys, kQueries>(s, f.k_tile(), q);
    wait_for_dout(n);
    issue_k_major<T, kHead, queries, keys, kQueries>(dp, f.v_tile(), dout);

    const Queries& rows = f.query_rows(stage);
    const Keys mine = this->template keys_of<kind>(job, 16 * warp + lane / 4);
    wgmma_wait<1>();
    keep_in_registers(s);
    this->template weigh<kind>(s, job, mine, rows, column0, row0);
    wgmma_wait<0>();
    keep_in_registers(dp);
    this->template differentiate<kind>(s, dp, weights, ds, mine, rows, column0, 0);

    // The warpgroup's own dS, another one than in its step before: box `half`, or in turn the upper and lower rows.
    unsigned char* const shared_ds = f.ds_tile(n) + (query_boxes == 2 ? 0 : n / 2 % 2 * 64 * 128);
    store_transposed<keys>(shared_ds + (query_boxes == 2 ? half * keys * 128 : 0), ds, 0, warp, lane);
    async_proxy_fence();
    issue_weighted_rows<T, queries, kHead>(dv, weights, dout);
    named_sync(2 + half, 128);
    float dq[32];
    const int part = query_boxes == 2 ? half : 0;
    issue_query_gradient<T, keys, query_boxes, boxes, 64>(dq, shared_ds, f.k_tile(), part);
    issue_weighted_rows<T, queries, kHead>(dk, ds, q);
    wgmma_wait<1>();
    keep_in_registers(dv);
    keep_in_registers(dq);
    add_query_gradient(sums, dq, part, thread);
    if constexpr (boxes == 2) {
      issue_query_gradient<T, keys, query_boxes, boxes, 64>(dq, shared_ds, f.k_tile(), 1);
      wgmma_wait<0>();
      keep_in_registers(dq);
      add_query_gradient(sums, dq, 1, thread);
    }
    wgmma_wait<0>();
    keep_in_registers(dk);
    release(n);
  }

  /// Packed: the rows below the sequence's last are another one's.
  __device__ void clear_tail(int n, int queries) const {
    if (queries >= kQueries || !f.p.call.cu_q.present()) return;
    wait_for_dout(n);
    clear_rows(f.q_tile(n % stages), queries, kQueries, boxes, thread, consumers);
    clear_rows(f.do_tile(n % stages), queries, kQueries, boxes, thread, consumers);
    named_sync(1, consumers);
  }

  /// Adds row r of the thread's two to the sums of a landmark; negative: it is none.
  __device__ void add_to_landmark(int sum_row, int r) const {
    if (sum_row < 0) return;
    float* to = f.p.landmarks.dk_dv + static_cast<std::int64_t>(sum_row) * 2 * kHead + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < kHead / 8; ++c) {
      reduce_add(to + 8 * c, dk[4 * c + 2 * r], dk[4 * c + 2 * r + 1]);
      reduce_add(to + kHead + 8 * c, dv[4 * c + 2 * r], dv[4 * c + 2 * r + 1]);
    }
  }
  __device__ int landmark_row(const Job& job, int key) const {
    return f.p.landmarks.row[key_place(f.p.sparse, job.sequence, job.kv_head, job.extent.k_start, key)] - 1;
  }

  /// Padded: keys past k_lengths get zeros. Packed: rows of other sequences are left alone.
  __device__ void store_tile(const Job& job) const {
    const int end = f.p.call.cu_q.present() ? job.extent.nk : f.p.call.nk;
    const int first = job.first_key + 64 * half + 16 * warp + lane / 4;
    const int key[2] = {first, first + 8};
    int sum_row[2] = {-1, -1};
    if (f.p.landmarks.row != nullptr) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (key[r] < end) sum_row[r] = landmark_row(job, key[r]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      add_to_landmark(sum_row[r], r);
      const bool mine = key[r] < end && sum_row[r] < 0;
      const std::int64_t at = job.extent.k_start + key[r];
      store_row(f.p.dk.at(job.sequence, job.kv_head, at), mine, dk, r, f.p.scale, lane);
      store_row(f.p.dv.at(job.sequence, job.kv_head, at), mine, dv, r, 1.0f, lane);
    }
  }
  /// `few`: both warpgroups have a part of the same keys' sums.
  __device__ void store_list(const Job& job, bool few) const {
    const int first = (few ? 0 : 64 * half) + 16 * warp + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int n = first + 8 * r;
      const bool exists = n < job.valid;
      add_to_landmark(exists ? landmark_row(job, f.names()[n]) : -1, r);
      if (f.p.landmarks.dlambda == nullptr) continue;
      float sum = dlambda[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (exists && lane % 4 == 0) atomicAdd(f.p.landmarks.dlambda + job.first_entry + n, sum);
    }
  }
};

}  // namespace dsalt::cuda::hopper
