// The forward kernel for few queries of each sequence: decoding against a cache. docs/semantics.md, "Attention".
//
// Reading keys and values is all that such a call costs, so everything here serves to have many reads under way. Each
// warp of a block works alone on steps of 16 keys (decode_call.cuh), every fourth of the block's: it copies them to a
// ring of its own in shared memory (cp.async, row by row, wherever a row is; of a paged cache it has asked for the
// pages before) and multiplies with tensor cores (mma.cuh), rows of queries filled up to 16. Its softmax, sums and
// maxima stay in its registers until the end, when the block puts its warps together, and the parts of a tile, in a
// fixed order, where they are few the cluster that they form, else a second kernel.
#pragma once

#include "../dependent_launch.cuh"
#include "../mma.cuh"
#include "../vectors.cuh"
#include "cluster.cuh"
#include "decode_call.cuh"
#include "decode_landmarks.cuh"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

template <class T, int kHead, int kHalves, int kWarps, int kStages, bool kPaged>
struct Decode {
  using Parameters = DecodeParameters<T>;
  static constexpr int rows = 8 * kHalves, warps = kWarps, threads = 32 * warps;
  static constexpr int stages = kStages;
  // So many as their rings leave room for in shared memory.
  static constexpr int blocks_per_multiprocessor = (kHead == 128 ? 8 : kStages == 4 ? 12 : 16) / warps;
  static constexpr int pieces = kHead / 8;  // 16 bytes each
  static constexpr int step_bytes = decode_step * kHead * 2;
  static constexpr int ring_bytes = warps * stages * 2 * step_bytes;
  static_assert(ring_bytes >= (warps + 1) * rows * (kHead + 2) * 4, "partial sums take the place of keys");

  /// Shared memory: the rings, then the landmarks.
  using Landmarks = DecodeLandmarks<T, rows, threads, kPaged>;
  static std::size_t shared_bytes(int entries) { return ring_bytes + Landmarks::shared_bytes(entries); }

  const Parameters& p;
  unsigned char* shared;
  const int thread, warp, lane;
  DecodeTile tile;
  DecodeLists lists;
  int part = 0, window_begin = 0, window_end = 0, window_steps = 0, first_step = 0, last_step = 0;
  int steps_begin = 0;  // the first key of the first step
  RowMask mask[kHalves];
  RowEdge edge[kHalves];
  RowExtent extent;
  CachedRows<T> k, v;
  std::uint32_t q[kHead / 16][4];
  float o[kHead / 8][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

  __device__ Decode(const Parameters& parameters, unsigned char* memory)
      : p(parameters),
        shared(memory),
        thread(static_cast<int>(threadIdx.x)),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ Landmarks landmarks() const { return {p, shared + ring_bytes, thread, tile, lists}; }
  /// Of this warp: K, then V of a step.
  __device__ unsigned char* stage(int n) const { return shared + (warp * stages + n % stages) * 2 * step_bytes; }
  /// Piece c of row n of a step: rows of one piece lie in different banks.
  __device__ static int place(int n, int c) { return n * kHead * 2 + ((c & ~7) | ((c ^ n) & 7)) * 16; }

  /// Every warp finds out by itself what the rows admit: lane n asks for row n.
  __device__ void plan() {
    AttentionRow<T> row;
    const int n = lane % 16;
    const bool present = n < tile.rows;
    if (present) {
      row.query = tile.query(p, n);
      row.head = tile.head(p, n);
      row.fill(p.call, tile.s);
      extent.include(row);
    }
    if (warp == 0 && lane < rows)
      landmarks().rows()[lane] = {RowMask::of(row), present ? lists.list_of(p.call, row.query, row.head) : -1};
    extent.reduce();
    const RowMask own = RowMask::of(row);
    const RowEdge own_edge = RowEdge::of(row);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int from = lane / 4 + 8 * half;
      mask[half] = {__shfl_sync(0xffffffffu, own.begin, from), __shfl_sync(0xffffffffu, own.length, from),
                    __shfl_sync(0xffffffffu, own.newest, from)};
      edge[half] = {__shfl_sync(0xffffffffu, own_edge.edge, from), __shfl_sync(0xffffffffu, own_edge.position, from),
                    __shfl_sync(0xffffffffu, own_edge.window_floor, from),
                    __shfl_sync(0xffffffffu, own_edge.window_fraction, from)};
    }
    window_begin = extent.begin < extent.end ? extent.begin : 0;
    window_end = extent.begin < extent.end ? extent.end : 0;
    steps_begin = window_begin / decode_step * decode_step;
    window_steps = static_cast<int>(ceil_div(window_end - steps_begin, decode_step));
    const int steps = window_steps + static_cast<int>(ceil_div(lists.entries, decode_step));
    const int each = static_cast<int>(ceil_div(ceil_div(steps, p.parts), warps)) * warps;  // no warp waits for others
    first_step = static_cast<int>(min(static_cast<std::int64_t>(steps), static_cast<std::int64_t>(part) * each));
    last_step = min(steps, first_step + each);
  }

  /// The landmarks of this part.
  __device__ int first_entry() const { return max(0, first_step - window_steps) * decode_step; }
  __device__ int last_entry() const { return min(lists.entries, (last_step - window_steps) * decode_step); }

  __device__ void load_queries() {
    const int t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = lane / 4 + 8 * half;
      const bool present = half < kHalves && n < tile.rows;
      const T* row =
          p.call.q.at(tile.s.b, present ? tile.head(p, n) : 0, tile.s.q_start + (present ? tile.query(p, n) : 0));
#pragma unroll
      for (int c = 0; c < kHead / 16; ++c)
#pragma unroll
        for (int high = 0; high < 2; ++high)
          q[c][2 * high + half] =
              present ? *reinterpret_cast<const std::uint32_t*>(row + 16 * c + 8 * high + 2 * t) : 0;
    }
  }

  /// Of a paged cache: where the rows of a step of the window are, that of its first row or, where its keys may lie in
  /// several pages, of row lane % 16. Asks memory, so that it is called well before copy().
  __device__ CachePlace find(int step) const {
    if (!kPaged || step >= min(last_step, window_steps)) return {};
    const int first = steps_begin + step * decode_step, key = first + (p.pages.whole_steps ? 0 : lane % decode_step);
    return p.pages.whole_steps || in_window(key) ? p.pages.place(tile.s.b, key) : CachePlace{};
  }
  __device__ bool in_window(int key) const { return key >= window_begin && key < window_end; }

  /// Starts the copies of the warp's step number n, which is step `step` of the tile; `places` is find(step).
  __device__ void copy(int n, int step, const CachePlace& places) const {
    const int first_key = steps_begin + step * decode_step, first_entry = (step - window_steps) * decode_step;
    if constexpr (!kPaged) {
      copy_rows(n, [&](int row) {
        if (step < window_steps) return in_window(first_key + row) ? first_key + row : -1;
        const int entry = first_entry + row;
        return landmarks().admitted_by(entry) != 0 ? landmarks().keys()[entry] : -1;
      });
    } else if (step >= window_steps) {
      copy_rows(n, [&](int row) {
        const int entry = first_entry + row;
        if (landmarks().admitted_by(entry) == 0) return CachePlace{};
        return CachePlace{landmarks().pages()[entry], p.pages.row_of(landmarks().keys()[entry])};
      });
    } else if (p.pages.whole_steps) {
      copy_rows(n, [&](int row) {
        return in_window(first_key + row) ? CachePlace{places.page, places.row + row} : CachePlace{};
      });
    } else {
      copy_rows(n, [&](int row) {
        return CachePlace{__shfl_sync(0xffffffffu, places.page, row), __shfl_sync(0xffffffffu, places.row, row)};
      });
    }
  }
  /// Row n of a step comes from from(n), a key or the place of one.
  template <class From>
  __device__ void copy_rows(int n, From&& from) const {
    unsigned char* const to_k = stage(n);
    unsigned char* const to_v = to_k + step_bytes;
    constexpr int rows_at_once = 32 / pieces;
    const int piece = lane % pieces;
#pragma unroll
    for (int i = 0; i < decode_step / rows_at_once; ++i) {
      const int row = lane / pieces + i * rows_at_once, at = place(row, piece);
      const auto source = from(row);
      if (is_lost(source)) {
        *reinterpret_cast<uint4*>(to_k + at) = *reinterpret_cast<uint4*>(to_v + at) = uint4{~0u, ~0u, ~0u, ~0u};
        continue;
      }
      const bool present = exists(source);
      copy_async_16(to_k + at, (present ? k(source) : k.base) + piece * 8, present ? 16 : 0);
      copy_async_16(to_v + at, (present ? v(source) : v.base) + piece * 8, present ? 16 : 0);
    }
  }
  __device__ static bool exists(int key) { return key >= 0; }
  __device__ static bool exists(const CachePlace& from) { return from.row >= 0; }
  /// In a page that does not exist: NaN.
  __device__ static bool is_lost(int) { return false; }
  __device__ bool is_lost(const CachePlace& from) const { return exists(from) && !p.pages.exists(from.page); }

  /// Scores become logits in units of log 2, -inf where not admitted. Element (half, 2 c + e) is key 8 c + 2 t + e.
  __device__ void mask_window(float (&s)[2][4], int first_key) const {
    if (first_key >= extent.whole_begin && first_key + decode_step <= extent.whole_end) return;
    const int nearest = first_key + lane % 4 * 2;
    const float inverse_tau = p.call.soft ? static_cast<float>(1 / p.call.tau) : 0;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int key = nearest + n / 2 * 8 + n % 2;
        float& score = s[n / 2][2 * half + n % 2];
        if (p.call.soft) {
          const float z = edge[half].argument(key, inverse_tau);
          if (z != INFINITY) score += log2_sigmoid(z);
        }
        const bool inside = static_cast<unsigned>(key) - static_cast<unsigned>(mask[half].begin) <
                            static_cast<unsigned>(mask[half].length);
        if (!inside) score = -INFINITY;
      }
  }
  __device__ void mask_landmarks(float (&s)[2][4], int first_entry) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int entry = first_entry + lane % 4 * 2 + n / 2 * 8 + n % 2;
      const std::uint32_t admitted = landmarks().admitted_by(entry);
      const float bias = entry < lists.entries ? landmarks().biases()[entry] : 0;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float& score = s[n / 2][2 * half + n % 2];
        score = admitted >> (lane / 4 + 8 * half) & 1 ? score + bias : -INFINITY;
      }
    }
  }

  __device__ void compute(int n, int step) {
    const unsigned char* const keys = stage(n);
    const unsigned char* const values = keys + step_bytes;
    float s[2][4] = {};
    const int key_row = lane / 16 * 8 + lane % 8, key_piece = lane / 8 % 2;
#pragma unroll
    for (int c = 0; c < kHead / 16; ++c) {
      std::uint32_t b[4];
      ldmatrix_x4(b, keys + place(key_row, 2 * c + key_piece));
      mma_16x8x16<T>(s[0], q[c], {b[0], b[1]});
      mma_16x8x16<T>(s[1], q[c], {b[2], b[3]});
    }
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int e = 0; e < 2 * kHalves; ++e) s[c][e] *= p.scale_log2;
    if (step < window_steps)
      mask_window(s, steps_begin + step * decode_step);
    else
      mask_landmarks(s, (step - window_steps) * decode_step);

    std::uint32_t weights[4] = {};
    float shrink[2] = {1, 1};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float top = fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      top = fmaxf(top, maximum[half]);
      const float origin = top == -INFINITY ? 0 : top;  // no key so far: all weights are 0
      shrink[half] = exp2_fast(maximum[half] - origin);
      maximum[half] = top;
      sum[half] *= shrink[half];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float first = exp2_fast(s[c][2 * half] - origin), second = exp2_fast(s[c][2 * half + 1] - origin);
        sum[half] += first + second;
        weights[2 * c + half] = narrow_pair<T>(first, second);
      }
    }
    const int value_row = lane / 8 % 2 * 8 + lane % 8, value_piece = lane / 16;
#pragma unroll
    for (int c = 0; c < kHead / 16; ++c) {
      std::uint32_t b[4];
      ldmatrix_x4<true>(b, values + place(value_row, 2 * c + value_piece));
#pragma unroll
      for (int n8 = 0; n8 < 2; ++n8) {
        float(&to)[4] = o[2 * c + n8];
#pragma unroll
        for (int e = 0; e < 2 * kHalves; ++e) to[e] *= shrink[e / 2];
        mma_16x8x16<T>(to, weights, {b[2 * n8], b[2 * n8 + 1]});
      }
    }
  }

  __device__ void run_steps(const typename Landmarks::Early& early) {
    const auto step_of = [&](int n) { return first_step + warp + n * warps; };
    constexpr int ahead = stages - 1;
    const int early_steps = min(last_step, window_steps);
    CachePlace places[ahead];
#pragma unroll
    for (int n = 0; n < ahead; ++n)
      if (step_of(n) < early_steps) places[n] = find(step_of(n));
    int copied = 0;
#pragma unroll
    for (int n = 0; n < ahead; ++n)
      if (step_of(n) < early_steps) {
        copy(n, step_of(n), places[n]);
        copy_async_commit();
        copied = n + 1;
      }
    load_queries();
    __syncthreads();  // the rows of landmarks()
    if (first_entry() < last_entry()) landmarks().prepare(early, first_entry(), last_entry());
    __syncthreads();
    for (; copied < ahead; ++copied) {
      if (step_of(copied) < last_step) copy(copied, step_of(copied), find(step_of(copied)));
      copy_async_commit();
    }
    CachePlace next = find(step_of(ahead));
    for (int n = 0; step_of(n) < last_step; ++n) {
      copy_async_wait<ahead - 1>();
      __syncwarp();  // the copies of all lanes are there, and all have read the step before
      if (step_of(n + ahead) < last_step) copy(n + ahead, step_of(n + ahead), next);
      copy_async_commit();
      next = find(step_of(n + ahead + 1));
      compute(n, step_of(n));
    }
    copy_async_wait<0>();
  }

  /// [warp, row, kHead] and [warp, row] in the place of the rings; behind the last warp the block's sum.
  __device__ float* warp_values(int of_warp, int row) const {
    return reinterpret_cast<float*>(shared) + (of_warp * rows + row) * kHead;
  }
  __device__ float2* warp_statistics(int of_warp, int row) const {
    return reinterpret_cast<float2*>(warp_values(warps + 1, 0)) + of_warp * rows + row;
  }
  __device__ void deposit() {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = lane / 4 + 8 * half;
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      if (lane % 4 == 0) *warp_statistics(warp, row) = {maximum[half], sum[half]};
      float* to = warp_values(warp, row) + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = float2{o[n][2 * half], o[n][2 * half + 1]};
    }
  }

  __device__ CachedRows<T> rows_of_cache(const RowTensor<const T>& keys) const {
    return {keys.at(kPaged ? 0 : tile.s.b, tile.kv_head, kPaged ? 0 : tile.s.k_start), keys.batch, keys.row};
  }

  __device__ void run() {
    const unsigned unit = blockIdx.x / static_cast<unsigned>(p.parts);
    part = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.parts));
    tile = DecodeTile::at(p, unit);
    if (tile.rows == 0) return;
    k = rows_of_cache(p.call.k);
    v = rows_of_cache(p.call.v);
    lists = DecodeLists::of(p, tile);
    typename Landmarks::Early early = landmarks().ask_for_keys();
    plan();
    if (kPaged && first_entry() < last_entry()) landmarks().ask_for_pages(early);
    run_steps(early);
    __syncthreads();  // nobody reads keys any more
    deposit();
    __syncthreads();
    for (int n = thread; n < tile.rows * pieces; n += threads) {
      const int row = n / pieces, column = n % pieces * 8;
      DecodeSum total;
#pragma unroll
      for (int w = 0; w < warps; ++w) total.add(*warp_statistics(w, row), warp_values(w, row) + column);
      if (p.parts == 1) {
        total.store(p, tile, row, column);
      } else if (p.values == nullptr) {
        if (column == 0) *warp_statistics(warps, row) = {total.maximum, total.sum};
        total.keep(warp_values(warps, row) + column);
      } else {
        const std::int64_t at = (static_cast<std::int64_t>(unit) * p.parts + part) * rows + row;
        if (column == 0) p.statistics[at] = {total.maximum, total.sum};
        total.keep(p.values + at * kHead + column);
      }
    }
    if (p.parts > 1 && p.values == nullptr) combine_cluster();
  }

  /// The blocks of the cluster are the parts of the tile; each takes a share of the tile's columns.
  __device__ void combine_cluster() {
    sync_cluster();
    for (int n = part * threads + thread; n < tile.rows * pieces; n += p.parts * threads) {
      const int row = n / pieces, column = n % pieces * 8;
      DecodeSum total;
#pragma unroll 4
      for (int other = 0; other < p.parts; ++other)
        total.add(*in_block_of_cluster(warp_statistics(warps, row), other),
                  in_block_of_cluster(warp_values(warps, row) + column, other));
      total.store(p, tile, row, column);
    }
    sync_cluster();  // others may still read this block's sums
  }
};

template <class F>
__global__ __launch_bounds__(F::threads, F::blocks_per_multiprocessor) void decode_kernel(const __grid_constant__
                                                                                          typename F::Parameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DSALT_EMULATED)
  wait_for_earlier_kernels();
  let_later_kernels_start();
  F(p, dynamic_shared_memory<unsigned char>()).run();
#endif
}

}  // namespace dsalt::cuda::hopper
