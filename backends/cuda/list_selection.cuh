// The best K candidates of a landmark list, by one block, looking at few candidates twice:
//   1. A number that at least K scores reach: the K-th of the highest scores of 1024 groups of candidates. Long lists
//      take every n-th neighbourhood of 16 tokens only.
//   2. The candidates that reach it. A score does not decrease in either energy, in exact arithmetic and as computed,
//      so the largest energies of a neighbourhood bound its scores, and most neighbourhoods are passed over.
//   3. The K best of these few, by counting who is better.
// Where step 2 finds too many (a K of hundreds, or thousands of equal scores), a radix search for the K-th score makes
// the list instead. The result is the K highest scores, ties to the lower index, however it was found.
#pragma once

#include <cmath>
#include <cstdint>

#include "elements.cuh"
#include "launch.cuh"
#include "sigmoid.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

constexpr int list_threads = 256;  // of a block that makes a list
constexpr int neighbours = 16;
constexpr int survivor_capacity = 2048;
constexpr int most_ranked = 512;  // the largest K that 1024 groups serve

/// Energies in a layout of their own: unit stride, sequences from whole neighbourhoods on
/// (SelectionLayout::part_count), ends filled up with NaN; and the largest number of each neighbourhood, -infinity
/// where there is none.
template <class T>
struct OrderedEnergies {
  T *x, *v;  // v: [Hkv][neighbourhood][16]
  T *x_bound, *v_bound;
  std::int64_t count;  // neighbourhoods

  __device__ OrderedEnergies of(std::int64_t g, std::int64_t first) const {
    const std::int64_t head = g * count + first;
    return {x + first * neighbours, v + head * neighbours, x_bound + first, v_bound + head, count};
  }
};

/// The score of a list's candidates. Both roundings are spelled out: a candidate must score the same wherever it is
/// looked at. NaN for what is no candidate.
struct ScoreRule {
  double per_v, mean_v, per_x, mean_x;
  __device__ double operator()(double x, double v) const {
    return __fma_rn(per_v, v - mean_v, __dmul_rn(per_x, x - mean_x));
  }
};

template <class T>
struct List {
  OrderedEnergies<T> energies;  // of its sequence and head
  ScoreRule rule;
  std::int64_t end;
  std::int64_t k;
  double tau;
  std::int32_t* landmarks;
  T *score, *weight;
  std::int64_t landmark_stride, score_stride, weight_stride;

  __device__ double score_of(std::int64_t j) const { return rule(energies.x[j], energies.v[j]); }
  __device__ void store(std::int64_t slot, std::int64_t j, double value) const {
    landmarks[slot * landmark_stride] = static_cast<std::int32_t>(j);
    score[slot * score_stride] = narrow<T>(value);
    weight[slot * weight_stride] = narrow<T>(log_sigmoid(value / tau));
  }
  /// The slots from `used` on.
  __device__ void store_unused(std::int64_t used) const {
    for (std::int64_t slot = used + threadIdx.x; slot < k; slot += list_threads) {
      landmarks[slot * landmark_stride] = -1;
      score[slot * score_stride] = weight[slot * weight_stride] = 0;
    }
  }
};

/// How many of the block's flags are set: in the threads before this one, and in all.
struct FlagCount {
  int before, all;
};
/// One barrier: consecutive calls alternate between two buffers, `turn` 0 and 1.
__device__ inline FlagCount count_flags(bool flag, int turn) {
  __shared__ int of_warp[2][list_threads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t flags = __ballot_sync(0xffffffffu, flag);
  if (lane == 0) of_warp[turn][warp] = __popc(flags);
  __syncthreads();
  FlagCount count = {__popc(flags & ((1u << lane) - 1)), 0};
  for (int other = 0; other < list_threads / 32; ++other) {
    if (other < warp) count.before += of_warp[turn][other];
    count.all += of_warp[turn][other];
  }
  return count;
}

/// Unsigned numbers in the order of the floats.
__device__ inline std::uint32_t ordered_bits(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/// At least k of the block's values reach the result, and hardly more do: it is the k-th, rounded down to 11 bits.
/// Values are no NaN, and at least k.
template <int per_thread>
__device__ double kth_rounded_down(const float (&values)[per_thread], std::int64_t k) {
  __shared__ int of_warp[2][list_threads / 32];
  std::uint32_t found = 0;
  for (int bit = 31; bit >= 12; --bit) {
    const std::uint32_t probe = found | 1u << bit;
    int reached = 0;
#pragma unroll
    for (int n = 0; n < per_thread; ++n)
      reached += __popc(__ballot_sync(0xffffffffu, ordered_bits(values[n]) >= probe));
    if (threadIdx.x % 32 == 0) of_warp[bit % 2][threadIdx.x / 32] = reached;
    __syncthreads();  // one is enough: the next round writes the other half
    reached = 0;
    for (int warp = 0; warp < list_threads / 32; ++warp) reached += of_warp[bit % 2][warp];
    if (reached >= k) found = probe;
  }
  if (found <= ordered_bits(-INFINITY)) return -INFINITY;
  return __uint_as_float(found & 0x80000000u ? found & 0x7fffffffu : ~found);
}

/// Step 1. Each thread holds the highest scores of four groups.
template <class T>
__device__ double lower_bound(const List<T>& list) {
  constexpr int per_load = 4;
  const std::int64_t stride = max(std::int64_t{1}, min(list.end / 8192, std::int64_t{8}));
  const std::int64_t loads = ceil_div(ceil_div(list.end, neighbours), stride) * (neighbours / per_load);
  double highest[per_load] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll 2
  for (std::int64_t n = threadIdx.x; n < loads; n += list_threads) {
    const std::int64_t j = n / (neighbours / per_load) * stride * neighbours + n % (neighbours / per_load) * per_load;
    const auto x = load_vector<per_load>(list.energies.x + j), v = load_vector<per_load>(list.energies.v + j);
#pragma unroll
    for (int e = 0; e < per_load; ++e) {
      const double score = list.rule(x.element[e], v.element[e]);
      if (j + e < list.end && score > highest[e]) highest[e] = score;
    }
  }
  float rounded[per_load];
#pragma unroll
  for (int e = 0; e < per_load; ++e) rounded[e] = __double2float_rd(highest[e]);
  return kth_rounded_down(rounded, list.k);
}

/// The candidates that are still in question, in any order.
struct Survivors {
  double score[survivor_capacity];
  std::int32_t index[survivor_capacity];
  int count;  // may exceed the capacity: then some are missing

  __device__ void add(double value, std::int64_t j) {
    const int place = atomicAdd(&count, 1);
    if (place >= survivor_capacity) return;
    score[place] = value;
    index[place] = static_cast<std::int32_t>(j);
  }
};

/// Step 2. Each lane judges the bound of a neighbourhood; four lanes each then look at those that pass.
template <class T>
__device__ void find_survivors(const List<T>& list, double threshold, Survivors& survivors) {
  constexpr int per_load = 4, lanes = neighbours / per_load;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t bounds = ceil_div(list.end, neighbours);
  for (std::int64_t first = warp * 32; first < bounds; first += list_threads) {
    const std::int64_t mine = min(first + lane, bounds - 1);
    const double bound = list.rule(list.energies.x_bound[mine], list.energies.v_bound[mine]);
    std::uint32_t passed = __ballot_sync(0xffffffffu, first + lane < bounds && bound >= threshold);
    while (passed != 0) {
      std::uint32_t from_mine = passed;  // without the lanes / 4 lowest
      for (int n = 0; n < 32 / lanes; ++n) {
        if (n < lane / lanes) from_mine &= from_mine - 1;
        passed &= passed - 1;
      }
      if (from_mine == 0) continue;
      const std::int64_t j = (first + __ffs(from_mine) - 1) * neighbours + lane % lanes * per_load;
      const auto x = load_vector<per_load>(list.energies.x + j), v = load_vector<per_load>(list.energies.v + j);
#pragma unroll
      for (int e = 0; e < per_load; ++e) {
        const double score = list.rule(x.element[e], v.element[e]);
        if (j + e < list.end && score >= threshold) survivors.add(score, j + e);
      }
    }
  }
}

/// Leaves little more than the k best of at most `survivor_capacity` survivors.
__device__ inline void thin_out(Survivors& survivors, std::int64_t k) {
  constexpr int per_thread = survivor_capacity / list_threads;
  double score[per_thread];
  std::int32_t index[per_thread];
  float rounded[per_thread];
#pragma unroll
  for (int n = 0; n < per_thread; ++n) {
    const int place = n * list_threads + threadIdx.x;
    score[n] = place < survivors.count ? survivors.score[place] : -INFINITY;
    index[n] = place < survivors.count ? survivors.index[place] : -1;
    rounded[n] = __double2float_rd(score[n]);
  }
  const double threshold = kth_rounded_down(rounded, k);
  if (threadIdx.x == 0) survivors.count = 0;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < per_thread; ++n)
    if (index[n] >= 0 && score[n] >= threshold) survivors.add(score[n], index[n]);
  __syncthreads();
}

/// Step 3: writes the list from at most `survivor_capacity` survivors.
template <class T>
__device__ void write_best(const List<T>& list, Survivors& survivors) {
  constexpr std::int32_t not_taken = 0x7fffffff;
  const int count = survivors.count;
  std::uint32_t taken = 0;  // bit n: the n-th of this thread
  for (int i = threadIdx.x, bit = 0; i < count; i += list_threads, ++bit) {
    const double score = survivors.score[i];
    const std::int32_t index = survivors.index[i];
    int better = 0;
    for (int other = 0; other < count; ++other)
      better += survivors.score[other] > score || (survivors.score[other] == score && survivors.index[other] < index);
    if (better < list.k) taken |= 1u << bit;
  }
  __syncthreads();
  for (int i = threadIdx.x, bit = 0; i < count; i += list_threads, ++bit)
    if (!(taken >> bit & 1u)) survivors.index[i] = not_taken;
  __syncthreads();
  for (int i = threadIdx.x, bit = 0; i < count; i += list_threads, ++bit) {
    if (!(taken >> bit & 1u)) continue;
    const std::int32_t index = survivors.index[i];
    int slot = 0;
    for (int other = 0; other < count; ++other) slot += survivors.index[other] < index;
    list.store(slot, index, survivors.score[i]);
  }
  list.store_unused(min(list.k, static_cast<std::int64_t>(count)));
}

/// Unsigned numbers in the order of the scores, 0 for NaN; both zeros are one.
__device__ inline std::uint64_t ordered_bits(double score) {
  if (!(score == score)) return 0;
  const auto bits = static_cast<std::uint64_t>(__double_as_longlong(score + 0.0));
  return bits >> 63 != 0 ? ~bits : bits | std::uint64_t{1} << 63;
}

/// The K-th score digit by digit, from histograms of all candidates; then the list in order of indices. Any K.
template <class T>
__device__ void write_by_radix(const List<T>& list) {
  __shared__ unsigned histogram[256];
  __shared__ std::uint64_t kth;
  __shared__ std::int64_t wanted;  // that many with the digits of `kth` so far
  static_assert(list_threads == 256);
  if (threadIdx.x == 0) kth = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    histogram[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 4
    for (std::int64_t j = threadIdx.x; j < list.end; j += list_threads) {
      const std::uint64_t key = ordered_bits(list.score_of(j));
      if (key != 0 && (shift == 56 || key >> (shift + 8) == kth >> (shift + 8)))
        atomicAdd(&histogram[key >> shift & 255], 1u);
    }
    __syncthreads();
    std::int64_t above = 0, all = 0;
    for (int digit = 0; digit < 256; ++digit) {
      if (digit > static_cast<int>(threadIdx.x)) above += histogram[digit];
      all += histogram[digit];
    }
    const std::int64_t needed = shift == 56 ? min(list.k, all) : wanted;
    __syncthreads();
    if (above < needed && needed <= above + histogram[threadIdx.x]) {
      kth |= static_cast<std::uint64_t>(threadIdx.x) << shift;
      wanted = needed - above;
    } else if (needed == 0 && threadIdx.x == 0) {
      wanted = 0;
    }
    __syncthreads();
  }
  std::int64_t slots = 0, equals = 0;
  for (std::int64_t first = 0; first < list.end; first += list_threads) {
    const std::int64_t j = first + threadIdx.x;
    const double score = j < list.end ? list.score_of(j) : NAN;
    const std::uint64_t key = ordered_bits(score);
    const FlagCount equal = count_flags(key != 0 && key == kth, 0);
    const bool taken = key != 0 && (key > kth || (key == kth && equals + equal.before < wanted));
    const FlagCount before = count_flags(taken, 1);
    if (taken) list.store(slots + before.before, j, score);
    equals += equal.all;
    slots += before.all;
  }
  list.store_unused(slots);
}

template <class T>
__device__ void write_list(const List<T>& list, Survivors& survivors) {
  if (list.k > most_ranked && list.end > survivor_capacity) return write_by_radix(list);
  const double threshold = list.k <= most_ranked && list.end > list_threads ? lower_bound(list) : -INFINITY;
  if (threadIdx.x == 0) survivors.count = 0;
  __syncthreads();
  find_survivors(list, threshold, survivors);
  __syncthreads();
  const int count = survivors.count;
  if (count > survivor_capacity) return write_by_radix(list);
  if (count > list_threads && count > list.k) thin_out(survivors, list.k);
  write_best(list, survivors);
}

}  // namespace dsalt::cuda
