// A warpgroup of the sparse forward kernel (sparse_forward.cuh): scores, running softmax and sums of 64 query rows.
#pragma once

#include "dense_call.cuh"
#include "fragments.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

/// One warpgroup: 64 query rows of every tile. Each thread has two rows, `row` of the tile and 8 below it.
template <class F>
struct SparseForwardConsumer {
  using T = typename F::Element;
  using Plan = typename F::Plan;
  static constexpr int keys = F::keys, kHead = F::head, groups = F::groups, stages = F::stages, boxes = F::boxes;

  const F& f;
  int thread, group, lane, row;
  unsigned tile_count = 0, key_count = 0, block_count = 0;  // keys and values arrive in step
  float s[keys / 2], o[kHead / 2];
  std::uint32_t weights[keys / 16][4];
  float landmark_s[landmarks_of_block / 2];
  std::uint32_t landmark_weights[landmarks_of_block / 16][4];
  RunningSoftmax softmax;
  RowMask mask[2];
  const RowEdge* edges = nullptr;

  __device__ SparseForwardConsumer(const F& forward, int number)
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
    issue_k_major<T, kHead, landmarks_of_block, 64, landmarks_of_block>(landmark_s, f.q_tile(group), f.landmark_keys());
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
    if constexpr (F::soft) edges = plan.edge + row;
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
    unsigned char* lines = f.shared + F::store_at + thread / 32 * F::store_bytes;
    const int row0 = w.row0 + row - lane / 4;  // the warp's first
    const std::int64_t at = w.extent.q_start + row0;
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = softmax.sum[r];
      inverse[r] = sum == 0 ? 0 : reciprocal_fast(sum);  // no key: the row is 0
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
    clear_rows(f.v_tile(key_count), valid, keys, boxes, thread, F::consumers);
    named_sync(8, F::consumers);
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
      if constexpr (F::soft) add_soft_edge(s, tile * keys, edges, lane, f.p.sparse, f.p.inverse_scale);
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

}  // namespace dsalt::cuda::hopper
