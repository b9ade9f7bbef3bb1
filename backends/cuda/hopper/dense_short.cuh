// The dense forward kernel for short queries, where a tile of query rows has too little work for a multiprocessor. The
// mathematics is dense_forward.cuh's; the keys of one tile of 64 query rows are shared out:
//
//   kSplits warpgroups of a block   each takes every kSplits-th key tile
//   blocks of a cluster             each takes a contiguous part of the key tiles
//
// Partial results are put together in shared memory, first the block's, then the cluster's, in a fixed order.
#pragma once

#include "cluster.cuh"
#include "dense_forward.cuh"

namespace dsalt::cuda::hopper {

template <class T, int kHead, int kSplits, bool kCausal>
struct DenseShort {
  using Parameters = ForwardParameters<T>;
  static constexpr int most_parts = 8;  // blocks of a cluster
  static constexpr int rows = 64, keys = 64, boxes = kHead / 64, consumers = 128 * kSplits;
  static constexpr int stages = kHead == 64 ? 12 : 6;
  static constexpr int threads = consumers + 32, blocks_per_multiprocessor = 1;
  static constexpr std::uint32_t q_bytes = rows * kHead * 2, tile_bytes = keys * kHead * 2;

  struct Barriers {
    Barrier q_full, k_full[stages], v_full[stages], empty[stages], tail_cleared;
  };
  struct Statistics {
    float maximum, sum;
  };
  struct Partial {
    const Statistics* statistics;
    const float* values;
  };
  static constexpr std::uint32_t keys_at = q_bytes, statistics_at = keys_at + 2 * stages * tile_bytes,
                                 barriers_at = statistics_at + rows * (kSplits + 1) * 8;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);
  static_assert(kSplits * rows * kHead * 4 <= 2 * stages * tile_bytes, "partial results take the place of keys");

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ DenseShort(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* k_tile(int stage) const { return shared + keys_at + stage * tile_bytes; }
  __device__ unsigned char* v_tile(int stage) const { return k_tile(stages + stage); }
  __device__ float* partial_rows(int split) const {  // [rows, kHead] of each split
    return reinterpret_cast<float*>(shared + keys_at) + split * rows * kHead;
  }
  __device__ Statistics* statistics(int split) const {
    return reinterpret_cast<Statistics*>(shared + statistics_at) + split * rows;
  }

  __device__ Statistics* block_statistics() const { return statistics(kSplits); }

  __device__ void init_barriers() const {
    barrier_init(&barriers.q_full, 1);
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.k_full[stage], 1);
      barrier_init(&barriers.v_full[stage], 1);
      barrier_init(&barriers.empty[stage], 4 * arrivals_of_warp());  // of the one warpgroup that reads it
    }
    barrier_init(&barriers.tail_cleared, 4 * arrivals_of_warp());
  }

  /// This block's part of a tile of query rows: key tiles [first, last).
  struct Part {
    ForwardWork work;
    int first = 0, last = 0;
  };
  __device__ Part part_of_block() const {
    const int parts = static_cast<int>(gridDim.x) / p.work, part = static_cast<int>(blockIdx.x) % parts;
    Part mine{forward_work<kCausal>(p.call, static_cast<int>(blockIdx.x) / parts, rows, keys)};
    const int each = (mine.work.tiles + parts - 1) / parts;
    mine.first = min(mine.work.tiles, part * each);
    mine.last = min(mine.work.tiles, mine.first + each);
    return mine;
  }

  __device__ void produce(const Part& part) {
    const ForwardWork& w = part.work;
    const int kv_head = p.call.by_group.quotient(w.tile.head), sequence = p.call.cu_q.present() ? 0 : w.tile.sequence;
    const auto load = [&](const CUtensorMap& map, unsigned char* to, Barrier* full, int row, int head) {
      barrier_expect(full, tile_bytes);
      for (int box = 0; box < boxes; ++box) tma_load(to + box * 64 * 128, &map, full, 64 * box, row, head, sequence);
    };
    load(p.q, shared, &barriers.q_full, w.extent.q_start + w.row0, w.tile.head);
    int number = 0;
    for (int tile = part.last - 1; tile >= part.first; --tile, ++number) {
      const int stage = number % stages, row = w.extent.k_start + tile * keys;
      barrier_wait(&barriers.empty[stage], number / stages % 2 ^ 1);
      load(p.k, k_tile(stage), &barriers.k_full[stage], row, kv_head);
      load(p.v, v_tile(stage), &barriers.v_full[stage], row, kv_head);
    }
  }

  struct Consumer {
    DenseShort& f;
    int thread, split, lane, row;  // row: of the tile, and 8 below it
    float o[kHead / 2];
    PairedSoftmax softmax;

    __device__ Consumer(DenseShort& forward, int number)
        : f(forward),
          thread(number % 128),
          split(number / 128),
          lane(number % 32),
          row(16 * (number / 32 % 4) + number % 32 / 4) {}

    __device__ void release(Barrier* barrier) const { release_by_warp(barrier, lane); }

    __device__ void run(const Part& part) {
      const ForwardWork& w = part.work;
#pragma unroll
      for (int n = 0; n < kHead / 2; ++n) o[n] = 0;
      barrier_wait(&f.barriers.q_full, 0);
      int number = split, tile = part.last - 1 - split;  // number: of the tile, in the order of copies
      if (tile < part.first) return;
      const int limit[2] = {w.limit<kCausal>(row), w.limit<kCausal>(row + 8)}, unmasked = w.limit<kCausal>(0);
      float s[keys / 2], factor[2];
      std::uint32_t weights[keys / 16][4];
      const auto mask = [&] {
        if ((tile + 1) * keys > unmasked) mask_scores(s, tile * keys, unmasked, limit, lane);
      };
      clear_tail(w, tile, number);
      issue_scores(s, number);
      wgmma_wait<0>();
      keep_in_registers(s);
      mask();
      softmax.start(s, f.p.call.scale_log2);
      round_weights<T>(weights, s);
      while ((tile -= kSplits) >= part.first) {  // scores of this tile and values of the one before together
        issue_scores(s, number + kSplits);
        issue_values(weights, number);
        wgmma_wait<1>();
        keep_in_registers(s);
        mask();
        const bool scaled = softmax.update(s, f.p.call.scale_log2, factor);
        wgmma_wait<0>();
        keep_in_registers(o);
        release(&f.barriers.empty[number % stages]);
        number += kSplits;
        round_weights<T>(weights, s);
        if (!scaled) continue;
#pragma unroll
        for (int n = 0; n < kHead / 2; ++n) o[n] *= factor[n / 2 % 2];
      }
      issue_values(weights, number);
      wgmma_wait<0>();
      keep_in_registers(o);
      softmax.finish();
    }

    __device__ void issue_scores(float (&s)[keys / 2], int number) const {
      const int stage = number % stages;
      barrier_wait(&f.barriers.k_full[stage], number / stages % 2);
      issue_k_major<T, kHead, keys, rows, keys>(s, f.shared, f.k_tile(stage));
    }
    __device__ void issue_values(const std::uint32_t (&weights)[keys / 16][4], int number) {
      const int stage = number % stages;
      barrier_wait(&f.barriers.v_full[stage], number / stages % 2);
      issue_weighted_rows<T, keys, kHead>(o, weights, f.v_tile(stage));
    }
    /// Values past the last key are somebody else's. Only the warpgroup that has the last tile comes here with one,
    /// once. It waits for its own warps at an mbarrier, since racecheck loses count of warps that pass a barrier by
    /// number which others of the block do not (docs/verification.md, "Races").
    __device__ void clear_tail(const ForwardWork& w, int tile, int number) const {
      const int valid = w.extent.nk - tile * keys, stage = number % stages;
      if (valid >= keys || !f.p.call.shares_tails()) return;
      barrier_wait(&f.barriers.v_full[stage], number / stages % 2);
      clear_rows(f.v_tile(stage), valid, keys, boxes, thread, 128);
      release(&f.barriers.tail_cleared);
      barrier_wait(&f.barriers.tail_cleared, 0);
    }

    /// This warpgroup's partial result, in the place of keys: only when all of them have been read.
    __device__ void deposit() const {
      float* to = f.partial_rows(split);
#pragma unroll
      for (int n = 0; n < kHead / 2; n += 2)
        *reinterpret_cast<float2*>(to + (row + 8 * (n / 2 % 2)) * kHead + n / 4 * 8 + lane % 4 * 2) =
            float2{o[n], o[n + 1]};
      if (lane % 4 == 0)
        for (int r = 0; r < 2; ++r) f.statistics(split)[row + 8 * r] = {softmax.maximum[r], softmax.sum[r]};
    }
  };

  /// Eight columns of one row from several partial results.
  struct Combined {
    Statistics statistics{-INFINITY, 0};
    float value[8] = {};
  };
  /// part(n) has the n-th partial result of the row: where its statistics and its eight columns are.
  template <class Part>
  __device__ Combined combine(int count, Part&& part) const {
    constexpr int at_once = 4;  // loads that are on their way together
    const float scale = p.call.scale_log2;
    Combined result;
    for (int first = 0; first < count; first += at_once) {
      Statistics each[at_once];
      float4 low[at_once], high[at_once];
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        const auto [statistics, values] = part(min(first + n, count - 1));
        each[n] = *statistics;
        low[n] = reinterpret_cast<const float4*>(values)[0];
        high[n] = reinterpret_cast<const float4*>(values)[1];
      }
      float top = result.statistics.maximum;
#pragma unroll
      for (int n = 0; n < at_once; ++n) top = fmaxf(top, each[n].maximum);
      const float offset = softmax_offset(top, scale);
      const float factor = softmax_factor(result.statistics.maximum, scale, offset);
      result.statistics.maximum = top;
      result.statistics.sum *= factor;
#pragma unroll
      for (int e = 0; e < 8; ++e) result.value[e] *= factor;
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        const float weight = first + n < count ? softmax_factor(each[n].maximum, scale, offset) : 0;
        result.statistics.sum += weight * each[n].sum;
        const float from[8] = {low[n].x, low[n].y, low[n].z, low[n].w, high[n].x, high[n].y, high[n].z, high[n].w};
#pragma unroll
        for (int e = 0; e < 8; ++e) result.value[e] += weight * from[e];
      }
    }
    return result;
  }

  static constexpr int lanes = kHead / 8;  // threads of a row

  /// The partial results of this block become one, in place of the first.
  __device__ void combine_splits(int thread) const {
    for (int n = thread; n < rows * lanes; n += consumers) {
      const int row = n / lanes, column = n % lanes * 8;
      const Combined c = combine(kSplits, [&](int split) {
        return Partial{statistics(split) + row, partial_rows(split) + row * kHead + column};
      });
      // Only this thread reads these columns; the statistics are read by the whole row, so they go elsewhere.
      float4* to = reinterpret_cast<float4*>(partial_rows(0) + row * kHead + column);
      to[0] = float4{c.value[0], c.value[1], c.value[2], c.value[3]};
      to[1] = float4{c.value[4], c.value[5], c.value[6], c.value[7]};
      if (column == 0) block_statistics()[row] = c.statistics;
    }
  }

  /// The results of the cluster's blocks become rows of out and lse: each block finishes some of them.
  __device__ void store_combined(const ForwardWork& w, int thread) const {
    const int parts = blocks_of_cluster(), part = rank_in_cluster();
    const int each = (rows + parts - 1) / parts;
    for (int n = thread; n < each * lanes; n += consumers) {
      const int row = part * each + n / lanes, column = n % lanes * 8;
      if (row >= rows || w.row0 + row >= w.extent.nq) continue;
      const Combined c = combine(parts, [&](int other) {
        return Partial{in_block_of_cluster(block_statistics(), other) + row,
                       in_block_of_cluster(partial_rows(0), other) + row * kHead + column};
      });
      const float inverse = c.statistics.sum == 0 ? 0 : reciprocal_fast(c.statistics.sum);
      std::uint32_t packed[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) packed[e] = narrow_pair<T>(c.value[2 * e] * inverse, c.value[2 * e + 1] * inverse);
      const std::int64_t at = w.extent.q_start + w.row0 + row;
      *reinterpret_cast<uint4*>(p.out.at(w.tile.sequence, w.tile.head, at) + column) =
          uint4{packed[0], packed[1], packed[2], packed[3]};
      if (p.lse.data != nullptr && column == 0)
        *p.lse.at(w.tile.sequence, w.tile.head, at) =
            log_sum(c.statistics.maximum, c.statistics.sum, p.call.scale_log2);
    }
  }

  __device__ void run(int thread) {
    const Part part = part_of_block();
    const bool exists = part.work.exists(), computes = thread < consumers && exists;
    Consumer consumer(*this, thread);
    if (computes) consumer.run(part);
    if (thread == consumers && exists) produce(part);
    __syncthreads();
    if (computes) consumer.deposit();
    __syncthreads();
    if (computes) combine_splits(thread);
    sync_cluster();
    if (computes) store_combined(part.work, thread);
    sync_cluster();  // nobody leaves while others read its part
  }
};

}  // namespace dsalt::cuda::hopper
