// A single landmark list of a sequence and head by a cluster: docs/semantics.md, "Landmark selection". Each block looks
// at a part of the candidates; the first one owns the list:
//   1. Each warp takes the statistics of 128 candidates and writes them to all blocks, each of which then works out the
//      list's rule.
//   2. Blocks count their rough scores in bins. The owner adds up the bins and tells all blocks from which one on at
//      least K scores lie. Where that bin holds too many, it is cut into finer ones, once.
//   3. What may reach that bin, little more than K candidates, goes to the owner, which finds the K best of them
//      (list_ranking.cuh).
// A list that step 3 finds too many for, or whose energies are extreme, is left to list_radix.cuh.
//
// A bin's number does not decrease with the score, so nothing depends on where bins lie: that at least K rough scores
// reach a bin makes it a bound for the K-th, and the margin of RoughRule goes on top of what is compared with it.
//
// Most of the time is one instruction after the other, by warps that others wait for: hence few of them.
#pragma once

#include "../dependent_launch.cuh"
#include "../list_radix.cuh"
#include "../list_ranking.cuh"
#include "cluster.cuh"
#include "selection_call.cuh"

namespace dsalt::cuda::hopper {

/// Linear in the rough score; the part before the point is the number of the bin.
struct ScoreBins {
  float per_score, offset;
  __device__ float operator()(float rough) const { return fma(rough, per_score, offset); }
};

struct ListCluster {
  static constexpr int threads = 512, warps = threads / 32, per_thread = part_lane_tokens, most_blocks = 8;
  static constexpr int most_pieces = 256, bins = threads;
  static constexpr std::int64_t most_k = 512;
  using Ranking = ListRanking<float, threads>;

  /// What the owner decides.
  struct Decision {
    ScoreBins kept, tried;
    float bound;    // candidates may be among the best where `kept` is at least this
    bool searched;  // by `tried`, in the coming round
  };
  struct Memory {
    CandidateStatistics parts[most_pieces * parts_of_piece], pieces[most_pieces];
    ListState<float> state;
    Decision decision, next_decision;
    int found;  // by this block
    union {
      unsigned in_bin[bins];
      std::int32_t token[most_survivors];  // that were found
    };
    unsigned of_warp[warps];
    RadixMemory<threads> radix;
    Ranking::Memory owned;
  };

  const SelectionCall& call;
  Memory& memory;
  int blocks, rank;  // of the cluster
  int lane, warp;
  std::int64_t b, h;
  const float *from_x, *from_v;
  int end, parts;
  int held = -1;  // the round that x and v belong to
  int token;
  float x[per_thread], v[per_thread];  // of tokens `token`, `token` + 32, ...; NaN: none

  __device__ ListCluster(const SelectionCall& of, Memory& shared, int number)
      : call(of),
        memory(shared),
        blocks(blocks_of_cluster()),
        rank(rank_in_cluster()),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32) {
    const SelectionLayout& layout = call.layout;
    b = quotient(number, layout.hq);
    h = number - b * layout.hq;
    from_x = call.x.at(b, 0, layout.start(b));
    from_v = call.v.at(b, quotient(h, layout.group), layout.start(b));
    end = static_cast<int>(layout.end(0, layout.length(b)));
    parts = (end + part_tokens - 1) / part_tokens;
  }

  /// Each warp has a part in each round.
  __device__ int part_of(int round) const { return (round * warps + warp) * blocks + rank; }
  __device__ bool is_round(int round) const { return round * warps * blocks < parts; }
  __device__ void hold(int round) {
    if (held == round) return;
    held = round;
    token = part_of(round) * part_tokens + lane;
    const float *next_x = from_x + token * call.x.token, *next_v = from_v + token * call.v.token;
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      x[i] = token + i * 32 < end ? *next_x : NAN;
      v[i] = token + i * 32 < end ? *next_v : NAN;
      next_x += 32 * call.x.token;
      next_v += 32 * call.v.token;
    }
  }

  /// use(rough score, token) for this thread's candidates. NaN: none.
  template <class Use>
  __device__ void for_scores(Use&& use) {
    const RoughRule<float> rough = memory.state.rough;
    const float centre_x = memory.state.centre_x, centre_v = memory.state.centre_v;
#pragma unroll 1
    for (int round = 0; is_round(round); ++round) {
      hold(round);
#pragma unroll
      for (int i = 0; i < per_thread; ++i) use(rough(x[i] - centre_x, v[i] - centre_v), token + i * 32);
    }
  }

  /// Step 1. Ends with the list described, for all blocks alike.
  __device__ void describe_list() {
    const float alpha_raw = *call.alpha_raw.at(h);
    hold(0);
    memory.in_bin[threadIdx.x] = 0;
    const double share = share_of_score(alpha_raw);
#pragma unroll 1
    for (int round = 0; is_round(round); ++round) {
      hold(round);
      const CandidateStatistics statistics = part_statistics(x, v);
      const int part = part_of(round);
      if (lane < blocks && part < parts) *in_block_of_cluster(&memory.parts[part], lane) = statistics;
    }
    sync_cluster();
    const int first = static_cast<int>(threadIdx.x) * parts_of_piece;
    if (first < parts) memory.pieces[threadIdx.x] = merged(memory.parts + first, min(parts - first, parts_of_piece));
    __syncthreads();
    if (warp == 0) {
      const int pieces = (parts + parts_of_piece - 1) / parts_of_piece;
      describe(memory.state, call.list(from_x, from_v, b, h, 0, end), list_statistics<1>(memory.pieces, pieces), share,
               false);
      if (lane == 0) {
        // Scores from -1 to 7 deviations, which are those of at least half the candidates, and hardly any is above.
        constexpr ScoreBins usual = {bins / 8, bins / 8};
        memory.decision = {usual, usual, -INFINITY, !memory.state.by_radix};
        memory.found = 0;
      }
    }
    __syncthreads();
  }

  /// Step 2. Ends with the decision, for all blocks alike.
  __device__ void search() {
    constexpr int rounds = 2;
#pragma unroll 1
    for (int round = 0; memory.decision.searched; ++round) {
      for_scores([this, bin_of = memory.decision.tried](float score, std::int32_t) {
        const float bin = bin_of(score);
        if (bin >= 0) atomicAdd(&memory.in_bin[static_cast<int>(fmin(bin, static_cast<float>(bins - 1)))], 1u);
      });
      sync_cluster();
      if (rank == 0) decide(round + 1 < rounds);
      sync_cluster();
      memory.in_bin[threadIdx.x] = 0;
      __syncthreads();
    }
  }

  /// By the owner, a thread for each bin. `again`: there may be another round.
  __device__ void decide(bool again) {
    const int k = static_cast<int>(call.landmarks.shape[3]), bin = threadIdx.x;
    int here = 0;
#pragma unroll
    for (int block = 0; block < most_blocks; ++block)
      if (block < blocks) here += static_cast<int>(*in_block_of_cluster(&memory.in_bin[bin], block));
    int from_here = here;  // scores in this bin or above
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_down_sync(0xffffffffu, from_here, step);
      from_here += lane + step < 32 ? other : 0;
    }
    if (lane == 0) memory.of_warp[warp] = from_here;
    __syncthreads();
#pragma unroll
    for (int other = 1; other < warps; ++other)
      if (warp + other < warps) from_here += memory.of_warp[warp + other];
    const bool is_kth = from_here >= k && from_here - here < k;
    if (is_kth || (bin == 0 && from_here < k)) {
      Decision decision = memory.decision;
      constexpr int enough_room = most_survivors / 4 * 3;  // what is found beside these, within the margin, fits too
      decision.searched = is_kth && again && from_here > min(2 * k + 64, enough_room);
      if (is_kth) {                                          // else fewer than K: nothing is known beyond what was
        constexpr float finer = bins / 2, below = bins / 4;  // this bin, and a part of those beside it
        decision.kept = decision.tried;
        decision.bound = static_cast<float>(bin);
        decision.tried = {finer * decision.kept.per_score, finer * (decision.kept.offset - decision.bound) + below};
      }
      memory.next_decision = decision;
    }
    __syncthreads();
    if (bin < blocks) *in_block_of_cluster(&memory.decision, bin) = memory.next_decision;
  }

  /// Step 3, up to the owner's candidates. When it ends no block looks at another one's memory any more.
  __device__ void collect() {
    if (!memory.state.by_radix)
      for_scores([this, margin = memory.state.rough.margin, bin_of = memory.decision.kept,
                  bound = memory.decision.bound](float score, std::int32_t of_token) {
        if (!(bin_of(score + margin) >= bound)) return;
        const int place = atomicAdd(&memory.found, 1);
        if (place < most_survivors) memory.token[place] = of_token;
      });
    sync_cluster();
    if (rank == 0) gather();
    sync_cluster();
  }

  __device__ void gather() {
    constexpr int share = threads / most_blocks;
    const int from = threadIdx.x / share;  // the block that this thread copies from
    int all = 0, before = 0, here = 0;
#pragma unroll
    for (int block = 0; block < most_blocks; ++block) {
      const int found = block < blocks ? *in_block_of_cluster(&memory.found, block) : 0;
      all += found;
      before += block < from ? found : 0;
      here = block == from ? found : here;
    }
    const bool whole = all <= most_survivors;
    if (threadIdx.x == 0) {
      memory.owned.state = memory.state;
      memory.owned.state.survivors = whole ? all : most_survivors + 1;
    }
    if (!whole || from >= blocks) return;
    const std::int32_t* const tokens = in_block_of_cluster(memory.token, from);
#pragma unroll 1
    for (int i = threadIdx.x % share; i < here; i += share) memory.owned.index[before + i] = tokens[i];
  }

  __device__ void run() {
    describe_list();
    search();
    collect();
    if (rank != 0) return;
    Ranking{&memory.owned, 1, call.landmarks.shape[3]}.write();
    if (memory.owned.state.by_radix || memory.owned.state.survivors > most_survivors)
      write_by_radix(memory.owned.state.list, memory.radix);
  }
};

}  // namespace dsalt::cuda::hopper
