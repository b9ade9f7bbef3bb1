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
// it was found.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "landmark_list.cuh"
#include "reduce.cuh"
#include "select_landmarks.cuh"

namespace dsalt::cuda {

constexpr int most_survivors = 1024;
/// Of a block: a warp at least for each.
template <int threads>
inline constexpr int most_lists = std::min(16, threads / 32);
/// The largest K that the threads' highest scores serve.
template <int threads>
inline constexpr int most_ranked = threads / 2;

/// A score without its constant part, which is the same for all candidates of a list: per_v (v - centre of v) + per_x
/// (x - centre of x). The centres are the means of the block's shortest list; from there the mean of M candidates,
/// which contain that list, lies at most sqrt(M) deviations away. So both terms are at most 3 sqrt(M) together, and
/// rounding moves a rough score by less than half the margin.
template <class T>
struct RoughRule {
  T per_v, per_x, margin;
  static constexpr double deviation_limit = sizeof(T) == 8 ? 0x1p960 : 0x1p100;  // products stay within the type
  static constexpr double relative_margin = sizeof(T) == 8 ? 0x1p-47 : 0x1p-18;

  __device__ T operator()(T x, T v) const { return fma(per_v, v, per_x * x); }
};

template <class T>
struct ListState {
  List<T> list;
  RoughRule<T> rough;
  T centre_x, centre_v;
  T threshold;
  bool has_candidates;
  int survivors;  // more than most_survivors: some are missing
  bool by_radix;
};

/// A list's part of the block's dynamic shared memory.
template <class T, int threads>
struct ListMemory {
  ListState<T> state;
  union {
    T highest[threads];            // step 1
    double score[most_survivors];  // steps 3 and 4
  };
  std::int32_t index[most_survivors];
};

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

/// Every lane gets the sum over the warp.
__device__ inline int count_in_warp(int count) {
#ifdef DSALT_EMULATED
  return warp_sum(count);
#else
  return __reduce_add_sync(0xffffffffu, count);
#endif
}

/// How many numbers may reach what kth_rounded_down() gives, unless some are equal.
__device__ inline std::int64_t enough_for(std::int64_t k) { return k + max(k / 8, std::int64_t{4}); }

/// At least k of the numbers reach the result, and hardly more do; -infinity where fewer than k are above that. For
/// every lane of a warp. The numbers stay in shared memory: registers hold a tile meanwhile.
template <class T>
__device__ T kth_rounded_down(const T* numbers, int amount, std::int64_t k) {
  const int lane = threadIdx.x % 32;
  T low = INFINITY, high = -INFINITY;
#pragma unroll 8
  for (int i = lane; i < amount; i += 32) {
    const T number = numbers[i];
    high = fmax(high, number);
    if (number > static_cast<T>(-INFINITY)) low = fmin(low, number);
  }
  const auto reaching = [&](T bound) {
    int count = 0;
#pragma unroll 8
    for (int i = lane; i < amount; i += 32) count += numbers[i] >= bound;
    return count_in_warp(count);
  };
  low = warp_min(low);
  high = warp_max(high);
  int reached = low < static_cast<T>(INFINITY) ? reaching(low) : 0;
  if (reached < k) return -INFINITY;
  const std::int64_t enough = enough_for(k);
  for (int round = 0; reached > enough && round < 64; ++round) {
    const T middle = low + (high - low) / 2;
    if (!(middle > low)) break;
    const int count = reaching(middle);
    if (count >= k)
      low = middle, reached = count;
    else
      high = middle;
  }
  return low;
}

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

  /// Step 3, by the warp of each list.
  __device__ void keep_the_best() const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp >= count || memory[warp].state.by_radix) return;
    Memory& list = memory[warp];
    const int survivors = list.state.survivors;
    if (survivors > most_survivors || survivors <= enough_for(k) + 32) return;
    const double bound = kth_rounded_down(list.score, survivors, k);
    int kept = 0;
    for (int first = 0; first < survivors; first += 32) {
      const int i = first + lane;
      const double score = i < survivors ? list.score[i] : -INFINITY;
      const std::int32_t index = i < survivors ? list.index[i] : 0;
      const bool keeps = i < survivors && score >= bound;
      const std::uint32_t keepers = __ballot_sync(0xffffffffu, keeps);
      __syncwarp();  // all have read before one writes
      const int place = kept + __popc(keepers & ((1u << lane) - 1));
      if (keeps) {
        list.score[place] = score;
        list.index[place] = index;
      }
      kept += __popc(keepers);
      __syncwarp();
    }
    if (lane == 0) list.state.survivors = kept;
  }

  /// Steps 3 and 4. Each list has as many threads as there are for it.
  __device__ void write() const {
    constexpr std::int32_t not_taken = 0x7fffffff;
    int share = threads;
    while (share * count > threads) share /= 2;
    const int l = threadIdx.x / share, thread = threadIdx.x % share;
    Memory& mine = memory[min(l, count - 1)];
    const bool present = l < count && !mine.state.by_radix && mine.state.survivors <= most_survivors;
    const List<T>& list = mine.state.list;
    for (int i = thread; present && i < mine.state.survivors; i += share) mine.score[i] = list.score_of(mine.index[i]);
    __syncthreads();
    keep_the_best();
    __syncthreads();
    const int survivors = present ? mine.state.survivors : 0;

    // A survivor has `parts` lanes, each of which looks at its part of the others.
    int parts = 1;
    while (parts < 32 && 2 * parts * survivors <= share) parts *= 2;
    const int part = thread & (parts - 1), step = share / parts;
    const auto sum_of_parts = [parts](int count) {
      for (int bit = parts / 2; bit > 0; bit /= 2) count += __shfl_xor_sync(0xffffffffu, count, bit);
      return count;
    };
    const int rounds = (survivors + step - 1) / step;

    std::uint32_t taken = 0;  // bit n: the survivor of round n
    for (int round = 0, i = thread / parts; round < rounds; ++round, i += step) {
      const double score = i < survivors ? mine.score[i] : NAN;
      const std::int32_t index = i < survivors ? mine.index[i] : 0;
      int better = 0;
#pragma unroll 4
      for (int other = part; other < survivors; other += parts)
        better += mine.score[other] > score || (mine.score[other] == score && mine.index[other] < index);
      if (sum_of_parts(better) < k && i < survivors) taken |= 1u << round;
    }
    __syncthreads();
    for (int round = 0, i = thread / parts; round < rounds; ++round, i += step)
      if (i < survivors && !(taken >> round & 1u)) mine.index[i] = not_taken;
    __syncthreads();
    for (int round = 0, i = thread / parts; round < rounds; ++round, i += step) {
      const std::int32_t index = i < survivors ? mine.index[i] : not_taken;
      int before = 0;
#pragma unroll 4
      for (int other = part; other < survivors; other += parts) before += mine.index[other] < index;
      const int slot = sum_of_parts(before);
      if (part == 0 && (taken >> round & 1u) != 0) list.store(slot, index, mine.score[i]);
    }
    if (present) list.store_unused(min(k, static_cast<std::int64_t>(survivors)), thread, share);
  }
};

}  // namespace dsalt::cuda
