// The causal landmark lists of a sequence and head, prefixes of one another, by several blocks that each hold all
// candidates of their lists in registers: docs/semantics.md, "Landmark selection". A block has up to 16 lists, short
// ones and long ones, and takes each step for all of them:
//   1. The blocks of a cluster share out the statistics of parts of 128 candidates: each warp writes those of a part to
//      all blocks. A warp then works out the rule of a list.
//   2. The rough scores of a list are counted in bins, of every four candidates the best. Of the bins, whose numbers do
//      not decrease with the score, one is found so that K scores lie in it or above: a bound for the K-th. Where that
//      bin holds too many, it is cut into finer ones, once.
//   3. The candidates that reach this bound, less a margin for rounding: little more than K, unless the best are
//      neighbours, and then at most four times as many.
//   4. The K best of these (list_ranking.cuh).
// A list that step 3 finds too many for (equal scores), or whose energies are extreme, is left to list_radix.cuh.
#pragma once

#include "../list_radix.cuh"
#include "../list_ranking.cuh"
#include "cluster.cuh"
#include "selection_call.cuh"

namespace dsalt::cuda::hopper {

struct PrefixListsCall {
  SelectionCall selection;
  int lists, chunk, recent;
  int log_blocks;                           // of a head: 2 to this power, a multiple of the blocks of a cluster
  int parts_of_stretch, pieces_of_stretch;  // between the ends of two lists
};

/// `number`, linear in the rough score, finds its bin: from 1 to 256 there are 64 to each power of two. Numbers below 1
/// or above 256 go to the first or the last bin.
struct OctaveBins {
  static constexpr int shift = 17;  // 6 bits of the mantissa stay
  static constexpr unsigned first = 0x3f800000u;
  float per_score, offset;
  bool searched;  // in the coming round

  __device__ float number(float rough) const { return fma(rough, per_score, offset); }
  __device__ int bin(float rough) const {
    const unsigned bits = __float_as_uint(fmax(number(rough), 1.0f));
    return min(static_cast<int>((bits - first) >> shift), score_bins - 1);
  }
  __device__ static float lower_end(int bin) { return __uint_as_float(first + (static_cast<unsigned>(bin) << shift)); }
  __device__ float lowest_score(int bin) const { return (lower_end(bin) - offset) / per_score; }
  /// Those of one bin, and of what is above it.
  __device__ OctaveBins finer(int bin) const {
    const float from = lower_end(bin), factor = 255 / (lower_end(bin + 1) - from);
    return {per_score * factor, (offset - from) * factor + 1, true};
  }
};

struct PrefixLists {
  static constexpr int threads = 1024, warps = threads / 32, parts_of_warp = 4, most_parts = warps * parts_of_warp;
  static constexpr int most_lists = 16;
  static constexpr std::int64_t most_k = most_survivors / 4;
  using Ranking = ListRanking<float, threads>;

  struct Memory {
    CandidateStatistics parts[most_parts], pieces[most_parts];
    OctaveBins bins[most_lists];
    RadixMemory<threads> radix;
    Ranking::Memory lists[most_lists];  // as many as a block has: the last member, since the rest is not allocated
  };
  static_assert(sizeof(Memory) <= 227 * 1024);

  const PrefixListsCall& call;
  Memory& memory;
  int block, lane, warp;
  int b, h, tokens;
  const float *from_x, *from_v;
  int count;         // of this block's lists
  int first, after;  // lane r: the tokens of the warp's part in round r
  float x[parts_of_warp * part_lane_tokens], v[parts_of_warp * part_lane_tokens];  // NaN: no candidate

  __device__ PrefixLists(const PrefixListsCall& of, Memory& shared)
      : call(of), memory(shared), lane(threadIdx.x % 32), warp(threadIdx.x / 32) {
    // All warps do this side by side, so every instruction takes its time.
    const SelectionLayout& layout = call.selection.layout;
    const int head = static_cast<int>(blockIdx.x >> call.log_blocks), hq = static_cast<int>(layout.hq);
    block = static_cast<int>(blockIdx.x) - (head << call.log_blocks);
    b = layout.sequences > 1 ? head / hq : 0;
    h = head - b * hq;
    const int g = layout.group > 1 ? h / static_cast<int>(layout.group) : h;
    const std::int64_t start = layout.start(b);
    tokens = static_cast<int>(
        min(layout.starts.present() ? layout.start(b + 1) - start : layout.tokens, std::int64_t{1} << 30));
    from_x = call.selection.x.at(b, 0, start);
    from_v = call.selection.v.at(b, g, start);
    count = 0;
    while (list(count) < call.lists) ++count;
    const int part = lane * warps + warp, stretch = part / call.parts_of_stretch;
    first = end(stretch) + (part - stretch * call.parts_of_stretch) * part_tokens;
    after = min(first + part_tokens, end(stretch + 1));
  }

  /// Number l of this block's lists, short ones first. Blocks take turns forwards and backwards, for equal shares.
  __device__ int list(int l) const {
    return (l << call.log_blocks) + (l % 2 == 0 ? block : (1 << call.log_blocks) - 1 - block);
  }
  /// List number l consists of the first parts of the sequence, so many of them.
  __device__ int parts_of_list(int l) const { return list(l) * call.parts_of_stretch; }
  /// One past the last candidate of list t.
  __device__ int end(int t) const { return max(0, min(t * call.chunk - call.recent, tokens)); }

  /// The energies of the warp's part in a round: element i of a lane is token `first` + 32 i + lane. By all lanes.
  __device__ void load(int round, float* to_x, float* to_v) const {
    const int token = __shfl_sync(0xffffffffu, first, round) + lane,
              left = __shfl_sync(0xffffffffu, after, round) - token;
    const std::int64_t x_step = call.selection.x.token, v_step = call.selection.v.token;
    const float *next_x = from_x + token * x_step, *next_v = from_v + token * v_step;
#pragma unroll
    for (int i = 0; i < part_lane_tokens; ++i) {
      to_x[i] = i * 32 < left ? *next_x : NAN;
      to_v[i] = i * 32 < left ? *next_v : NAN;
      next_x += 32 * x_step;
      next_v += 32 * v_step;
    }
  }
  __device__ void hold_candidates() {
    const int parts = parts_of_list(count - 1);
#pragma unroll
    for (int round = 0; round < parts_of_warp; ++round) {
      const int at = round * part_lane_tokens;
      if (round * warps + warp < parts) {
        load(round, x + at, v + at);
      } else {
#pragma unroll
        for (int i = at; i < at + part_lane_tokens; ++i) x[i] = v[i] = NAN;
      }
    }
  }

  /// Step 1, up to the statistics of every part.
  __device__ void take_statistics() {
    const int parts = (call.lists - 1) * call.parts_of_stretch, blocks = blocks_of_cluster();
    int part = rank_in_cluster() * warps + warp;
    float of_x[part_lane_tokens], of_v[part_lane_tokens], next_x[part_lane_tokens] = {}, next_v[part_lane_tokens] = {};
    if (part < parts) load(part / warps, of_x, of_v);
#pragma unroll 1
    for (; part < parts; part += blocks * warps) {
      const int next = part + blocks * warps;
      if (next < parts) load(next / warps, next_x, next_v);
      const CandidateStatistics statistics = part_statistics(of_x, of_v);
      if (lane < blocks) *in_block_of_cluster(&memory.parts[part], lane) = statistics;
#pragma unroll
      for (int i = 0; i < part_lane_tokens; ++i) {
        of_x[i] = next_x[i];
        of_v[i] = next_v[i];
      }
    }
  }

  /// The rest of step 1. The candidates become differences from the mean of the first piece that has any, which is part
  /// of every list that has any: see RoughRule.
  __device__ void describe_lists(double share) {
    const int pieces = (call.lists - 1) * call.pieces_of_stretch, piece = threadIdx.x / 2;
    if (piece < pieces) {  // two threads, one for each energy
      const int stretch = piece / call.pieces_of_stretch,
                before = (piece - stretch * call.pieces_of_stretch) * parts_of_piece;
      const bool even = threadIdx.x % 2 == 0;
      const MergedMoments of_piece =
          merged(memory.parts + stretch * call.parts_of_stretch + before, call.parts_of_stretch - before,
                 even ? &CandidateStatistics::x : &CandidateStatistics::v);
      if (even) memory.pieces[piece].count = of_piece.count;
      (even ? memory.pieces[piece].x : memory.pieces[piece].v) = of_piece.moments;
    }
    __syncthreads();
    int empty = 0;
    while (empty + 1 < pieces && memory.pieces[empty].count == 0) ++empty;
    const auto centre_x = static_cast<float>(memory.pieces[empty].x.mean),
               centre_v = static_cast<float>(memory.pieces[empty].v.mean);
    if (warp < count) {
      const int t = list(warp);
      ListState<float>& state = memory.lists[warp].state;
      describe(state, call.selection.list(from_x, from_v, b, h, t, end(t)),
               list_statistics<1>(memory.pieces, t * call.pieces_of_stretch), share, false);
      if (lane == 0) {
        state.threshold = -INFINITY;
        // From -1 deviation on, where at least half of the candidates are.
        memory.bins[warp] = {1, 2 + state.rough(centre_x - state.centre_x, centre_v - state.centre_v), !state.by_radix};
      }
    }
    hold_candidates();  // not before: working out a rule takes registers, and the other warps load meanwhile
#pragma unroll
    for (int i = 0; i < parts_of_warp * part_lane_tokens; ++i) {
      x[i] -= centre_x;
      v[i] -= centre_v;
    }
    __syncthreads();
  }

  /// use(round) for each of the warp's parts that belong to list number l.
  template <class Use>
  __device__ void for_parts(int l, Use&& use) const {
    const int parts = parts_of_list(l);
#pragma unroll
    for (int round = 0; round < parts_of_warp; ++round)
      if (round * warps + warp < parts) use(round);
  }

  /// Step 2, up to the bins.
  __device__ void count_scores() {
#pragma unroll 1
    for (int l = 0; l < count; ++l) {
      Ranking::Memory& list = memory.lists[l];
      if (!memory.bins[l].searched) continue;
      for_parts(l, [&, rough = list.state.rough, bins = memory.bins[l]](int round) {
        float best = -INFINITY;
#pragma unroll
        for (int i = 0; i < part_lane_tokens; ++i)
          best = fmax(best, rough(x[round * part_lane_tokens + i], v[round * part_lane_tokens + i]));
        const int bin = bins.bin(best);
        if (bin > 0) atomicAdd(&list.in_bin[bin], 1u);
      });
    }
    __syncthreads();
  }

  /// The rest of step 2, by a warp for each list. Numbers of bins are rounded by less than half the margin, like rough
  /// scores. `again`: there may be another round.
  __device__ void find_thresholds(bool again) {
    constexpr int per_lane = score_bins / 32;
    if (warp < count && memory.bins[warp].searched) {
      Ranking::Memory& list = memory.lists[warp];
      const auto k = static_cast<int>(call.selection.landmarks.shape[3]);
      int in_bin[per_lane], here = 0;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        here += in_bin[i] = static_cast<int>(list.in_bin[lane * per_lane + i]);
        list.in_bin[lane * per_lane + i] = 0;
      }
      int above = here;  // in this lane's bins and those of higher lanes
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_down_sync(0xffffffffu, above, step);
        above += lane + step < 32 ? other : 0;
      }
      above -= here;
      int bin = 0, reached = 0;
#pragma unroll
      for (int i = per_lane - 1; i >= 0; --i) {
        above += in_bin[i];
        if (above >= k && bin == 0) bin = lane * per_lane + i, reached = above;
      }
      const int highest = warp_max(bin);
      __syncwarp();  // every lane has seen `searched`, which one of them changes
      if (bin == highest && (bin > 0 || lane == 0)) {
        const OctaveBins bins = memory.bins[warp];
        if (bin > 0) list.state.threshold = bins.lowest_score(bin) - 2 * list.state.rough.margin;
        memory.bins[warp].searched = false;
        if (again && bin > 0 && reached > 2 * k + 64) memory.bins[warp] = bins.finer(bin);
      }
    }
    __syncthreads();
  }

  /// Step 3.
  __device__ void find_survivors() {
#pragma unroll 1
    for (int l = 0; l < count; ++l) {
      Ranking::Memory& list = memory.lists[l];
      if (list.state.by_radix) continue;
      for_parts(l, [&, rough = list.state.rough, threshold = list.state.threshold](int round) {
        const int token = __shfl_sync(0xffffffffu, first, round) + lane;
        bool reaches[part_lane_tokens];
        int amount = 0;
#pragma unroll
        for (int i = 0; i < part_lane_tokens; ++i) {
          const int at = round * part_lane_tokens + i;
          amount += reaches[i] = rough(x[at], v[at]) >= threshold;
        }
        if (amount == 0) return;
        int place = atomicAdd(&list.state.survivors, amount);
#pragma unroll
        for (int i = 0; i < part_lane_tokens; ++i)
          if (reaches[i] && place < most_survivors) list.index[place++] = token + i * 32;
      });
    }
    __syncthreads();
  }

  __device__ void run() {
    for (int l = 0; l < count; ++l)
      if (threadIdx.x < score_bins) memory.lists[l].in_bin[threadIdx.x] = 0;
    take_statistics();
    const double share = warp < count ? share_of_score(*call.selection.alpha_raw.at(h)) : 0;
    sync_cluster();  // every block has the statistics of all parts
    describe_lists(share);
    constexpr int rounds = 2;
    for (int round = 0; round < rounds; ++round) {
      count_scores();
      find_thresholds(round + 1 < rounds);
    }
    find_survivors();
    Ranking{memory.lists, count, call.selection.landmarks.shape[3]}.write();
    for (int l = 0; l < count; ++l)
      if (memory.lists[l].state.by_radix || memory.lists[l].state.survivors > most_survivors)
        write_by_radix(memory.lists[l].state.list, memory.radix);
  }
};

}  // namespace dsalt::cuda::hopper
