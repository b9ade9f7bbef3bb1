// The forward kernel for landmark lists that few queries read (list_tile.cuh): the landmarks' part of every row, merged
// with the window's part (docs/semantics.md, "Merge"), which is in out and lse already where there is a window.
//
// Scores are Q K^T, sums are V^T P^T, so that the weights of a step are an operand as they are. One warp takes a tile,
// or the four of a block share its list and add up in the order of the warps. Which of the two is the
// same for every part of a call, and an entry that a row does not admit changes none of its bits: a row's result does
// not depend on the other rows.
#pragma once

#include "list_tile.cuh"

namespace dsalt::cuda::hopper {

template <class T>
struct ListForwardParameters {
  AttentionCall<T> call;
  ListTiles tiles;
  Rows<T> out;
  Rows<float> lse;  // may be absent, if there is no window
  bool has_window;
};

template <class T, int kHead, int kRows>
struct ListForward {
  static constexpr int row_blocks = kRows / 8;
  /// What a warp that shares a list hands on.
  struct Part {
    float sums[kRows * kHead / 32][32];
    float maximum[kRows], total[kRows];
  };

  const ListForwardParameters<T>& p;
  const AttentionCall<T>& call;
  const ListTile<T>& tile;
  int lane, g, t;
  AlongRow<kHead> q[row_blocks];
  RowBounds bounds[row_blocks];
  float maximum[row_blocks], total[row_blocks];  // of rows g, g + 8; totals of this lane's entries
  RowSums<kHead, kRows> sums;

  __device__ ListForward(const ListForwardParameters<T>& parameters, const ListTile<T>& tile_)
      : p(parameters),
        call(parameters.call),
        tile(tile_),
        lane(static_cast<int>(threadIdx.x) % 32),
        g(lane / 4),
        t(lane % 4) {
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
      const int r = 8 * n + g;
      int query = 0, head = 0;
      if (r < tile.rows) tile.split_row(call, p.tiles, r, query, head);
      q[n].load(call.q.at(tile.s.b, head, tile.s.q_start + query), t, r < tile.rows);
      bounds[n] = tile.bounds(call, p.tiles, r);
      maximum[n] = -INFINITY;
      total[n] = 0;
    }
    sums.clear();
  }

  /// Entries from `start` on, 16 every `stride`. `next`: the first of them.
  __device__ void add_list(Entries<T> next, int start, int stride) {
    const int kv_head = call.kv_head_of_row_head(tile.z);
    const T* k = call.k.at(tile.s.b, kv_head, tile.s.k_start);
    const T* v = call.v.at(tile.s.b, kv_head, tile.s.k_start);
    while (!next.none()) {
      const Entries<T> now = next;
      start += stride;
      next = Entries<T>(call, tile, start, lane);
      add_step(now, k, v);
    }
  }

  __device__ void add_step(const Entries<T>& now, const T* k, const T* v) {
    AlongRow<kHead> keys[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int key = now.key_of(8 * n + g);
      keys[n].load(k + (key == no_key ? 0 : key) * call.k.row, t, key != no_key);
    }
    int key[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) key[c] = now.key_of(EntryScores::entry(t, c));
    AcrossRows<kHead> values;
    values.load(g, t, [&](int n) -> const T* {
      const int mine = key[n % 2 + n / 8 * 2];
      return mine == no_key ? nullptr : v + mine * call.v.row;
    });
    EntryScores s;
    entry_scores<T, kHead, kRows>(s, q, keys);
    float bias[4] = {};
    if (call.weight.present()) {
#pragma unroll
      for (int c = 0; c < 4; ++c) bias[c] = now.bias_of(EntryScores::entry(t, c));
    }
    float factor[row_blocks];
    bool scales = false;
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
      factor[n] = weigh(s, n, key, bias);
      scales |= factor[n] != 1;
    }
    if (__any_sync(0xffffffffu, scales)) scale_sums(factor);
    add_entries<T>(sums, s, values);
  }

  /// Scores of row block n become weights; returns what earlier sums of the row shrink by.
  __device__ float weigh(EntryScores& s, int n, const int (&key)[4], const float (&bias)[4]) {
    float top = maximum[n];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& score = s.at(n, c);
      score = bounds[n].admits(key[c], false) ? fmaf(score, call.score_factor, bias[c]) : -INFINITY;
      top = fmaxf(top, score);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float origin = top == -INFINITY ? 0 : top;  // no key so far: all weights are 0
    const float factor = maximum[n] == top ? 1 : exp2_fast(maximum[n] - origin);
    maximum[n] = top;
    total[n] *= factor;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float& weight = s.at(n, c);
      weight = exp2_fast(weight - origin);
      total[n] += weight;
    }
    return factor;
  }

  /// `factor`: of rows g and g + 8; the sums are of rows 2 t and 2 t + 1.
  __device__ void scale_sums(const float (&factor)[row_blocks]) {
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
      const float even = __shfl_sync(0xffffffffu, factor[n], 8 * t),
                  odd = __shfl_sync(0xffffffffu, factor[n], 8 * t + 4);
#pragma unroll
      for (auto& d : sums.tile[n]) {
        d[0] *= even;
        d[1] *= odd;
        d[2] *= even;
        d[3] *= odd;
      }
    }
  }

  /// Adds a row's total up over the lanes that have its entries.
  __device__ void finish_totals() {
#pragma unroll
    for (float& value : total) {
      value += __shfl_xor_sync(0xffffffffu, value, 1);
      value += __shfl_xor_sync(0xffffffffu, value, 2);
    }
  }

  /// The parts of the block's warps become one, in the first of them.
  __device__ void combine(Part* parts) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    constexpr int warps = list_tile_threads / 32;
    if (t == 0) {
#pragma unroll
      for (int n = 0; n < row_blocks; ++n) parts[warp].maximum[8 * n + g] = maximum[n];
    }
    __syncthreads();
    float factor[row_blocks];
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
      float top = -INFINITY;
#pragma unroll
      for (int w = 0; w < warps; ++w) top = fmaxf(top, parts[w].maximum[8 * n + g]);
      factor[n] = top == -INFINITY ? 1 : exp2_fast(maximum[n] - top);
      maximum[n] = top;
      total[n] *= factor[n];
      if (warp > 0 && t == 0) parts[warp].total[8 * n + g] = total[n];
    }
    scale_sums(factor);
    if (warp > 0) for_sums([&](int place, float& value) { parts[warp].sums[place][lane] = value; });
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < warps; ++w) {
      for_sums([&](int place, float& value) { value += parts[w].sums[place][lane]; });
#pragma unroll
      for (int n = 0; n < row_blocks; ++n) total[n] += parts[w].total[8 * n + g];
    }
  }
  template <class Body>
  __device__ void for_sums(Body&& body) {
    int place = 0;
#pragma unroll
    for (auto& tiles : sums.tile)
#pragma unroll
      for (auto& d : tiles)
#pragma unroll
        for (float& value : d) body(place++, value);
  }

  /// out and lse. A row that admits no landmark keeps the window's, bit for bit.
  __device__ void store() {
    float weight[row_blocks], window_weight[row_blocks];
    bool mine[row_blocks];
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
      const int r = 8 * n + g;
      const bool some = total[n] != 0;
      mine[n] = r < tile.rows && (some || !p.has_window);
      weight[n] = some ? 1 / total[n] : 0;
      window_weight[n] = 0;
      float* at = nullptr;
      if (mine[n] && p.lse.data != nullptr) {
        int query, head;
        tile.split_row(call, p.tiles, r, query, head);
        at = p.lse.at(static_cast<int>(tile.s.b), head, tile.s.q_start + query);
      }
      float lse = some ? (maximum[n] + log2f(total[n])) * log_unit<float> : -INFINITY;
      const float window_lse = p.has_window && at != nullptr ? *at : -INFINITY;
      if (window_lse != -INFINITY) {
        const float largest = fmaxf(lse, window_lse);
        const float e = expf(lse - largest), window_e = expf(window_lse - largest), both = e + window_e;
        weight[n] *= e / both;
        window_weight[n] = window_e / both;
        lse = largest + logf(both);
      }
      __syncwarp();  // all four lanes of the row have read it
      if (t == 0 && at != nullptr) *at = lse;
    }
#pragma unroll
    for (int n = 0; n < row_blocks; ++n)
#pragma unroll
      for (int half_row = 0; half_row < 2; ++half_row) {
        const int source = 8 * t + 4 * half_row, r = 8 * n + 2 * t + half_row;
        const float factor = __shfl_sync(0xffffffffu, weight[n], source),
                    window_factor = __shfl_sync(0xffffffffu, window_weight[n], source);
        if (!__shfl_sync(0xffffffffu, mine[n], source)) continue;
        store_row(n, half_row, r, factor, window_factor);
      }
  }
  __device__ void store_row(int n, int half_row, int r, float factor, float window_factor) {
    int query, head;
    tile.split_row(call, p.tiles, r, query, head);
    T* out = p.out.at(static_cast<int>(tile.s.b), head, tile.s.q_start + query) + 8 * g;
#pragma unroll
    for (int half = 0; half < kHead / 64; ++half) {
      float value[8], window[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) value[e] = sums.at(n, half_row, half, e) * factor;
      if (window_factor != 0) {
        widen_words(load_words<T>(out + 64 * half), window);
#pragma unroll
        for (int e = 0; e < 8; ++e) value[e] = fmaf(window[e], window_factor, value[e]);
      }
      store_vector<8>(value, out + 64 * half);
    }
  }
  template <class U>
  __device__ static Words<U, 8> load_words(const U* from) {
    return {*reinterpret_cast<const uint4*>(from)};
  }
};

/// One block per tile, of a list that is long enough for four warps: share_list().
template <class T, int kHead, int kRows>
__global__ void __launch_bounds__(list_tile_threads, kHead == 128 && kRows == 16 ? 2 : 3)
    long_list_forward_kernel(ListForwardParameters<T> p) {
  using F = ListForward<T, kHead, kRows>;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const ListTile<T> tile(p.call, p.tiles, kRows, static_cast<int>(blockIdx.x));
  if (!tile.exists()) return;
  const int start = warp * list_entries;
  F forward(p, tile);
  forward.add_list(Entries<T>(p.call, tile, start, lane), start, list_tile_threads / 32 * list_entries);
  forward.finish_totals();
  forward.combine(dynamic_shared_memory<typename F::Part>());
  if (warp == 0) forward.store();
}

/// One warp per tile. The four of a block often have the same list: what one reads the others find in the cache.
template <class T, int kHead, int kRows>
__global__ void __launch_bounds__(list_tile_threads, kHead == 128 && kRows == 16 ? 2 : 3)
    list_forward_kernel(ListForwardParameters<T> p) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            n = static_cast<int>(blockIdx.x) * (list_tile_threads / 32) + warp;
  if (n >= p.tiles.tiles) return;
  const ListTile<T> tile(p.call, p.tiles, kRows, n);
  if (!tile.exists()) return;
  const Entries<T> entries(p.call, tile, 0, lane);  // on their way first
  ListForward<T, kHead, kRows> forward(p, tile);
  forward.add_list(entries, 0, list_entries);
  forward.finish_totals();
  forward.store();
}

}  // namespace dsalt::cuda::hopper
