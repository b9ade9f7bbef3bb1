// A warpgroup of the sparse forward kernel (sparse_forward.cuh): scores, running softmax and sums of 64 query rows.
#pragma once

#include "dense_call.cuh"
#include "fragments.cuh"
#include "softmax.cuh"
#include "sparse_masks.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace dsalt::cuda::hopper {

/// One warpgroup: 64 query rows of every tile. Each thread has two rows, `row` of the tile and 8 below it.
template <class F>
struct SparseForwardConsumer {
  using T = typename F::Element;
  using Plan = typename F::Plan;
  static constexpr int keys = F::keys, kHead = F::head, groups = F::groups, boxes = F::boxes;
  static_assert(keys == landmarks_of_block);  // boxes of values are as long

  /// Where something is in shared memory that has `count` places there, and the parity of its barriers.
  template <int count>
  struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ Ring next() const { return stage + 1 < count ? Ring{stage + 1, parity} : Ring{0, parity ^ 1}; }
  };
  using Place = Ring<F::stages>;

  /// The compiler keeps what is the same for all lanes in other registers.
  static __device__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

  const F& f;
  int thread, group, lane, row;
  Ring<F::q_stages> q_place;
  Ring<F::landmark_stages> block_place;
  Place place;            // of the next keys and values, which arrive in step
  std::uint64_t queries;  // their descriptor
  float o[kHead / 2];
  PairedSoftmax softmax;
  RowMask mask[2];
  const RowEdge* edges = nullptr;

  __device__ SparseForwardConsumer(const F& forward, int number)
      : f(forward),
        thread(number),
        group(uniform(number / 128)),
        lane(number % 32),
        row(64 * (number / 128) + 16 * (number / 32 % 4) + number % 32 / 4) {}

  __device__ void release(Barrier* barrier) const { release_by_warp(barrier, lane); }
  static __device__ std::uint64_t values_at(const unsigned char* tile) { return uniform_descriptor(tile, keys * 128); }

  /// Scores of a tile of keys.
  __device__ void issue_scores(float (&s)[keys / 2], Place at) {
    const std::uint64_t k = uniform_descriptor(f.k_tile(at.stage));
    barrier_wait(&f.barriers.k_full[at.stage], at.parity);
    issue_new_k_major<T, kHead, keys, 64, keys>(s, queries, k);
  }
  __device__ void issue_values(const std::uint32_t (&weights)[keys / 16][4], Place at, std::uint64_t v) {
    barrier_wait(&f.barriers.v_full[at.stage], at.parity);
    issue_weighted_rows<T, keys, kHead>(o, weights, v);
  }
  __device__ void scale_sums(const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < kHead / 2; ++n) o[n] *= factor[n / 2 % 2];
  }

  __device__ void run(const Plan& plan) {
    softmax = PairedSoftmax{};
#pragma unroll
    for (int n = 0; n < kHead / 2; ++n) o[n] = 0;
    barrier_wait(&f.barriers.q_full[q_place.stage][group], q_place.parity);
    queries = uniform_descriptor(f.q_tile(q_place.stage, group));
    mask[0] = plan.row[row];
    mask[1] = plan.row[row + 8];
    if constexpr (F::soft) edges = plan.edge + row;
    const int first = uniform(plan.first_tile), last = uniform(plan.last_tile), blocks = uniform(plan.landmark_blocks);
    clear_tail(plan.work.extent.nk, last);
    const RowExtent extent{uniform(plan.extent[group].begin), uniform(plan.extent[group].end),
                           uniform(plan.extent[group].whole_begin), uniform(plan.extent[group].whole_end)};
    // The key tiles [first, last) are there; these 64 rows need [begin, end).
    const bool any = extent.begin < extent.end;
    const int end = any ? (extent.end + keys - 1) / keys : first, begin = any ? extent.begin / keys : first;
    const int whole_begin = extent.whole_begin, whole_end = extent.whole_end;
    for (int n = 0; n < blocks; ++n) landmarks();
    int tile = last - 1;
    for (; tile >= end; --tile) skip();
    if (any) {
      float s[keys / 2];
      std::uint32_t weights[keys / 16][4];
      first_tile(tile, s, weights);
      for (--tile; tile >= begin; --tile) {
        if (tile * keys >= whole_begin && (tile + 1) * keys <= whole_end)
          step<false>(tile, s, weights);
        else
          step<true>(tile, s, weights);
      }
      release(&f.barriers.q_empty[q_place.stage][group]);
      issue_values(weights, place, values_at(f.v_tile(place.stage)));
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.v_empty[place.stage]);
      place = place.next();
    } else {
      release(&f.barriers.q_empty[q_place.stage][group]);
    }
    q_place = q_place.next();
    softmax.finish();
    store(plan.work);
    for (; tile >= first; --tile) skip();
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
    barrier_wait(&f.barriers.v_full[place.stage], place.parity);
    clear_rows(f.v_tile(place.stage), valid, keys, boxes, thread, F::consumers);
    named_sync(8, F::consumers);
  }

  __device__ void landmarks() {
    barrier_wait(&f.barriers.landmarks_full[block_place.stage], block_place.parity);
    const int width = uniform(f.names(block_place.stage).width[group]);
    if (width > 32)
      first_landmarks<64>();
    else if (width > 0)
      first_landmarks<32>();
    release(&f.barriers.landmarks_empty[block_place.stage]);
    block_place = block_place.next();
  }
  /// The first `count` of a block.
  template <int count>
  __device__ void first_landmarks() {
    float s[count / 2], factor[2];
    std::uint32_t weights[count / 16][4];
    issue_new_k_major<T, kHead, count, 64, landmarks_of_block>(s, queries,
                                                               uniform_descriptor(f.landmark_keys(block_place.stage)));
    wgmma_wait<0>();
    keep_in_registers(s);
    mask_landmarks(s, f.names(block_place.stage), row, lane, f.p.sparse.weight.present());
    const bool scaled = softmax.update(s, f.p.call.scale_log2, factor);
    round_weights<T>(weights, s);
    if (scaled) scale_sums(factor);
    issue_weighted_rows<T, count, kHead>(o, weights, values_at(f.landmark_values(block_place.stage)));
    wgmma_wait<0>();
    keep_in_registers(o);
  }

  /// By the window and its soft edge.
  __device__ void mask_scores(float (&s)[keys / 2], int tile) const {
    mask_window(s, tile * keys, mask, lane);
    if constexpr (F::soft) add_soft_edge(s, tile * keys, edges, lane, f.p.sparse, f.p.inverse_scale);
  }
  __device__ void first_tile(int tile, float (&s)[keys / 2], std::uint32_t (&weights)[keys / 16][4]) {
    float factor[2];
    issue_scores(s, place);
    wgmma_wait<0>();
    keep_in_registers(s);
    release(&f.barriers.k_empty[place.stage]);
    mask_scores(s, tile);
    const bool scaled = softmax.update(s, f.p.call.scale_log2, factor);
    round_weights<T>(weights, s);
    if (scaled) scale_sums(factor);
  }
  /// A tile that only other warpgroups need. It may be handed back only once it is there: an arrival must not count
  /// for the tile before.
  __device__ void skip() {
    const auto [stage, parity] = place;
    barrier_wait(&f.barriers.k_full[stage], parity);
    release(&f.barriers.k_empty[stage]);
    barrier_wait(&f.barriers.v_full[stage], parity);
    release(&f.barriers.v_empty[stage]);
    place = place.next();
  }

  /// Scores of `tile` and values of the tile before it (in the order of execution) together.
  template <bool masked>
  __device__ void step(int tile, float (&s)[keys / 2], std::uint32_t (&weights)[keys / 16][4]) {
    const Place before = place, now = place.next();
    float factor[2];
    const std::uint64_t v = values_at(f.v_tile(before.stage));
    issue_scores(s, now);
    issue_values(weights, before, v);
    wgmma_wait<1>();
    keep_in_registers(s);
    release(&f.barriers.k_empty[now.stage]);
    if constexpr (masked) mask_scores(s, tile);
    bool scaled = false;
    if constexpr (kHead == 64) {  // D = 128 has no registers for scores beside weights
      float e[keys / 2];
      if (!softmax.update_if_usual(e, s, f.p.call.scale_log2)) {
        scaled = softmax.update(s, f.p.call.scale_log2, factor);
#pragma unroll
        for (int n = 0; n < keys / 2; ++n) e[n] = s[n];
      }
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.v_empty[before.stage]);
      round_weights<T>(weights, e);
    } else {
      scaled = softmax.update(s, f.p.call.scale_log2, factor);
      wgmma_wait<0>();
      keep_in_registers(o);
      release(&f.barriers.v_empty[before.stage]);
      round_weights<T>(weights, s);
    }
    place = now;
    if (scaled) scale_sums(factor);
  }
};

}  // namespace dsalt::cuda::hopper
