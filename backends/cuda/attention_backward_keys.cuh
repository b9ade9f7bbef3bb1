// Gradients of 64 keys at a time, for the passes over dense keys and over landmarks: the keys are the rows of the
// products, and tiles of query rows are added one after the other.
#pragma once

#include "attention_backward.cuh"

namespace dsalt::cuda {

template <class T, int width>
struct KeysMemory {
  T k[Tile<T, width>::size], v[Tile<T, width>::size], q[Tile<T, width>::size], dout[Tile<T, width>::size];
  T exchange[attention_tile * exchange_stride<T> + vector_length<T>];
  AttentionRow<T> rows[attention_tile];
  const T *q_row[attention_tile], *dout_row[attention_tile];  // null: no such row
  accumulator_t<T> lse[attention_tile], delta[attention_tile];
  std::uint32_t hits[attention_threads / 32], wholes[attention_threads / 32];
  accumulator_t<T> soft_edge[extra_elements];  // left out without soft edges
};

/// A block's keys and the sums over query rows that belong to them.
template <class T, int width>
struct KeyTile {
  using Real = accumulator_t<T>;
  static constexpr int rows = Scores<T>::rows;

  const AttentionBackwardCall<T>& backward;
  KeysMemory<T, width>& memory;
  SequenceRows s;
  bool dense;
  int kv_head, first_column;
  int key[rows];
  Real log_weight[rows], dlambda[rows];  // the former by landmark_bias()
  Sums<T, width> dk, dv;

  __device__ KeyTile(const AttentionBackwardCall<T>& call, KeysMemory<T, width>& shared, const SequenceRows& sequence,
                     bool is_dense, int head, int column)
      : backward(call), memory(shared), s(sequence), dense(is_dense), kv_head(head), first_column(column) {
    dk.clear();
    dv.clear();
#pragma unroll
    for (int r = 0; r < rows; ++r) log_weight[r] = dlambda[r] = 0;
  }

  template <class KeyOf>
  __device__ void load_keys(T* to, const RowTensor<const T>& from, int first, int columns, const KeyOf& key_of) {
    const T* base = from.at(s.b, kv_head, s.k_start);
    load_tile(Tile<T, width>{to}, from, first, columns, [&](int n) {
      const int j = key_of(n);
      return j == no_key ? nullptr : base + j * from.row;
    });
  }

  /// Adds rows [first_row, first_row + 64) of row head z that are before end_row. `whole`: they admit all of the keys.
  template <class KeyOf>
  __device__ void add_rows(int z, std::int64_t first_row, std::int64_t end_row, bool whole, const KeyOf& key_of) {
    const AttentionCall<T>& call = backward.call;
    const Tile<T, width> k_tile{memory.k}, v_tile{memory.v}, q_tile{memory.q}, dout_tile{memory.dout};
    __syncthreads();  // nobody reads the rows before any more
    const std::int64_t row = first_row + threadIdx.x;
    const bool present = threadIdx.x < attention_tile && row < end_row;
    if (threadIdx.x < attention_tile) {
      int query, head;
      call.split_row(z, row, query, head);
      memory.q_row[threadIdx.x] = present ? call.q.at(s.b, head, s.q_start + query) : nullptr;
      memory.dout_row[threadIdx.x] = present ? backward.dout.at(s.b, head, s.q_start + query) : nullptr;
    }
    __syncthreads();
    const auto load_q = [&](int first) {
      load_tile(q_tile, call.q, first, call.d, [&](int n) { return memory.q_row[n]; });
    };
    const auto load_dout = [&](int first) {
      load_tile(dout_tile, backward.dout, first, call.dv, [&](int n) { return memory.dout_row[n]; });
    };
    const auto load_k = [&](int first) { load_keys(memory.k, call.k, first, call.d, key_of); };
    const auto load_v = [&](int first) { load_keys(memory.v, call.v, first, call.dv, key_of); };
    load_q(0);
    copy_async_commit();
    load_dout(0);
    copy_async_commit();
    if (threadIdx.x < attention_tile) {
      const std::int64_t place = backward.row_place(s, z, row);
      memory.rows[threadIdx.x].fill(call, s, z, present ? row : INT64_MAX);
      memory.lse[threadIdx.x] = present ? backward.row_lse[place] : Real{0};
      memory.delta[threadIdx.x] = present ? backward.row_delta[place] : Real{0};
    }
    copy_async_wait<1>();
    __syncthreads();
    Scores<T> p, ds;
    p.clear();
    ds.clear();
    add_all_scores(p, k_tile, q_tile, call.d, load_k, load_q);
    copy_async_wait<0>();
    __syncthreads();
    add_all_scores(ds, v_tile, dout_tile, call.dv, load_v, load_dout);
    weigh(p, ds, whole);
    if (backward.dv.present() && first_column < call.dv) {
      load_piece<width>(call.dv, first_column, load_dout);
      add_sums(dv, p, dout_tile, memory.exchange);
    }
    if (backward.dk.present() && first_column < call.d) {
      load_piece<width>(call.d, first_column, load_q);
      add_sums(dk, ds, q_tile, memory.exchange);
    }
  }

  /// From <q,k> and <do,v> to r P and ds, 0 where not admitted.
  __device__ void weigh(Scores<T>& p, Scores<T>& ds, bool whole) {
    const AttentionCall<T>& call = backward.call;
    const auto row_of = [&](int, int c) -> const AttentionRow<T>& { return memory.rows[Scores<T>::column(c)]; };
    const auto key_of = [&](int r, int) { return key[r]; };
    const bool soft = call.soft && dense;
    const std::uint32_t kept = call.drops ? kept_by_dropout(call, s.b, row_of, key_of) : ~0u;
    if (soft) soft_edge_biases(call, memory.soft_edge, row_of, key_of);
#pragma unroll
    for (int c = 0; c < Scores<T>::columns; ++c) {
      const int n = Scores<T>::column(c);
      const RowBounds bounds = whole ? RowBounds{} : memory.rows[n].bounds();
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        Real logit = p(r, c) * call.score_factor + log_weight[r];
        if (soft) logit += memory.soft_edge[extra_place<T>(r, c)];
        Real weight = weight_of<T>(logit, memory.lse[n], !dense), keep = 1;
        if (!whole && !bounds.admits(key[r], dense)) weight = 0;
        if (call.drops) keep = kept >> (c * rows + r) & 1 ? call.keep_factor : Real{0};
        const Real slope = (keep == 0 ? Real{0} : keep * ds(r, c)) - memory.delta[n];
        p(r, c) = keep * weight;
        ds(r, c) = weight == 0 ? Real{0} : weight * slope;
        dlambda[r] += ds(r, c);
      }
    }
  }

  /// Loads k and v where one piece is all of them, to stay.
  template <class KeyOf>
  __device__ void start(const KeyOf& key_of) {
#pragma unroll
    for (int r = 0; r < rows; ++r) key[r] = key_of(Ownership<T>::row(r));
    load_keys(memory.k, backward.call.k, 0, backward.call.d, key_of);
    load_keys(memory.v, backward.call.v, 0, backward.call.dv, key_of);
  }
};

/// Of the key gradients that are asked for.
template <class T>
std::int64_t most_columns(const AttentionBackwardCall<T>& backward) {
  return std::max<std::int64_t>(
      {1, backward.dk.present() ? backward.call.d : 0, backward.dv.present() ? backward.call.dv : 0});
}

}  // namespace dsalt::cuda
