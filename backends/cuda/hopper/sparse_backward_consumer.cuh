// The warpgroups that compute in the sparse backward kernel (sparse_backward.cuh has the equations). Each of the two
// takes 64 of the job's keys. dQ needs the dS of both: it is multiplied in the step after, so that they may be most of
// a step apart.
#pragma once

#include "backward_fragments.cuh"
#include "landmark_sums.cuh"
#include "sparse_backward_jobs.cuh"
#include "sparse_backward_scores.cuh"

namespace dsalt::cuda::hopper {

template <class F>
struct SparseBackwardConsumer : SparseBackwardScores<F> {
  using Scores = SparseBackwardScores<F>;
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
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) dk[i] = dv[i] = 0;
      run_job(f.job(j), n);
    }
  }

  __device__ __forceinline__ void run_job(const Job& job, int& n) {
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
    // Asked for now: they come behind the additions to dq.
    const int landmark_rows[2] = {landmark_row(job, 0), landmark_row(job, 1)};
    if (pending) finish_pending();
    release(n++);
    store(job, landmark_rows);
  }

  __device__ void wait_for_keys(const Job& job) const {
    barrier_wait(&f.barriers.keys_full, job.keys_parity);
    if (job.valid >= keys || !f.p.call.shares_tails()) return;  // keys past the last are somebody else's
    clear_rows(f.k_tile(), job.valid, keys, boxes, thread, consumers);
    clear_rows(f.v_tile(), job.valid, keys, boxes, thread, consumers);
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
    this->template differentiate<kind>(s, dp, weights, ds, mine, rows, rows.delta, 0, slot * kQueries);

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

  /// Packed: the rows below the sequence's last are another one's.
  __device__ void clear_tail(int n, int queries) const {
    if (queries >= kQueries || !f.p.call.cu_q.present()) return;
    wait_for_dout(n);
    clear_rows(f.q_tile(n % stages), queries, kQueries, boxes, thread, consumers);
    clear_rows(f.do_tile(n % stages), queries, kQueries, boxes, thread, consumers);
    named_sync(1, consumers);
  }

  /// Row r of the thread's two.
  __device__ int key_of(const Job& job, int r) const {
    return job.first_key + 64 * half + 16 * warp + lane / 4 + 8 * r;
  }
  /// 1 + its row of landmarks' sums, or 0.
  __device__ int landmark_row(const Job& job, int r) const {
    if (f.p.landmarks.row == nullptr || key_of(job, r) >= job.keys_end) return 0;
    return f.p.landmarks.row[key_place(f.p.sparse, job.sequence, job.kv_head, job.extent.k_start, key_of(job, r))];
  }

  /// Padded: keys past k_lengths get zeros. Packed: rows of other sequences are left alone.
  __device__ void store(const Job& job, const int (&landmark_rows)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = key_of(job, r), sum_row = landmark_rows[r] - 1;
      add_to_landmark(f.p.landmarks, sum_row, dk, dv, r, lane);
      const bool mine = key < job.keys_end && sum_row < 0;
      const std::int64_t at = job.extent.k_start + key;
      store_row(f.p.dk.at(job.sequence, job.kv_head, at), mine, dk, r, f.p.scale, lane);
      store_row(f.p.dv.at(job.sequence, job.kv_head, at), mine, dv, r, 1.0f, lane);
    }
  }
};

}  // namespace dsalt::cuda::hopper
