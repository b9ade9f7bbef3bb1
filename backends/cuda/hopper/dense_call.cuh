// An attention call (16-bit elements, D = Dv) as the Hopper kernels see it, and how its work is cut into tiles of query
// rows: all that the dense kernels need, and what the sparse ones share with them. docs/semantics.md, "Attention".
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

/// An int32 tensor [n] in device memory with any stride, or an absent one.
struct Int32List {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 1;

  __host__ __device__ bool present() const { return data != nullptr; }
  __device__ int operator[](std::int64_t n) const { return data[n * stride]; }
};

/// Division of numbers below 2^31 by the same divisor again and again.
class Divider {
 public:
  Divider() = default;
  __host__ explicit Divider(int divisor) : divisor_(divisor) {
    while ((std::int64_t{1} << (shift_ - 31)) < divisor) ++shift_;
    multiplier_ =
        ((std::uint64_t{1} << shift_) + static_cast<std::uint64_t>(divisor) - 1) / static_cast<std::uint64_t>(divisor);
  }
  __device__ int quotient(int n) const {
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * multiplier_ >> shift_);
  }
  __device__ int remainder(int n, int quotient) const { return n - quotient * divisor_; }

 private:
  std::uint64_t multiplier_ = std::uint64_t{1} << 31;  // rounded up: exact for all n < 2^31, and below 2^32
  int shift_ = 31, divisor_ = 1;
};

struct DenseCall {
  int batch = 0, hq = 0, hkv = 0;
  int nq = 0, nk = 0;                  // padded: lengths; packed: rows of the pack
  Int32List cu_q, cu_k, k_lengths;     // cu_q and cu_k: packed
  const int2* packed_tiles = nullptr;  // (sequence, tile of it), sequence -1: no tile; as many as `tiles`
  int tiles = 0;                       // of query rows: of one sequence, or of the whole pack
  int heads_per_section = 1;           // (sequence, head) pairs that run side by side, so that their keys stay in L2
  Divider by_section, by_section_heads, by_hq, by_group;  // tiles of a section, heads_per_section, hq, hq / hkv
  float scale_log2 = 0;                                   // scale * log2(e)

  /// Whether what follows a sequence's last row in memory is somebody else's (and may be NaN) rather than the tensor's
  /// end.
  __device__ bool shares_tails() const { return cu_q.present() || k_lengths.present(); }
};

/// What Hopper's kernels ask of a call with any mask: no dropout, bfloat16 or float16, D = Dv = 64 or 128, scale
/// from 1e-30 to 1e30. Anything else is for the portable kernels. Never the strides: a result must not depend on them,
/// so a tensor that the copy engine cannot read (tensor_map.hpp) is copied first.
bool takes_attention(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);
/// The same, and the mask is full or causal.
bool takes_dense(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);

/// `tiles` and `packed_tiles` are left to the caller.
DenseCall dense_call(const AttentionProblem& problem, const AttentionInputs& inputs);

/// The lengths of one sequence and where its rows start.
struct Extent {
  int q_start, nq, k_start, nk;
};

__device__ inline Extent extent_of(const DenseCall& call, int sequence) {
  if (call.cu_q.present()) {
    const int q0 = call.cu_q[sequence], k0 = call.cu_k[sequence];
    return {q0, call.cu_q[sequence + 1] - q0, k0, call.cu_k[sequence + 1] - k0};
  }
  return {0, call.nq, 0, call.k_lengths.present() ? call.k_lengths[sequence] : call.nk};
}

struct Tile {
  int sequence = -1, head = 0, index = 0;  // sequence -1: nothing to do
};

/// The n-th tile in the order of execution. Causal: the long ones of a section first.
template <bool causal>
__device__ inline Tile tile_at(const DenseCall& call, int n) {
  if (call.packed_tiles != nullptr) {
    const int slot = call.by_hq.quotient(n);
    const int2 tile = call.packed_tiles[slot];
    return {tile.x, call.by_hq.remainder(n, slot), tile.y};
  }
  const int section = call.by_section.quotient(n), rest = call.by_section.remainder(n, section);
  const int first = section * call.heads_per_section, heads = min(call.heads_per_section, call.batch * call.hq - first);
  const int index = heads == call.heads_per_section ? call.by_section_heads.quotient(rest) : rest / heads;
  const int pair = first + rest - index * heads, sequence = call.by_hq.quotient(pair);
  return {sequence, call.by_hq.remainder(pair, sequence), causal ? call.tiles - 1 - index : index};
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
__device__ inline ForwardWork forward_work(const DenseCall& call, int n, int rows, int keys) {
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
