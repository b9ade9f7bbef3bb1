// P and dS of one step in the sparse backward kernels (sparse_backward.cuh has the equations), element by element of a
// thread's scores: rows of 64 keys, columns of queries (wgmma.cuh has the layout).
#pragma once

#include "fragments.cuh"
#include "sparse_backward_jobs.cuh"
#include "sparse_masks.cuh"

namespace dsalt::cuda::hopper {

template <class F>
struct SparseBackwardScores {
  using T = typename F::Element;
  using Queries = typename F::Queries;
  using Job = typename F::Job;
  static constexpr bool soft = F::soft;

  /// Of a step: keys in every row's window; any window keys; landmarks before every window; any landmarks.
  enum class Kind { whole, window, past_landmarks, landmarks };
  static constexpr bool listed(Kind kind) { return kind == Kind::past_landmarks || kind == Kind::landmarks; }

  const F& f;
  int lane;
  float dlambda[2];  // of the thread's two keys, where these are landmarks

  /// What a step knows of the thread's two keys, and of whom they are for.
  struct Keys {
    int key[2];  // no_key: there is none
    float bias[2];
  };
  template <Kind kind>
  __device__ __forceinline__ Keys keys_of(const Job& job, int row) const {
    if constexpr (listed(kind))
      return {{f.names()[row], f.names()[row + 8]}, {f.biases()[row], f.biases()[row + 8]}};
    else
      return {{job.key(row), job.key(row + 8)}, {0, 0}};
  }

  /// P^T from S^T, for queries from `column0` of the tile on.
  template <Kind kind, int count>
  __device__ __forceinline__ void weigh(float (&s)[count], const Job& job, const Keys& mine, const Queries& rows,
                                        int column0, int row0) const {
    constexpr bool masked = kind != Kind::whole;
    const float scale = f.p.call.scale_log2, inverse_tau = soft ? static_cast<float>(1 / f.p.sparse.tau) : 0;
    // Kind::landmarks: the queries of the list, and how far positions are ahead of queries.
    int first_query = 0, last_query = 0, shift = 0;
    if constexpr (kind == Kind::landmarks) {
      first_query = job.first_query - row0;
      last_query = job.last_query - row0;
      shift = row0 + job.extent.nk - job.extent.nq;
    }
    const bool bidirectional = kind == Kind::landmarks && f.p.sparse.bidirectional;
#pragma unroll
    for (int c = 0; c < count / 4; ++c) {
      const int column = column0 + 8 * c + lane % 4 * 2;
      const float2 l = *reinterpret_cast<const float2*>(rows.lse + column);
      int2 begin{}, length{};
      if constexpr (masked) begin = *reinterpret_cast<const int2*>(rows.begin + column);
      if constexpr (kind == Kind::window || kind == Kind::landmarks)
        length = *reinterpret_cast<const int2*>(rows.length + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = s[4 * c + i];
        const int key = mine.key[i / 2], query = column + i % 2;
        float offset = i % 2 ? -l.y : -l.x;
        if constexpr (soft && kind == Kind::window) {
          const float z = rows.edge[query].argument(key, inverse_tau);
          if (z != INFINITY) offset += log2_sigmoid(z);
        }
        if constexpr (listed(kind))  // scores as in the forward pass
          value = landmark_weight(__fmul_rn(value + mine.bias[i / 2], scale), -offset);
        else
          value = exp2_fast(fmaf(value, scale, offset));
        if constexpr (masked) {
          const int first = i % 2 ? begin.y : begin.x, size = i % 2 ? length.y : length.x;
          const bool in_window = static_cast<unsigned>(key - first) < static_cast<unsigned>(size);
          bool seen = in_window;
          if constexpr (kind == Kind::past_landmarks) seen = key < first;  // QueryRows::begin
          if constexpr (kind == Kind::landmarks)
            seen = !in_window && key != no_key && query >= first_query && query < last_query &&
                   (bidirectional || key <= query + shift);
          if (!seen) value = 0;
        }
      }
    }
  }

  /// dS^T from P^T and dP^T, and both rounded. `delta`: of the tile's queries. `window_sums`: those of dwindow, of its
  /// first query.
  template <Kind kind, int count>
  __device__ __forceinline__ void differentiate(const float (&s)[count], const float (&dp)[count],
                                                std::uint32_t (&weights)[count / 8][4],
                                                std::uint32_t (&ds)[count / 8][4], const Keys& mine,
                                                const Queries& rows, const float* delta, int column0,
                                                std::int64_t window_sums) {
    const float inverse_tau = soft ? static_cast<float>(1 / f.p.sparse.tau) : 0;
#pragma unroll
    for (int k = 0; k < count / 8; ++k)
#pragma unroll
      for (int part = 0; part < 2; ++part) {  // eight queries
        const int c = 2 * k + part, column = column0 + 8 * c + lane % 4 * 2;
        const float2 d = *reinterpret_cast<const float2*>(delta + column);
        float dwindow[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float p0 = s[4 * c + 2 * r], p1 = s[4 * c + 2 * r + 1];
          float d0 = p0 * (dp[4 * c + 2 * r] - d.x), d1 = p1 * (dp[4 * c + 2 * r + 1] - d.y);
          if constexpr (kind != Kind::whole) {  // what is not seen may be NaN
            d0 = p0 == 0 ? 0 : d0;
            d1 = p1 == 0 ? 0 : d1;
          }
          if constexpr (listed(kind)) dlambda[r] += d0 + d1;
          weights[k][2 * part + r] = narrow_pair<T>(p0, p1);
          ds[k][2 * part + r] = narrow_pair<T>(d0, d1);
          if constexpr (soft && kind == Kind::window) {
            const RowEdge* edge = rows.edge + column;
            dwindow[0] += d0 * edge[0].slope(mine.key[r], inverse_tau);
            dwindow[1] += d1 * edge[1].slope(mine.key[r], inverse_tau);
          }
        }
        if constexpr (soft && kind == Kind::window) add_dwindow(dwindow, window_sums + column);
      }
  }

  /// dw_i += sum_j dS_ij (1 - sigma(z_ij)) / tau: what this thread has of two neighbouring rows.
  __device__ void add_dwindow(const float (&mine)[2], std::int64_t at) const {
    if (f.p.dwindow == nullptr || !__any_sync(0xffffffffu, mine[0] != 0 || mine[1] != 0)) return;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      float sum = mine[side];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane < 4 && sum != 0) atomicAdd(f.p.dwindow + at + side, sum);
    }
  }
};

}  // namespace dsalt::cuda::hopper
