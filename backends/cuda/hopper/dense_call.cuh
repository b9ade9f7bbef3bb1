// A dense attention call (full or causal mask, 16-bit elements, D = Dv) as the Hopper kernels see it, and how its work
// is cut into tiles of query rows. docs/semantics.md, "Attention".
#pragma once

#include <cstdint>

#include "../context.hpp"
#include "../elements.cuh"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// Rows of out, lse and the like: [sequence, head, row], or packed (sequence stride 0, rows of the whole pack).
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t sequence = 0, head = 0, row = 0;

  __device__ T* at(int b, int h, std::int64_t i) const { return data + b * sequence + h * head + i * row; }
};

template <class T>
Rows<T> rows_of(const TensorView& view, bool packed) {
  if (!view.present()) return {};
  if (packed) return {static_cast<T*>(view.data), 0, view.strides[1], view.strides[0]};
  return {static_cast<T*>(view.data), view.strides[0], view.strides[1], view.strides[2]};
}

struct DenseCall {
  int batch = 0, hq = 0, hkv = 0;
  int nq = 0, nk = 0;                  // padded: lengths; packed: rows of the pack
  const std::int32_t* cu_q = nullptr;  // packed; device memory
  const std::int32_t* cu_k = nullptr;
  const std::int32_t* k_lengths = nullptr;
  const int2* packed_tiles = nullptr;  // (sequence, tile of it), sequence -1: no tile; as many as `tiles`
  int tiles = 0;                       // of query rows: of one sequence, or of the whole pack
  int section_tiles = 1;               // tiles * heads_per_section
  int heads_per_section = 1;           // (sequence, head) pairs that run side by side, so that their keys stay in L2
  float scale_log2 = 0;                // scale * log2(e)

  /// Whether what follows a sequence's last row in memory is somebody else's (and may be NaN) rather than the tensor's
  /// end.
  __device__ bool shares_tails() const { return cu_q != nullptr || k_lengths != nullptr; }
};

/// What the dense kernels ask of a call: full or causal, no dropout, bfloat16 or float16, D = Dv = 64 or 128, scale >
/// 0, and q, k, v that the copy engine can read (tensor_map.hpp). Anything else is for the portable kernels.
bool takes_dense(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);

/// `tiles` and `packed_tiles` are left to the caller.
DenseCall dense_call(const AttentionProblem& problem, const AttentionInputs& inputs);

/// The lengths of one sequence and where its rows start.
struct Extent {
  int q_start, nq, k_start, nk;
};

__device__ inline Extent extent_of(const DenseCall& call, int sequence) {
  if (call.cu_q != nullptr) {
    const int q0 = call.cu_q[sequence], k0 = call.cu_k[sequence];
    return {q0, call.cu_q[sequence + 1] - q0, k0, call.cu_k[sequence + 1] - k0};
  }
  return {0, call.nq, 0, call.k_lengths != nullptr ? call.k_lengths[sequence] : call.nk};
}

struct Tile {
  int sequence = -1, head = 0, index = 0;  // sequence -1: nothing to do
};

/// The n-th tile in the order of execution. Causal: the long ones of a section first.
template <bool causal>
__device__ inline Tile tile_at(const DenseCall& call, std::int64_t n) {
  if (call.packed_tiles != nullptr) {
    const int number = static_cast<int>(n);
    const int2 tile = call.packed_tiles[number / call.hq];
    return {tile.x, number % call.hq, tile.y};
  }
  const auto number = static_cast<std::uint32_t>(n), per_section = static_cast<std::uint32_t>(call.section_tiles);
  const int first = static_cast<int>(number / per_section) * call.heads_per_section;
  const int heads = min(call.heads_per_section, call.batch * call.hq - first);
  const int rest = static_cast<int>(number % per_section);
  const int pair = first + rest % heads, index = rest / heads;
  return {pair / call.hq, pair % call.hq, causal ? call.tiles - 1 - index : index};
}

/// A tile of `rows` query rows: its sequence, its first row, and the key tiles [0, tiles) that it sees.
struct ForwardWork {
  Tile tile;
  Extent extent{};
  int row0 = 0, tiles = 0;

  bool __device__ exists() const { return tile.sequence >= 0; }
  /// Keys from here on are not seen by row `row` of the tile.
  template <bool causal>
  __device__ int limit(int row) const {
    return causal ? min(extent.nk, row0 + row + extent.nk - extent.nq + 1) : extent.nk;
  }
};

template <bool causal>
__device__ inline ForwardWork forward_work(const DenseCall& call, std::int64_t n, int rows, int keys) {
  ForwardWork w{tile_at<causal>(call, n)};
  if (!w.exists()) return w;
  w.extent = extent_of(call, w.tile.sequence);
  w.row0 = w.tile.index * rows;
  if (w.row0 >= w.extent.nq) {
    w.tile.sequence = -1;
    return w;
  }
  const int last_row = min(rows, w.extent.nq - w.row0) - 1;
  w.tiles = (max(0, w.limit<causal>(last_row)) + keys - 1) / keys;
  return w;
}

}  // namespace dsalt::cuda::hopper
