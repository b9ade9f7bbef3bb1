// Steps 3 and 4 of a landmark list (list_selection.cuh): of the candidates that may be among its best, the K best by
// the scores that count. For several lists of a block at a time.
#pragma once

#include <cmath>
#include <cstdint>

#include "list_state.cuh"
#include "reduce.cuh"

namespace dsalt::cuda {

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

/// Lists whose survivors are known: `count`, at most a warp for each, from `memory` on.
template <class T, int threads>
struct ListRanking {
  using Memory = ListMemory<T, threads>;
  Memory* memory;
  int count;
  std::int64_t k;

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

 private:
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
};

}  // namespace dsalt::cuda
