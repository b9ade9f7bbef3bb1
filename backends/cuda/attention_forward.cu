// o_i = sum_{j in A(i)} r_ij exp(s_ij - lse_i) v_j,  s_ij = scale <q_i, k_j> + beta_ij   (docs/semantics.md,
// "Attention")
//
// Online softmax, one block of threads per tile of 64 rows: it walks over the blocks of 64 keys that some row admits
// (attention_blocks.cuh) and keeps the scores of one block in registers. A block's values are on their way while its
// scores are computed, the next block's keys during the softmax. A row's bits depend on its own keys only: run, batch,
// prefill.
#include <optional>

#include "attention_pages.cuh"
#include "attention_rows.cuh"
#include "cuda_backend.hpp"
#include "hopper/decode_forward.hpp"
#include "hopper/dense_call.cuh"
#include "hopper/dense_forward.hpp"
#include "hopper/list_forward.hpp"
#include "hopper/sparse_forward.hpp"

namespace dsalt::cuda {
namespace {

template <class T>
struct ForwardOutputs {
  RowTensor<T> out;
  RowTensor<accumulator_t<T>> lse;
};

template <class T, int width>
struct ForwardMemory {
  T q[Tile<T, width>::size], k[Tile<T, width>::size], v[Tile<T, width>::size];
  T exchange[attention_tile * exchange_stride<T> + vector_length<T>];
  AttentionRow<T> rows[attention_tile];
  int keys[2][attention_tile];
  accumulator_t<T> log_weight[2][attention_tile];
  accumulator_t<T> soft_edge[extra_elements];  // left out without soft edges
};

/// Scores of a block become weights exp(s - m), 0 where not admitted; m and the running sum and sums follow the
/// maximum.
template <class T, int width>
struct OnlineSoftmax {
  using Real = accumulator_t<T>;
  static constexpr int rows = Ownership<T>::rows;

  RowBounds bounds[rows];
  std::int64_t list[rows];
  Real largest[rows], total[rows];
  Sums<T, width> sums;

  __device__ void start(const AttentionCall<T>& call, const AttentionRow<T>* tile) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const AttentionRow<T>& row = tile[Ownership<T>::row(r)];
      bounds[r] = row.bounds();
      list[r] = call.list_of(row.query);
      largest[r] = minus_infinity<Real>;
      total[r] = 0;
    }
    sums.clear();
  }

  /// Adds log-weights and soft edges; -infinity where not admitted.
  __device__ void mask(const KeyBlocks<T>& block, Scores<T>& s, const int* keys, const Real* log_weight,
                       const Real* soft_edge) const {
    const bool dense = block.dense();
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const RowBounds admitted = block.bounds(bounds[r], list[r]);
#pragma unroll
      for (int c = 0; c < Scores<T>::columns; ++c) {
        const int n = Scores<T>::column(c);
        if (dense && soft_edge != nullptr) s(r, c) += soft_edge[extra_place<T>(r, c)];
        if (!dense) s(r, c) += log_weight[n] * exp_unit<Real>;
        if (!admitted.admits(keys[n], dense)) s(r, c) = minus_infinity<Real>;
      }
    }
  }

  __device__ void weigh(Scores<T>& s) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      Real block_largest = s(r, 0);
#pragma unroll
      for (int c = 1; c < Scores<T>::columns; ++c) block_largest = max(block_largest, s(r, c));
      block_largest = Ownership<T>::row_max(block_largest);
      const Real now = max(largest[r], block_largest);
      const Real origin = now == minus_infinity<Real> ? Real{0} : now;  // no key so far: all weights are 0
      const Real shrink = exp_scaled(largest[r] - origin);
      largest[r] = now;
      total[r] *= shrink;
#pragma unroll
      for (int c = 0; c < Sums<T, width>::columns; ++c) sums(r, c) *= shrink;
#pragma unroll
      for (int c = 0; c < Scores<T>::columns; ++c) {
        s(r, c) = exp_scaled(s(r, c) - origin);
        total[r] += s(r, c);
      }
    }
  }

  __device__ void drop(const AttentionCall<T>& call, Scores<T>& s, std::uint32_t kept) const {
#pragma unroll
    for (int c = 0; c < Scores<T>::columns; ++c)
#pragma unroll
      for (int r = 0; r < rows; ++r) s(r, c) = kept >> (c * rows + r) & 1 ? s(r, c) * call.keep_factor : Real{0};
  }
};

template <class T, int width>
__global__ void __launch_bounds__(attention_threads)
    attention_forward_kernel(AttentionCall<T> call, ForwardOutputs<T> outputs) {
  using Real = accumulator_t<T>;
  auto& memory = *dynamic_shared_memory<ForwardMemory<T, width>>();
  const Tile<T, width> q_tile{memory.q}, k_tile{memory.k}, v_tile{memory.v};
  const int pieces = (call.d + width - 1) / width, out_pieces = (call.dv + width - 1) / width;
  const int first_value = static_cast<int>(blockIdx.x % out_pieces) * width;
  std::int64_t tile = call.row_tiles - 1 - blockIdx.x / out_pieces % call.row_tiles;  // long causal rows first
  const int z = static_cast<int>(blockIdx.x / out_pieces / call.row_tiles);
  const SequenceRows s = call.row_tile(tile, tile);
  const std::int64_t first_row = tile * attention_tile;
  if (first_row >= static_cast<std::int64_t>(s.nq) * call.heads_per_row_head) return;
  const int kv_head = call.kv_head_of_row_head(z);
  const T* k_base = call.k.at(s.b, kv_head, s.k_start);
  const T* v_base = call.v.at(s.b, kv_head, s.k_start);

  if (threadIdx.x < attention_tile) memory.rows[threadIdx.x].fill(call, s, z, first_row + threadIdx.x);
  __syncthreads();
  const auto query_row = [&](const auto& tensor, int n) {
    const bool present = first_row + n < static_cast<std::int64_t>(s.nq) * call.heads_per_row_head;
    return present ? tensor.at(s.b, memory.rows[n].head, s.q_start + memory.rows[n].query) : nullptr;
  };
  const auto load_queries = [&](int piece) {
    load_tile(q_tile, call.q, piece * width, call.d, [&](int n) { return query_row(call.q, n); });
  };
  const auto load_keys = [&](const KeyBlocks<T>& block, int piece) {
    load_tile(k_tile, call.k, piece * width, call.d, [&](int n) {
      const int key = block.key(n);
      return key == no_key ? nullptr : k_base + key * call.k.row;
    });
  };
  const auto name_keys = [&](const KeyBlocks<T>& block, int half) {
    if (threadIdx.x >= attention_tile) return;
    memory.keys[half][threadIdx.x] = block.key(threadIdx.x);
    memory.log_weight[half][threadIdx.x] = block.log_weight(call, s.b, z, threadIdx.x);
  };

  OnlineSoftmax<T, width> softmax;
  softmax.start(call, memory.rows);
  KeyBlocks<T> block(call, s, z, TileExtent::of(memory.rows));
  int half = 0;
  if (block.valid()) {
    load_queries(0);
    load_keys(block, 0);
    name_keys(block, half);
  }
  copy_async_commit();
  while (block.valid()) {
    Scores<T> scores;
    scores.clear();
    for (int piece = 0; piece < pieces; ++piece) {
      copy_async_wait<0>();
      __syncthreads();  // keys are there; nobody reads values of the block before
      if (piece == pieces - 1) {
        load_tile(v_tile, call.v, first_value, call.dv, [&](int n) {
          const int key = memory.keys[half][n];
          return key == no_key ? nullptr : v_base + key * call.v.row;
        });
        copy_async_commit();
      }
      add_scores(scores, q_tile, k_tile);
      if (piece == pieces - 1) break;
      __syncthreads();  // nobody reads this piece any more
      load_queries(piece + 1);
      load_keys(block, piece + 1);
      copy_async_commit();
    }
    KeyBlocks<T> next = block;
    next.next(call);
    copy_async_wait<0>();
    __syncthreads();  // values are there; nobody reads the keys any more
    if (next.valid()) {
      if (pieces > 1) load_queries(0);
      load_keys(next, 0);
      name_keys(next, half ^ 1);
    }
    copy_async_commit();
#pragma unroll
    for (int r = 0; r < Scores<T>::rows; ++r)
#pragma unroll
      for (int c = 0; c < Scores<T>::columns; ++c) scores(r, c) *= call.score_factor;
    const auto row_of = [&](int r, int) -> const AttentionRow<T>& { return memory.rows[Ownership<T>::row(r)]; };
    const auto key_of = [&](int, int c) { return memory.keys[half][Scores<T>::column(c)]; };
    Real* soft_edge = call.soft ? memory.soft_edge : nullptr;
    if (call.soft && block.dense()) soft_edge_biases(call, soft_edge, row_of, key_of);
    if (call.soft || !block.whole()) softmax.mask(block, scores, memory.keys[half], memory.log_weight[half], soft_edge);
    softmax.weigh(scores);
    if (call.drops) softmax.drop(call, scores, kept_by_dropout(call, s.b, row_of, key_of));
    add_sums(softmax.sums, scores, v_tile, memory.exchange);
    block = next;
    half ^= 1;
  }

  copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int r = 0; r < Scores<T>::rows; ++r) {
    const Real total = Ownership<T>::row_sum(softmax.total[r]);
    const Real factor = total == 0 ? Real{0} : 1 / total;
#pragma unroll
    for (int c = 0; c < Sums<T, width>::columns; ++c) softmax.sums(r, c) *= factor;
    const int n = Ownership<T>::row(r);
    if (!outputs.lse.present() || first_value > 0 || threadIdx.x % Ownership<T>::lanes != 0) continue;
    if (Real* lse = query_row(outputs.lse, n)) *lse = softmax.largest[r] * log_unit<Real> + log(total);
  }
  const bool fall_back = find_not_finite(softmax.sums, memory.keys[0]);
  store_tile(softmax.sums, q_tile, outputs.out, first_value, call.dv, [&](int n) { return query_row(outputs.out, n); });
  if (!fall_back) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int r = 0; r < Scores<T>::rows; ++r) {
    const Real total = Ownership<T>::row_sum(softmax.total[r]);
    memory.log_weight[0][Ownership<T>::row(r)] = softmax.largest[r];
    memory.log_weight[1][Ownership<T>::row(r)] = 1 / total;
  }
  __syncwarp();
  for (int n = warp * 16; n < warp * 16 + 16; ++n) {
    T* out = query_row(outputs.out, n);
    if (memory.keys[0][n] == 0 || out == nullptr) continue;
    const AttentionRow<T>& row = memory.rows[n];
    const T* q = query_row(call.q, n);
    RowSum<T, width> sum;
    for_each_admitted(call, s, z, row, [&](int key, Real bias, bool) {
      if (call.drops && !dropout_keeps(call, s.b, row.head, row.query, key)) return;
      const Real score = warp_dot(q, call.q.element, k_base + key * call.k.row, call.k.element, call.d);
      const Real weight = exp_scaled(score * call.score_factor + bias - memory.log_weight[0][n]);
      sum.add(call.drops ? weight * call.keep_factor : weight, v_base + key * call.v.row, call.v.element, first_value,
              call.dv);
    });
    sum.store(memory.log_weight[1][n], out, outputs.out.element, first_value, call.dv);
  }
}

}  // namespace

void CudaBackend::attention_forward(const AttentionProblem& problem, const AttentionInputs& given,
                                    const AttentionOutputs& outputs) {
  const CurrentDevice current(context_.device);
  constexpr const char* operation = "attention_forward";
  std::optional<GatheredPages> pages;
  if (given.page_table.present() && !hopper::takes_decode_forward(context_, problem, given))
    pages.emplace(context_, operation, problem, given);
  const AttentionInputs& inputs = pages ? pages->inputs() : given;
  if (hopper::takes_decode_forward(context_, problem, inputs))
    return hopper::decode_forward(context_, problem, inputs, outputs);
  if (hopper::takes_dense(context_, problem, inputs)) return hopper::dense_forward(context_, problem, inputs, outputs);
  if (hopper::takes_sparse_forward(context_, problem, inputs))
    return hopper::sparse_forward(context_, problem, inputs, outputs);
  if (hopper::takes_list_forward(context_, problem, inputs))
    return hopper::list_forward(context_, problem, inputs, outputs);
  LandmarkLists lists(context_, operation, inputs);
  const CleanLists clean = lists.prepare(problem, inputs);
  for_floating(inputs.q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    AttentionCall<T> call = attention_call<T>(problem, inputs);
    call.clean = clean;
    const ForwardOutputs<T> results{row_tensor<T>(outputs.out, call.packed, true),
                                    row_tensor<accumulator_t<T>>(outputs.lse, call.packed, false)};
    for_tile_width<T>(context_, call.d, call.dv, 3, [&](auto width) {
      const std::int64_t blocks = call.row_tiles * call.row_heads * ceil_div(call.dv, width);
      launch(context_, operation, attention_forward_kernel<T, width>, blocks, dim3(attention_threads),
             shared_bytes(sizeof(ForwardMemory<T, width>), call), call, results);
    });
  });
}

}  // namespace dsalt::cuda
