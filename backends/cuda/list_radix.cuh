// A landmark list by a radix search for its K-th score: any K, any scores, but every candidate is looked at nine times.
#pragma once

#include <algorithm>

#include "landmark_list.cuh"

namespace dsalt::cuda {

/// How many of the block's flags are set: in the threads before this one, and in all.
struct FlagCount {
  int before, all;
};
/// Shared memory of the search.
template <int threads>
struct RadixMemory {
  static constexpr int digits = 256;
  unsigned histogram[digits];
  int of_warp[2][threads / 32];
  std::uint64_t kth;
  std::int64_t wanted;  // that many with the digits of `kth` so far
};

/// One barrier: consecutive calls alternate between two buffers, `turn` 0 and 1.
template <int threads>
__device__ FlagCount count_flags(bool flag, int (&of_warp)[2][threads / 32], int turn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t flags = __ballot_sync(0xffffffffu, flag);
  if (lane == 0) of_warp[turn][warp] = __popc(flags);
  __syncthreads();
  FlagCount count = {__popc(flags & ((1u << lane) - 1)), 0};
  for (int other = 0; other < threads / 32; ++other) {
    if (other < warp) count.before += of_warp[turn][other];
    count.all += of_warp[turn][other];
  }
  return count;
}

/// Unsigned numbers in the order of the scores, 0 for NaN; both zeros are one.
__device__ inline std::uint64_t ordered_bits(double score) {
  if (!(score == score)) return 0;
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(score + 0.0));
  return bits >> 63 != 0 ? ~bits : bits | std::uint64_t{1} << 63;
}

/// The K-th score digit by digit, from histograms of all candidates; then the list in order of indices.
template <int threads, class T>
__device__ void write_by_radix(const List<T>& list, RadixMemory<threads>& memory) {
  constexpr int digits = RadixMemory<threads>::digits;
  static_assert(threads >= digits);
  auto& [histogram, of_warp, kth, wanted] = memory;
  const int digit = threadIdx.x;
  if (threadIdx.x == 0) kth = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    if (digit < digits) histogram[digit] = 0;
    __syncthreads();
#pragma unroll 4
    for (std::int64_t j = threadIdx.x; j < list.end; j += threads) {
      const std::uint64_t key = ordered_bits(list.score_of(j));
      if (key != 0 && (shift == 56 || key >> (shift + 8) == kth >> (shift + 8)))
        atomicAdd(&histogram[key >> shift & 255], 1u);
    }
    __syncthreads();
    std::int64_t above = 0, all = 0;
    for (int other = 0; other < digits; ++other) {
      if (other > digit) above += histogram[other];
      all += histogram[other];
    }
    const std::int64_t needed = shift == 56 ? min(list.k, all) : wanted;
    __syncthreads();
    if (digit < digits && above < needed && needed <= above + histogram[digit]) {
      kth |= static_cast<std::uint64_t>(digit) << shift;
      wanted = needed - above;
    } else if (needed == 0 && threadIdx.x == 0) {
      wanted = 0;
    }
    __syncthreads();
  }
  std::int64_t slots = 0, equals = 0;
  for (std::int64_t first = 0; first < list.end; first += threads) {
    const std::int64_t j = first + threadIdx.x;
    const double score = j < list.end ? list.score_of(j) : NAN;
    const std::uint64_t key = ordered_bits(score);
    const FlagCount equal = count_flags<threads>(key != 0 && key == kth, of_warp, 0);
    const bool taken = key != 0 && (key > kth || (key == kth && equals + equal.before < wanted));
    const FlagCount before = count_flags<threads>(taken, of_warp, 1);
    if (taken) list.store(slots + before.before, j, score);
    equals += equal.all;
    slots += before.all;
  }
  list.store_unused(slots, threadIdx.x, threads);
}

}  // namespace dsalt::cuda
