// The backward kernel for landmark lists that few queries read (list_tile.cuh). A warp has 16 entries of a tile's list
// at a time:
//
//   S = Q K^T, P = exp2(scale_log2 S + bias - lse_log2), dP = dO V^T, dS = P (dP - delta)
//   dQ += dS K                           sums in registers
//   dV_e = P^T dO, dK_e = dS^T Q         of the tile's rows: added to the key's float32 sums in global memory
//
// P and dS are rounded and exchanged between lanes once (transposed()), so that every product is one of those of the
// forward kernel. Additions come in any order.
#pragma once

#include "list_backward.hpp"
#include "tma.cuh"

namespace dsalt::cuda::hopper {

/// Weights of 16 rows and 16 entries, rounded, as operands: pair (r, c) of row g + 8 r has entries 8 c + 2 t and the
/// next.
struct WeightPairs {
  std::uint32_t pair[2][2] = {};

  template <class T>
  __device__ void set(int r, EntryScores& s) {
#pragma unroll
    for (int c = 0; c < 2; ++c) pair[r][c] = narrow_pair<T>(s.at(r, 2 * c), s.at(r, 2 * c + 1));
  }
  /// Rows and entries exchanged: pair (r, c) of entry g + 8 r has rows 8 c + 2 t and the next.
  __device__ WeightPairs transposed(int g, int t) const {
    WeightPairs result;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const std::uint32_t mine = pair[c][r];  // rows 8 c + .., entries 8 r + ..
        const std::uint32_t even = __shfl_sync(0xffffffffu, mine, 8 * t + g / 2),
                            odd = __shfl_sync(0xffffffffu, mine, 8 * t + 4 + g / 2);
        result.pair[r][c] = g % 2 ? even >> 16 | (odd & 0xffff0000u) : (even & 0xffffu) | odd << 16;
      }
    return result;
  }
};

/// Half `half` of 64 columns of 16 rows over which products add, times weights.
template <class T, int kRows>
__device__ inline void add_weighted(RowSums<64, kRows>& sums, const WeightPairs& weights, const AcrossRows<64>& rows) {
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    std::uint32_t a[4];
    rows.operand(m, a);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) mma_16x8x16<T>(sums.tile[n][m], a, weights.pair[n]);
  }
}

template <class T, int kHead, int kRows>
struct ListBackward {
  static constexpr int row_blocks = kRows / 8, halves = kHead / 64;

  const ListBackwardParameters<T>& p;
  const AttentionCall<T>& call;
  const ListTile<T>& tile;
  int lane, g, t;
  AlongRow<kHead> q[row_blocks], dout[row_blocks];
  RowBounds bounds[row_blocks];
  float lse[row_blocks], delta[row_blocks];
  RowSums<64, kRows> dq[halves];

  __device__ ListBackward(const ListBackwardParameters<T>& parameters, const ListTile<T>& tile_)
      : p(parameters),
        call(parameters.call),
        tile(tile_),
        lane(static_cast<int>(threadIdx.x) % 32),
        g(lane / 4),
        t(lane % 4) {
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
      const int r = 8 * n + g;
      const bool exists = r < tile.rows;
      int query = 0, head = 0;
      if (exists) tile.split_row(call, p.tiles, r, query, head);
      q[n].load(call.q.at(tile.s.b, head, tile.s.q_start + query), t, exists);
      dout[n].load(p.dout.at(static_cast<int>(tile.s.b), head, tile.s.q_start + query), t, exists);
      bounds[n] = tile.bounds(call, p.tiles, r);
      lse[n] = INFINITY;  // its weights are 0
      delta[n] = 0;
      if (!exists) continue;
      const std::int64_t at = slot_of(query, head) * p.statistics_stride + query % p.query_rows;
      lse[n] = p.lse[at];
      delta[n] = p.delta[at];
    }
#pragma unroll
    for (auto& sums : dq) sums.clear();
  }
  __device__ std::int64_t slot_of(int query, int head) const {
    return p.slots.slot(p.queries, p.query_rows, static_cast<int>(tile.s.b), head, query / p.query_rows);
  }

  /// 16 entries, and where the gradients of their keys are added up.
  struct Step : Entries<T> {
    std::int64_t sums = 0;

    __device__ Step(const ListBackward& b, int kv_head, int start) : Entries<T>(b.call, b.tile, start, b.lane) {
      if (this->key == no_key) return;
      const std::int64_t place = key_place(b.call, b.tile.s.b, kv_head, b.tile.s.k_start, this->key);
      sums = static_cast<std::int64_t>(b.p.landmarks.row[place] - 1) * 2 * kHead;
    }
    __device__ std::int64_t sums_of(int n) const { return __shfl_sync(0xffffffffu, sums, n); }
  };

  /// Entries first, first + stride, ... of the list, 16 at a time.
  __device__ void add_list(int first, int stride) {
    const int kv_head = call.kv_head_of_row_head(tile.z);
    const T* k = call.k.at(tile.s.b, kv_head, tile.s.k_start);
    const T* v = call.v.at(tile.s.b, kv_head, tile.s.k_start);
    Step next(*this, kv_head, first);
    for (int start = first; !next.none(); start += stride) {
      const Step now = next;
      next = Step(*this, kv_head, start + stride);
      add_step(now, start, k, v);
    }
  }

  __device__ void add_step(const Step& now, int start, const T* k, const T* v) {
    int key[4];
    bool any = false;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      key[c] = now.key_of(EntryScores::entry(t, c));
#pragma unroll
      for (int n = 0; n < row_blocks; ++n) any |= bounds[n].admits(key[c], false);
    }
    if (!__any_sync(0xffffffffu, any)) return;

    EntryScores weights, ds;
    const auto scores = [&](EntryScores& s, const AlongRow<kHead>(&rows)[row_blocks], const T* from,
                            std::int64_t stride) {
      AlongRow<kHead> entries[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int mine = now.key_of(8 * n + g);
        entries[n].load(from + (mine == no_key ? 0 : mine) * stride, t, mine != no_key);
      }
      entry_scores<T, kHead, kRows>(s, rows, entries);
    };
    scores(weights, q, k, call.k.row);
    scores(ds, dout, v, call.v.row);
    float dlambda[4] = {};
    WeightPairs weight_pairs, ds_pairs;
#pragma unroll
    for (int n = 0; n < row_blocks; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float bias = call.weight.present() ? now.bias_of(EntryScores::entry(t, c)) : 0;
        float& weight = weights.at(n, c);
        weight = bounds[n].admits(key[c], false) ? landmark_weight(fmaf(weight, p.scale_log2, bias), lse[n]) : 0;
        float& gradient = ds.at(n, c);
        gradient = weight == 0 ? 0 : weight * (gradient - delta[n]);
        dlambda[c] += gradient;
      }
      weight_pairs.template set<T>(n, weights);
      ds_pairs.template set<T>(n, ds);
    }
    if (p.landmarks.dlambda != nullptr) add_dlambda(dlambda, start, key);

#pragma unroll
    for (int half = 0; half < halves; ++half) {
      AcrossRows<64> keys;
      keys.load(g, t, [&](int n) -> const T* {
        const int mine = key[n % 2 + n / 8 * 2];
        return mine == no_key ? nullptr : k + mine * call.k.row + 64 * half;
      });
      add_weighted<T>(dq[half], ds_pairs, keys);
    }
    add_to_keys(now, key, weight_pairs.transposed(g, t), kHead, [&](int query, int head) {
      return p.dout.at(static_cast<int>(tile.s.b), head, tile.s.q_start + query);
    });
    add_to_keys(now, key, ds_pairs.transposed(g, t), 0,
                [&](int query, int head) { return call.q.at(tile.s.b, head, tile.s.q_start + query); });
  }

  __device__ void add_dlambda(float (&dlambda)[4], int start, const int (&key)[4]) const {
    float* to =
        p.landmarks.dlambda + ((tile.s.b * call.row_heads + tile.z) * call.lists + tile.list) * call.slots + start;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) dlambda[c] += __shfl_xor_sync(0xffffffffu, dlambda[c], step);
      if (g == 0 && key[c] != no_key) atomicAdd(to + EntryScores::entry(t, c), dlambda[c]);
    }
  }

  /// The sums of the entries' keys, from `column` on, += weights^T times the tile's rows of a tensor.
  template <class RowOf>
  __device__ void add_to_keys(const Step& now, const int (&key)[4], const WeightPairs& weights, int column,
                              RowOf&& row_of) const {
    std::int64_t sums_at[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) sums_at[c] = now.sums_of(EntryScores::entry(t, c)) + column;
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      AcrossRows<64> rows;
      rows.load(g, t, [&](int r) -> const T* {
        if (r >= min(tile.rows, kRows)) return nullptr;
        int query, head;
        tile.split_row(call, p.tiles, r, query, head);
        return row_of(query, head) + 64 * half;
      });
      RowSums<64, 16> sums;  // of the entries
      sums.clear();
      add_weighted<T>(sums, weights, rows);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        // Two lanes have 16 elements in a row. They exchange, so that an instruction adds to whole sectors of 32 bytes,
        // in the order of sum_of_column().
        const bool odd = g % 2 != 0;
        float mine[2][4];
#pragma unroll
        for (int part = 0; part < 2; ++part)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float first = sums.at(c / 2, c % 2, 0, 4 * part + e),
                        second = sums.at(c / 2, c % 2, 0, 4 * part + e + 2);
            const float other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 4);
            mine[part][e] = odd ? other : first;
            mine[part][e + 2] = odd ? second : other;
          }
        if (key[c] == no_key) continue;
        float* to = p.landmarks.dk_dv + sums_at[c] + 64 * half + g / 2 * 16 + g % 2 * 4;
#pragma unroll
        for (int part = 0; part < 2; ++part)
          reduce_add(to + 8 * part, mine[part][0], mine[part][1], mine[part][2], mine[part][3]);
      }
    }
  }

  /// dq, into sums in the order of the sparse kernel's threads (add_query_gradient()).
  __device__ void store() {
#pragma unroll
    for (int n = 0; n < row_blocks; ++n)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int r = 8 * n + 2 * t + odd;
        if (r >= tile.rows) continue;
        int query, head;
        tile.split_row(call, p.tiles, r, query, head);
        const int row = query % p.query_rows;
        float* slot = p.slots.dq + slot_of(query, head) * p.query_rows * kHead;
        slot += kHead == 64 ? row / 64 * 4096 : 0;
        slot += g * 512 + (row % 64 / 16 * 32 + row % 8 * 4) * 4 + row % 16 / 8 * 2;
#pragma unroll
        for (int half = 0; half < halves; ++half)
#pragma unroll
          for (int e = 0; e < 8; e += 2)
            reduce_add(slot + half * 4096 + e * 2, dq[half].at(n, odd, 0, e), dq[half].at(n, odd, 0, e + 1));
      }
  }
};

template <class T, int kHead, int kRows, bool kShared>
__global__ void __launch_bounds__(list_tile_threads, kHead == 128 && kRows == 16 ? 2 : 3)
    list_backward_kernel(ListBackwardParameters<T> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(DSALT_EMULATED)
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = list_tile_threads / 32;
  const int n = kShared ? static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x) * warps + warp;
  if (n >= p.tiles.tiles) return;
  const ListTile<T> tile(p.call, p.tiles, kRows, n);
  if (!tile.exists()) return;
  ListBackward<T, kHead, kRows> backward(p, tile);
  backward.add_list(kShared ? list_entries * warp : 0, (kShared ? warps : 1) * list_entries);
  backward.store();
#endif
}

}  // namespace dsalt::cuda::hopper
