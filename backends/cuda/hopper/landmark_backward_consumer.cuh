// The warpgroups that compute in the landmark backward kernel (landmark_backward.cuh).
#pragma once

#include "../mma.cuh"
#include "backward_fragments.cuh"
#include "landmark_backward_jobs.cuh"
#include "landmark_sums.cuh"
#include "sparse_backward_scores.cuh"

namespace dsalt::cuda::hopper {

template <class F>
struct LandmarkBackwardConsumer : SparseBackwardScores<F> {
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
  static constexpr int queries = 64;  // of a step: box `half` of a tile, or a whole tile

  int thread, half, warp;
  float dk[kHead / 2], dv[kHead / 2];

  __device__ LandmarkBackwardConsumer(const F& backward, int number)
      : Scores{backward, number % 32, {0, 0}}, thread(number), half(number / 128), warp(number / 32 % 4) {}

  __device__ Step wait_for_step(int n) const {
    barrier_wait(&f.barriers.q_full[n % stages], n / stages % 2);
    return f.step_of(n);
  }
  __device__ void wait_for_dout(int n) const { barrier_wait(&f.barriers.do_full[n % stages], n / stages % 2); }
  __device__ void release(int n) const { release_by_warp(&f.barriers.empty[n % stages], lane); }
  __device__ void sync_warpgroup() const { named_sync(2 + half, 128); }

  __device__ __forceinline__ void run() {
    int n = 0;
    for (int j = 0; wait_for_step(n).tile >= 0; ++j) {
      const Job& job = f.job(j);
#pragma unroll
      for (int i = 0; i < kHead / 2; ++i) dk[i] = dv[i] = 0;
      dlambda[0] = dlambda[1] = 0;
      gather(job);
      for (;; ++n) {
        const Step now = wait_for_step(n);
        if (now.tile < 0) break;
        const int row0 = now.tile * kQueries;
        if (query_boxes == 1 && now.tile % 2 != half) {
          release(n);  // the other warpgroup's
        } else if (!f.p.sparse.bidirectional && row0 >= job.first_query && row0 + kQueries <= job.last_query) {
          step<Kind::past_landmarks>(job, n, now);
        } else {
          step<Kind::landmarks>(job, n, now);
        }
      }
      release(n++);
      store(job);
    }
  }

  /// Brings the job's landmarks: names, keys and values, as tiles like those that TMA writes.
  __device__ void gather(const Job& job) const {
    named_sync(1, consumers);  // nobody is at the job before
    const AttentionCall<T>& call = f.p.sparse;
    if (thread < keys) {
      const bool exists = thread < job.valid;
      f.names()[thread] = exists ? job.index[thread] : no_key;
      const float weight = exists ? call.log_weight(job.sequence, job.row_head, job.list, job.list_slot[thread]) : 0.0f;
      f.biases()[thread] = landmark_bias(weight, f.p.inverse_scale);
    }
    const int kv_head = call.kv_head_of_row_head(job.row_head), sequence = call.packed ? 0 : job.sequence;
    const T *k = call.k.at(sequence, kv_head, job.extent.k_start),
            *v = call.v.at(sequence, kv_head, job.extent.k_start);
    constexpr int pieces = kHead / 8;  // of 16 bytes
    const int piece = thread % pieces, box = piece / 8, inside = piece % 8;
    for (int n = thread / pieces; n < keys; n += consumers / pieces) {
      const int key = n < job.valid ? job.index[n] : 0, bytes = n < job.valid ? 16 : 0;
      const int at = (box * keys + n) * 128 + (inside ^ n % 8) * 16;
      copy_async_16(f.k_tile() + at, k + key * call.k.row + piece * 8, bytes);
      copy_async_16(f.v_tile() + at, v + key * call.v.row + piece * 8, bytes);
    }
    copy_async_commit();
    copy_async_wait<0>();
    async_proxy_fence();
    named_sync(1, consumers);
  }

  /// (Inlined by force, like what calls it: ptxas serialises the products of a kernel that calls functions while some
  /// are under way.)
  template <Kind kind>
  __device__ __forceinline__ void step(const Job& job, int n, const Step& now) {
    const int stage = n % stages, column0 = query_boxes == 2 ? queries * half : 0, row0 = now.tile * kQueries,
              valid = job.extent.nq - row0 - column0;
    const std::int64_t slot = f.slot(job, now.tile);
    unsigned char *const q = f.q_tile(stage) + column0 * 128, *const dout = f.do_tile(stage) + column0 * 128;
    float s[queries / 2], dp[queries / 2];
    std::uint32_t weights[queries / 16][4], ds[queries / 16][4];

    if (valid < queries && f.p.call.cu_q.present()) {  // the rows below the sequence's last are another one's
      wait_for_dout(n);
      clear_rows(q, max(valid, 0), queries, boxes, thread % 128, 128);
      clear_rows(dout, max(valid, 0), queries, boxes, thread % 128, 128);
      sync_warpgroup();
    }
    issue_k_major<T, kHead, queries, keys, kQueries>(s, f.k_tile(), q);
    wait_for_dout(n);
    issue_k_major<T, kHead, queries, keys, kQueries>(dp, f.v_tile(), dout);

    const Queries& rows = f.query_rows(stage);
    float* const delta = f.delta(now.place);
    if (now.first) find_delta(delta + column0, rows, column0, dout, f.out_tile(stage) + column0 * 128);
    sync_warpgroup();  // delta is there; nobody reads the dS of the step before
    const Keys mine = this->template keys_of<kind>(job, 16 * warp + lane / 4);
    wgmma_wait<1>();
    keep_in_registers(s);
    this->template weigh<kind>(s, job, mine, rows, column0, row0);
    wgmma_wait<0>();
    keep_in_registers(dp);
    this->template differentiate<kind>(s, dp, weights, ds, mine, rows, delta, column0, 0);

    store_transposed<keys>(f.ds_tile(half), ds, 0, warp, lane);
    async_proxy_fence();
    issue_weighted_rows<T, queries, kHead>(dv, weights, dout);
    sync_warpgroup();
    float* const sums = f.p.slots.dq + slot * (kQueries * kHead);
    float dq[32];
    const int part = query_boxes == 2 ? half : 0;
    issue_query_gradient<T, keys, 1, boxes>(dq, f.ds_tile(half), f.k_tile(), 0);
    issue_weighted_rows<T, queries, kHead>(dk, ds, q);
    wgmma_wait<1>();
    keep_in_registers(dv);
    keep_in_registers(dq);
    put_query_gradient(sums, dq, part, now.first);
    if constexpr (boxes == 2) {
      issue_query_gradient<T, keys, 1, boxes>(dq, f.ds_tile(half), f.k_tile(), 1);
      wgmma_wait<0>();
      keep_in_registers(dq);
      put_query_gradient(sums, dq, 1, now.first);
    }
    wgmma_wait<0>();
    keep_in_registers(dk);
    if (now.first && thread % 128 < queries)  // not before: the fence would wait for it
      f.rows_of_slot(slot)->delta[column0 + thread % 128] = delta[column0 + thread % 128];
    release(n);
  }

  __device__ void put_query_gradient(float* sums, const float (&dq)[32], int part, bool first) const {
    first ? store_query_gradient(sums, dq, part, thread) : add_query_gradient(sums, dq, part, thread);
  }

  /// delta - dlse of the warpgroup's 64 rows. Sixteen rows a warp, two lanes each.
  __device__ __forceinline__ void find_delta(float* to, const Queries& rows, int column0, const unsigned char* dout,
                                             const unsigned char* out) const {
    constexpr int pieces = kHead / 16;  // of 16 bytes, of each lane
    const int row = 16 * warp + lane % 16, first = lane / 16 * pieces;
    int at = first / 8 * (kQueries * 128) + row * 128, swizzle = (first ^ row) % 8 * 16;
    asm volatile("" : "+r"(at), "+r"(swizzle));  // or addresses leave the loop, to be spilled
    float sum = 0;
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
      const int piece = at + (16 * i ^ swizzle);
      const uint4 x = *reinterpret_cast<const uint4*>(dout + piece), y = *reinterpret_cast<const uint4*>(out + piece);
      const T *a = reinterpret_cast<const T*>(&x), *b = reinterpret_cast<const T*>(&y);
      float part[2] = {0, 0};
#pragma unroll
      for (int e = 0; e < 8; ++e) part[e % 2] += widen(a[e]) * widen(b[e]);
      sum += part[0] + part[1];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    if (lane >= 16) return;
    to[row] = rows.lse[column0 + row] == INFINITY ? 0 : sum + rows.delta[column0 + row];
  }

  __device__ void store(const Job& job) const {
    const int first = 16 * warp + lane / 4, kv_head = f.p.sparse.kv_head_of_row_head(job.row_head);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int n = first + 8 * r;
      const bool exists = n < job.valid;
      const std::int64_t place =
          exists ? key_place(f.p.sparse, job.sequence, kv_head, job.extent.k_start, f.names()[n]) : 0;
      add_to_landmark(f.p.landmarks, exists ? f.p.landmarks.row[place] - 1 : -1, dk, dv, r, lane);
      if (f.p.landmarks.dlambda == nullptr) continue;
      float sum = dlambda[r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (exists && lane % 4 == 0) atomicAdd(f.p.landmarks.dlambda + job.first_entry + n, sum);
    }
  }
};

}  // namespace dsalt::cuda::hopper
