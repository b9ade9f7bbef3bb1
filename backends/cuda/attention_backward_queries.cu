// dq_i = scale sum_{j in A(i)} ds_ij k_j, and each row's part of dw (docs/semantics.md, "Gradients"): one block of
// threads per tile of 64 rows walks over its blocks of keys as the forward pass does. A row's bits depend on its own
// keys only.
#include "attention_backward.cuh"
#include "attention_rows.cuh"

namespace dsalt::cuda {
namespace {

template <class T, int width>
struct QueriesMemory {
  T q[Tile<T, width>::size], dout[Tile<T, width>::size], k[Tile<T, width>::size], v[Tile<T, width>::size];
  T exchange[attention_tile * exchange_stride<T> + vector_length<T>];
  AttentionRow<T> rows[attention_tile];
  int keys[attention_tile];
  accumulator_t<T> log_weight[attention_tile];  // landmark_bias() of it
  accumulator_t<T> soft_edge[extra_elements];   // left out without soft edges
};

template <class T, int width>
__global__ void __launch_bounds__(attention_threads)
    attention_backward_queries_kernel(AttentionBackwardCall<T> backward) {
  using Real = accumulator_t<T>;
  constexpr int thread_rows = Scores<T>::rows;
  const AttentionCall<T>& call = backward.call;
  auto& memory = *dynamic_shared_memory<QueriesMemory<T, width>>();
  const Tile<T, width> q_tile{memory.q}, dout_tile{memory.dout}, k_tile{memory.k}, v_tile{memory.v};
  const int pieces = backward.dq.present() ? (call.d + width - 1) / width : 1;
  const int first_column = static_cast<int>(blockIdx.x % pieces) * width;
  std::int64_t tile = call.row_tiles - 1 - blockIdx.x / pieces % call.row_tiles;  // long causal rows first
  const int z = static_cast<int>(blockIdx.x / pieces / call.row_tiles);
  const SequenceRows s = call.row_tile(tile, tile);
  const std::int64_t first_row = tile * attention_tile,
                     row_count = static_cast<std::int64_t>(s.nq) * call.heads_per_row_head;
  if (first_row >= row_count) return;
  const int kv_head = call.kv_head_of_row_head(z);

  if (threadIdx.x < attention_tile) memory.rows[threadIdx.x].fill(call, s, z, first_row + threadIdx.x);
  __syncthreads();
  const auto query_row = [&](const auto& tensor, int n) {
    return first_row + n < row_count ? tensor.at(s.b, memory.rows[n].head, s.q_start + memory.rows[n].query) : nullptr;
  };
  const auto load_q = [&](int first) {
    load_tile(q_tile, call.q, first, call.d, [&](int n) { return query_row(call.q, n); });
  };
  const auto load_dout = [&](int first) {
    load_tile(dout_tile, backward.dout, first, call.dv, [&](int n) { return query_row(backward.dout, n); });
  };

  RowBounds bounds[thread_rows];
  std::int64_t list[thread_rows];
  Real lse[thread_rows], delta[thread_rows], dwindow[thread_rows];
#pragma unroll
  for (int r = 0; r < thread_rows; ++r) {
    const int n = Ownership<T>::row(r);
    const bool present = first_row + n < row_count;
    bounds[r] = memory.rows[n].bounds();
    list[r] = call.list_of(memory.rows[n].query);
    lse[r] = present ? backward.row_lse[backward.row_place(s, z, first_row + n)] : Real{0};
    delta[r] = present ? backward.row_delta[backward.row_place(s, z, first_row + n)] : Real{0};
    dwindow[r] = 0;
  }
  Sums<T, width> dq;
  dq.clear();
  load_q(0);
  load_dout(0);

  for (KeyBlocks<T> block(call, s, z, TileExtent::of(memory.rows)); block.valid(); block.next(call)) {
    const auto load_keys = [&](const Tile<T, width>& to, const RowTensor<const T>& from, int first, int columns) {
      const T* base = from.at(s.b, kv_head, s.k_start);
      load_tile(to, from, first, columns, [&](int n) {
        const int key = block.key(n);
        return key == no_key ? nullptr : base + key * from.row;
      });
    };
    const auto load_k = [&](int first) { load_keys(k_tile, call.k, first, call.d); };
    const auto load_v = [&](int first) { load_keys(v_tile, call.v, first, call.dv); };
    __syncthreads();  // nobody reads the block before any more
    load_k(0);
    copy_async_commit();
    load_v(0);
    copy_async_commit();
    if (threadIdx.x < attention_tile) {
      memory.keys[threadIdx.x] = block.key(threadIdx.x);
      memory.log_weight[threadIdx.x] = landmark_bias(backward, block.log_weight(call, s.b, z, threadIdx.x));
    }
    copy_async_wait<1>();
    __syncthreads();
    Scores<T> score, dp;
    score.clear();
    dp.clear();
    add_all_scores(score, q_tile, k_tile, call.d, load_q, load_k);
    copy_async_wait<0>();
    __syncthreads();
    add_all_scores(dp, dout_tile, v_tile, call.dv, load_dout, load_v);

    const auto row_of = [&](int r, int) -> const AttentionRow<T>& { return memory.rows[Ownership<T>::row(r)]; };
    const auto key_of = [&](int, int c) { return memory.keys[Scores<T>::column(c)]; };
    const bool dense = block.dense(), whole = block.whole(), soft = call.soft && dense;
    const std::uint32_t kept = call.drops ? kept_by_dropout(call, s.b, row_of, key_of) : ~0u;
    if (soft) soft_edge_biases(call, memory.soft_edge, row_of, key_of);
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      const RowBounds admitted = block.bounds(bounds[r], list[r]);
#pragma unroll
      for (int c = 0; c < Scores<T>::columns; ++c) {
        const int n = Scores<T>::column(c);
        Real logit = score(r, c) * call.score_factor;
        if (soft) logit += memory.soft_edge[extra_place<T>(r, c)];
        if (!dense) logit += memory.log_weight[n];
        Real slope = dp(r, c);
        if (call.drops) slope = kept >> (c * thread_rows + r) & 1 ? slope * call.keep_factor : Real{0};
        slope = weight_of<T>(logit, lse[r], !dense) * (slope - delta[r]);
        score(r, c) = whole || admitted.admits(memory.keys[n], dense) ? slope : Real{0};
        if (soft) memory.soft_edge[extra_place<T>(r, c)] = score(r, c);
      }
    }
    if (soft && backward.row_dwindow != nullptr) {
#pragma unroll 1
      for (int c = 0; c < Scores<T>::columns; ++c)
#pragma unroll
        for (int r = 0; r < thread_rows; ++r) {
          const AttentionRow<T>& row = row_of(r, c);
          const int key = key_of(r, c);
          if (row.bounds().admits(key, true) && row.in_edge(key))
            dwindow[r] += memory.soft_edge[extra_place<T>(r, c)] * sigmoid(-row.edge_argument(call, key)) /
                          static_cast<Real>(call.tau);
        }
    }
    if (!backward.dq.present()) continue;
    load_piece<width>(call.d, first_column, load_k);
    add_sums(dq, score, k_tile, memory.exchange);
  }

  copy_async_commit();  // the rows' own, where no block followed
  copy_async_wait<0>();
  __syncthreads();
  if (backward.row_dwindow != nullptr && first_column == 0) {
#pragma unroll
    for (int r = 0; r < thread_rows; ++r) {
      const Real sum = Ownership<T>::row_sum(dwindow[r]);
      const std::int64_t n = first_row + Ownership<T>::row(r);
      if (threadIdx.x % Ownership<T>::lanes == 0 && n < row_count)
        backward.row_dwindow[backward.row_place(s, z, n)] = sum;
    }
  }
  if (!backward.dq.present()) return;
#pragma unroll
  for (int r = 0; r < thread_rows; ++r)
#pragma unroll
    for (int c = 0; c < Sums<T, width>::columns; ++c) dq(r, c) *= call.scale;
  const bool fall_back = find_not_finite(dq, memory.keys);
  store_tile(dq, q_tile, backward.dq, first_column, call.d, [&](int n) { return query_row(backward.dq, n); });
  if (!fall_back) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int n = warp * 16; n < warp * 16 + 16; ++n) {
    T* to = query_row(backward.dq, n);
    if (memory.keys[n] == 0 || to == nullptr) continue;
    const AttentionRow<T>& query = memory.rows[n];
    const T *q_row = query_row(call.q, n), *dout_row = query_row(backward.dout, n);
    const std::int64_t place = backward.row_place(s, z, first_row + n);
    RowSum<T, width> sum;
    for_each_admitted(call, s, z, query, [&](int key, Real bias, bool is_landmark) {
      const T *k = call.k.at(s.b, kv_head, s.k_start + key), *v = call.v.at(s.b, kv_head, s.k_start + key);
      const Real logit = warp_dot(q_row, call.q.element, k, call.k.element, call.d) * call.score_factor +
                         (is_landmark ? bounded_bias(backward, bias) : bias);
      Real slope = 0;
      if (!call.drops || dropout_keeps(call, s.b, query.head, query.query, key)) {
        slope = warp_dot(dout_row, backward.dout.element, v, call.v.element, call.dv);
        if (call.drops) slope *= call.keep_factor;
      }
      sum.add(weight_of<T>(logit, backward.row_lse[place], is_landmark) * (slope - backward.row_delta[place]), k,
              call.k.element, first_column, call.d);
    });
    sum.store(call.scale, to, backward.dq.element, first_column, call.d);
  }
}

}  // namespace

template <class T>
void launch_attention_backward_queries(const Context& context, const AttentionBackwardCall<T>& backward) {
  const AttentionCall<T>& call = backward.call;
  for_tile_width<T>(context, call.d, call.dv, 4, [&](auto width) {
    const std::int64_t pieces = backward.dq.present() ? ceil_div(call.d, width) : 1;
    launch(context, "attention_backward", attention_backward_queries_kernel<T, width>,
           call.row_tiles * call.row_heads * pieces, dim3(attention_threads),
           shared_bytes(sizeof(QueriesMemory<T, width>), call), backward);
  });
}

template void launch_attention_backward_queries(const Context&, const AttentionBackwardCall<double>&);
template void launch_attention_backward_queries(const Context&, const AttentionBackwardCall<float>&);
template void launch_attention_backward_queries(const Context&, const AttentionBackwardCall<bf16>&);
template void launch_attention_backward_queries(const Context&, const AttentionBackwardCall<f16>&);

}  // namespace dsalt::cuda
