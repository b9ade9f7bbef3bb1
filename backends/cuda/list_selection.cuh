// The best K candidates of up to 16 landmark lists of one sequence and head, by one block that loads each candidate
// once for all of them and needs a fixed number of barriers:
//   1. A number that at least K scores reach: each list's candidates are dealt out to the threads, and of their highest
//      scores it is the K-th. Where there are many candidates, a part of them is enough.
//   2. The candidates that reach it: little more than K.
//   3. Of many such, those that reach a number like that of step 1 among themselves: a few more than K.
//   4. The K best of these, by counting who is better.
// Steps 1 and 2 use rough scores in the energies' own type, less a margin for their errors. Steps 3 and 4 have the
// scores that count. A list that step 2 finds too many for (thousands of equal scores, a K of hundreds) or whose
// energies are extreme is left to list_radix.cuh. The result is the K highest scores, ties to the lower index, however
// it was found. Steps 3 and 4 are in list_ranking.cuh.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "list_ranking.cuh"
#include "list_state.cuh"

namespace dsalt::cuda {

/// Of a block: a warp at least for each.
template <int threads>
inline constexpr int most_lists = std::min(16, threads / 32);
/// The largest K that the threads' highest scores serve.
template <int threads>
inline constexpr int most_ranked = threads / 2;

/// How many tokens lie from `first` on before `end`, as far as a tile reaches.
__device__ inline int tokens_left(std::int64_t first, std::int64_t end) {
  constexpr std::int64_t most = 1 << 30;
  return static_cast<int>(max(std::int64_t{0}, min(end - first, most)));
}

/// Energies in a thread's registers, less their centres: number i is token first + i step.
template <class T>
struct CandidateTile {
  static constexpr int size = 64 / sizeof(T);
  T x[size], v[size];

  __device__ void load(const T* from_x, const T* from_v, std::int64_t first, int step, std::int64_t end) {
    from_x += first;
    from_v += first;
    const int left = tokens_left(first, end);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      x[i] = i * step < left ? from_x[i * step] : static_cast<T>(NAN);
      v[i] = i * step < left ? from_v[i * step] : static_cast<T>(NAN);
    }
  }
  __device__ void centre(T centre_x, T centre_v) {
#pragma unroll
    for (int i = 0; i < size; ++i) {
      x[i] -= centre_x;
      v[i] -= centre_v;
    }
  }
};

/// The lists of a block, `count` from `first` on, of one sequence and head.
template <class T, int threads>
struct ListGroup {
  using Memory = ListMemory<T, threads>;
  const T *x, *v;
  Memory* memory;
  int count;
  std::int64_t k;
  std::int64_t end;  // of the longest list, the last one

  /// Only every `sampled`-th 32 tokens are looked at in step 1, so that there are about that many times K survivors.
  __device__ int sampled() const {
    constexpr std::int64_t most = 4, tile = std::int64_t{threads} * CandidateTile<T>::size;
    return static_cast<int>(max(std::int64_t{1}, min(min(most, 256 / k), ceil_div(end, tile))));
  }

  /// Step 1 for a tile: token i of a thread is `first` + i `step`, and all tokens i of the block lie between `begin` +
  /// i `step` and `begin` + (i + 1) `step`.
  __device__ void find_highest(const CandidateTile<T>& tile, std::int64_t begin, std::int64_t first, int step) const {
    for (int l = 0; l < count; ++l) {
      const ListState<T>& state = memory[l].state;
      const RoughRule<T> rough = state.rough;
      T highest = begin == 0 ? static_cast<T>(-INFINITY) : memory[l].highest[threadIdx.x];
      if (tokens_left(begin, state.list.end) >= CandidateTile<T>::size * step) {
#pragma unroll
        for (int i = 0; i < CandidateTile<T>::size; ++i) highest = fmax(highest, rough(tile.x[i], tile.v[i]));
      } else {
        const int left = tokens_left(first, state.list.end);
#pragma unroll
        for (int i = 0; i < CandidateTile<T>::size; ++i) {
          const T score = rough(tile.x[i], tile.v[i]);
          highest = i * step < left ? fmax(highest, score) : highest;
        }
      }
      memory[l].highest[threadIdx.x] = highest;
    }
  }

  /// Step 2 for a tile. A rough score does not decrease in either energy, so the largest of four bound their scores.
  __device__ void find_survivors(const CandidateTile<T>& tile, std::int64_t first) const {
    constexpr int bounded = 4, bounds = CandidateTile<T>::size / bounded;
    T x_bound[bounds], v_bound[bounds];
#pragma unroll
    for (int b = 0; b < bounds; ++b) {
      x_bound[b] = v_bound[b] = -INFINITY;
#pragma unroll
      for (int i = b * bounded; i < (b + 1) * bounded; ++i) {
        x_bound[b] = fmax(x_bound[b], tile.x[i]);
        v_bound[b] = fmax(v_bound[b], tile.v[i]);
      }
    }
    for (int l = 0; l < count; ++l) {
      Memory& list = memory[l];
      const RoughRule<T> rough = list.state.rough;
      const T threshold = list.state.threshold;
      const int left = list.state.by_radix ? 0 : tokens_left(first, list.state.list.end);
#pragma unroll
      for (int b = 0; b < bounds; ++b) {
        // What is no number (0 times infinity, past the end of this list) excludes nothing.
        if (left <= b * bounded * threads || rough(x_bound[b], v_bound[b]) < threshold) continue;
#pragma unroll
        for (int i = b * bounded; i < (b + 1) * bounded; ++i) {
          if (left <= i * threads || !(rough(tile.x[i], tile.v[i]) >= threshold)) continue;
          const int place = atomicAdd(&list.state.survivors, 1);
          if (place < most_survivors) list.index[place] = static_cast<std::int32_t>(first + i * threads);
        }
      }
    }
  }

  /// Steps 1 and 2. Starts and ends with a barrier; states are filled in, but for thresholds.
  __device__ void search() const {
    constexpr std::int64_t tile_tokens = std::int64_t{threads} * CandidateTile<T>::size;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int every = sampled(), step = every * threads, sample_first = warp * 32 * every + lane;
    CandidateTile<T> tile;
    if (every == 1)
      tile.load(x, v, threadIdx.x, threads, end);
    else
      tile.load(x, v, sample_first, step, end);
    __syncthreads();
    T centre_x = 0, centre_v = 0;
    for (int l = count - 1; l >= 0; --l) {
      if (!memory[l].state.has_candidates) continue;
      centre_x = memory[l].state.centre_x;
      centre_v = memory[l].state.centre_v;
    }
    tile.centre(centre_x, centre_v);
    find_highest(tile, 0, sample_first, step);
    for (std::int64_t begin = tile_tokens * every; begin < end; begin += tile_tokens * every) {
      tile.load(x, v, begin + sample_first, step, end);
      tile.centre(centre_x, centre_v);
      find_highest(tile, begin, begin + sample_first, step);
    }
    __syncthreads();
    if (warp < count) {
      const T kth = kth_rounded_down(memory[warp].highest, threads, k);
      if (lane == 0) memory[warp].state.threshold = kth - memory[warp].state.rough.margin;
    }
    __syncthreads();
    if (end <= tile_tokens) {
      find_survivors(tile, threadIdx.x);
    } else {
      for (std::int64_t begin = 0; begin < end; begin += tile_tokens) {
        tile.load(x, v, begin + threadIdx.x, threads, end);
        tile.centre(centre_x, centre_v);
        find_survivors(tile, begin + threadIdx.x);
      }
    }
    __syncthreads();
  }
};

}  // namespace dsalt::cuda
