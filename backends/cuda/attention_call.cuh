// One attention call as kernels see it, passed by value: docs/semantics.md, "Attention".
//
// Both forms have one description: a tensor of rows is (batch, head, row, element) strides, where the packed form has
// batch stride 0 and rows that start at cu_seqlens[b]. Kernels take 64 *rows* of a sequence at a time. Row r of "row
// head" z is query r / heads_per_row_head of head z heads_per_row_head + r % heads_per_row_head: query heads that read
// the same keys and lists lie side by side, so that a key tile is loaded once for all of them.
#pragma once

#include <cmath>
#include <cstdint>

#include "context.hpp"
#include "dsalt/attention.hpp"
#include "elements.cuh"
#include "exp2.cuh"
#include "internal/sequence.hpp"
#include "launch.cuh"
#include "sigmoid.cuh"

namespace dsalt::cuda {

inline constexpr int attention_tile = 64;      // rows, and keys, of one step
inline constexpr int attention_threads = 128;  // four warps of 16 rows
inline constexpr int no_key = INT32_MAX;       // not admitted by any row
inline constexpr int no_edge = INT32_MAX;

/// Exponentials are taken to base 2 in float, where that is one instruction; logits are scaled to match.
__device__ inline float exp_scaled(float x) { return exp2_fast(x); }
__device__ inline double exp_scaled(double x) { return exp(x); }
template <class Real>
inline constexpr Real exp_unit = static_cast<Real>(std::is_same_v<Real, double> ? 1 : 1.4426950408889634);  // log2(e)
template <class Real>
inline constexpr Real log_unit = static_cast<Real>(std::is_same_v<Real, double> ? 1 : 0.6931471805599453);  // ln(2)

template <class Real>
inline constexpr Real minus_infinity = -static_cast<Real>(INFINITY);

/// A tensor [B,H,N,E] or [R,H,E], or one without the last dimension.
template <class T>
struct RowTensor {
  T* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, element = 0;
  bool vector = false;  // every row starts at a multiple of 16 bytes and is contiguous

  __device__ T* at(std::int64_t b, std::int64_t h, std::int64_t n) const {
    return data + b * batch + h * head + n * row;
  }
  __host__ __device__ bool present() const { return data != nullptr; }
};

template <class T>
RowTensor<T> row_tensor(const TensorView& view, bool packed, bool elements) {
  RowTensor<T> result;
  if (!view.present()) return result;
  result.data = static_cast<T*>(view.data);
  if (packed) {
    result.row = view.strides[0];
    result.head = view.strides[1];
  } else {
    result.batch = view.strides[0];
    result.head = view.strides[1];
    result.row = view.strides[2];
  }
  if (!elements) return result;
  const auto last = static_cast<std::size_t>(view.rank - 1);
  const auto aligned = [](std::int64_t elements_) {
    return elements_ * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
  };
  result.element = view.strides[last];
  result.vector = (result.element == 1 || view.shape[last] == 1) &&
                  reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 && aligned(result.batch) &&
                  aligned(result.head) && aligned(result.row);
  return result;
}

struct SequenceRows {
  std::int64_t b, q_start, k_start;
  int nq, nk;
};

/// Lists as attention_landmarks.cu leaves them: valid indices ascending, each once with its lowest slot.
struct CleanLists {
  const std::int32_t* index = nullptr;  // [B,Hl,T,K]
  const std::int32_t* slot = nullptr;   // [B,Hl,T,K]
  const std::int32_t* count = nullptr;  // [B,Hl,T]
};

template <class T>
struct AttentionCall {
  using Real = accumulator_t<T>;

  RowTensor<const T> q, k, v;
  bool packed, causal, sparse, bidirectional, soft, drops;
  int d, dv, heads, kv_heads, row_heads, heads_per_row_head, window_heads, list_heads;
  std::int64_t batch, nq, nk;                      // nq, nk: padded lengths, or rows of the packed buffers
  std::int64_t row_tiles, key_tiles;               // upper bounds, of one row head and of one kv head
  std::int64_t lists, slots, chunk, chunk_offset;  // T, K; chunk 0: one list
  Real scale, score_factor;                        // score_factor: to logits that exp_scaled() takes
  double edge, tau;
  std::uint64_t seed, threshold;
  std::uint32_t dropout_offset;
  Real keep_factor;
  RowTensor<const Real> window;
  RowTensor<const std::int32_t> window_int;
  View<const std::int32_t, 1> cu_q, cu_k, k_lengths;
  View<const Real, 4> weight;
  CleanLists clean;

  __device__ SequenceRows sequence(std::int64_t b) const {
    if (packed) {
      const int q0 = *cu_q.at(b), q1 = *cu_q.at(b + 1), k0 = *cu_k.at(b), k1 = *cu_k.at(b + 1);
      return {b, q0, k0, q1 - q0, k1 - k0};
    }
    return {b, 0, 0, static_cast<int>(nq), k_lengths.present() ? *k_lengths.at(b) : static_cast<int>(nk)};
  }

  /// Sequence and tile within it of tile `n` of a packed dimension, where sequence b's tiles start at
  /// floor(cu[b] rows_per_token / 64) + b: enough room for each, known without a sum over sequences.
  __device__ std::int64_t find_tile(const View<const std::int32_t, 1>& cu, int rows_per_token, std::int64_t n,
                                    std::int64_t& tile) const {
    const auto start = [&](std::int64_t b) {
      return static_cast<std::int64_t>(*cu.at(b)) * rows_per_token / attention_tile + b;
    };
    std::int64_t low = 0, high = batch;  // start(low) <= n
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (start(middle) <= n ? low : high) = middle;
    }
    tile = n - start(low);
    return low;
  }
  __device__ SequenceRows row_tile(std::int64_t n, std::int64_t& tile) const {
    if (packed) return sequence(find_tile(cu_q, heads_per_row_head, n, tile));
    const std::int64_t per_sequence = row_tiles / batch;
    tile = n % per_sequence;
    return sequence(n / per_sequence);
  }
  __device__ SequenceRows key_tile(std::int64_t n, std::int64_t& tile) const {
    if (packed) return sequence(find_tile(cu_k, 1, n, tile));
    const std::int64_t per_sequence = key_tiles / batch;
    tile = n % per_sequence;
    return sequence(n / per_sequence);
  }
  /// The number of a sequence's first row tile, the inverse of row_tile().
  __device__ std::int64_t first_row_tile(const SequenceRows& s) const {
    return packed ? s.q_start * heads_per_row_head / attention_tile + s.b : s.b * (row_tiles / batch);
  }

  /// Query and head of row r of row head z.
  __device__ void split_row(int z, std::int64_t r, int& query, int& head) const {
    const std::int64_t n = heads_per_row_head;
    const std::int64_t quotient = n == 1         ? r
                                  : r >> 32 == 0 ? static_cast<std::uint32_t>(r) / static_cast<std::uint32_t>(n)
                                                 : r / n;
    query = static_cast<int>(quotient);
    head = static_cast<int>(z * n + (r - quotient * n));
  }

  __device__ std::int64_t list_of(int query) const { return chunk == 0 ? 0 : (query + chunk_offset) / chunk; }
  __device__ int kv_head_of_row_head(int z) const {
    return static_cast<int>(static_cast<std::int64_t>(z) * heads_per_row_head / (heads / kv_heads));
  }
  __device__ int list_head(int z) const { return list_heads == 1 ? 0 : z; }  // Hl = Hq: one head per row head
  __device__ Real log_weight(std::int64_t b, int z, std::int64_t list, int slot) const {
    return weight.present() ? *weight.at(b, list_head(z), list, slot) : Real{0};
  }
};

/// Which keys of a block a row admits: a dense block those inside [begin, end), a block of landmarks those outside that
/// are not later than `newest`.
struct RowBounds {
  int begin, end, newest;
  __device__ bool admits(int key, bool dense) const {
    const bool inside = static_cast<unsigned>(key) - static_cast<unsigned>(begin) <
                        static_cast<unsigned>(end) - static_cast<unsigned>(begin);
    return inside == dense && (dense || key <= newest);
  }
};

/// What one row admits by position: internal::dense_range, and the latest landmark.
template <class T>
struct AttentionRow {
  int query = 0, head = 0, position = 0;
  int begin = 0, end = 0;  // all keys, the causal prefix, or the window
  int newest = -1;         // landmarks up to this one
  int edge = no_edge;      // the smallest distance inside the soft edge
  double window = -1;

  /// Row `r` of row head z; a row at or past the end admits nothing.
  __device__ void fill(const AttentionCall<T>& call, const SequenceRows& s, int z, std::int64_t r) {
    *this = {};
    if (r >= static_cast<std::int64_t>(s.nq) * call.heads_per_row_head) return;
    call.split_row(z, r, query, head);
    fill(call, s);
  }
  /// The row of `query` and `head`, which are set.
  __device__ void fill(const AttentionCall<T>& call, const SequenceRows& s) {
    position = query + s.nk - s.nq;
    newest = call.bidirectional || !(call.causal || call.sparse) ? s.nk - 1 : min(position, s.nk - 1);
    if (!call.sparse) {
      end = max(newest + 1, 0);
      return;
    }
    const int window_head = call.window_heads == 1 ? 0 : head;
    if (call.window_int.present()) window = *call.window_int.at(s.b, window_head, s.q_start + query);
    if (call.window.present()) window = static_cast<double>(*call.window.at(s.b, window_head, s.q_start + query));
    if (!(window >= 0)) return;
    const auto reach = static_cast<std::int64_t>(window < 4.0e9 ? window : 4.0e9);
    const std::int64_t first = position - reach, last = call.bidirectional ? position + reach : position;
    begin = static_cast<int>(first > 0 ? (first < s.nk ? first : s.nk) : 0);
    end = static_cast<int>(last < s.nk ? (last + 1 > 0 ? last + 1 : 0) : s.nk);
    if (end <= begin) begin = end = 0;
    if (!call.soft) return;
    const double first_edge = window - call.edge;  // keys with e > first_edge
    edge = first_edge < 0 ? 0 : first_edge < 2.0e9 ? static_cast<int>(first_edge) + 1 : no_edge;
  }
  __device__ RowBounds bounds() const { return {begin, end, newest}; }
  __device__ int distance(int key) const { return key <= position ? position - key : key - position; }
  __device__ bool in_edge(int key) const { return edge != no_edge && distance(key) >= edge; }
  /// (w - e) / tau
  __device__ accumulator_t<T> edge_argument(const AttentionCall<T>& call, int key) const {
    return static_cast<accumulator_t<T>>((window - static_cast<double>(distance(key))) / call.tau);
  }
};

/// Whether r_ij is 1/(1-p), not 0. Philox4x32-10, word j % 4.
template <class T>
__device__ inline bool dropout_keeps(const AttentionCall<T>& call, std::int64_t b, int head, int query, int key) {
  std::uint32_t x0 = static_cast<std::uint32_t>(key) >> 2, x1 = static_cast<std::uint32_t>(query),
                x2 = static_cast<std::uint32_t>(b * call.heads + head), x3 = call.dropout_offset;
  std::uint32_t k0 = static_cast<std::uint32_t>(call.seed), k1 = static_cast<std::uint32_t>(call.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t a_high = __umulhi(0xD2511F53u, x0), a_low = 0xD2511F53u * x0;
    const std::uint32_t b_high = __umulhi(0xCD9E8D57u, x2), b_low = 0xCD9E8D57u * x2;
    x0 = b_high ^ x1 ^ k0;
    x1 = b_low;
    x2 = a_high ^ x3 ^ k1;
    x3 = a_low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const std::uint32_t word = key & 2 ? (key & 1 ? x3 : x2) : (key & 1 ? x1 : x0);
  return word >= call.threshold;
}

template <class T>
AttentionCall<T> attention_call(const AttentionProblem& problem, const AttentionInputs& in) {
  using Real = accumulator_t<T>;
  const internal::AttentionSizes n = internal::attention_sizes(in);
  AttentionCall<T> call{};
  call.packed = n.packed;
  call.q = row_tensor<const T>(in.q, n.packed, true);
  call.k = row_tensor<const T>(in.k, n.packed, true);
  call.v = row_tensor<const T>(in.v, n.packed, true);
  call.causal = problem.mask == Mask::causal;
  call.sparse = problem.mask == Mask::sparse;
  call.bidirectional = problem.bidirectional;
  call.d = static_cast<int>(n.d);
  call.dv = static_cast<int>(n.dv);
  call.heads = static_cast<int>(n.hq);
  call.kv_heads = static_cast<int>(n.hkv);
  call.window_heads = in.window.present() ? static_cast<int>(in.window.shape[1]) : 1;
  call.list_heads = in.landmarks.present() ? static_cast<int>(in.landmarks.shape[1]) : 1;
  call.heads_per_row_head = call.list_heads == 1 ? call.heads / call.kv_heads : 1;
  call.row_heads = call.heads / call.heads_per_row_head;
  call.batch = n.batch;
  call.nq = n.nq;
  call.nk = n.nk;
  const std::int64_t rows = n.nq * call.heads_per_row_head;
  call.row_tiles = n.packed ? rows / attention_tile + n.batch : n.batch * ceil_div(rows, attention_tile);
  call.key_tiles = n.packed ? n.nk / attention_tile + n.batch : n.batch * ceil_div(n.nk, attention_tile);
  if (in.landmarks.present()) {
    call.lists = in.landmarks.shape[2];
    call.slots = in.landmarks.shape[3];
  }
  call.chunk = problem.landmark_chunk.value_or(0);
  call.chunk_offset = problem.landmark_offset;
  const double scale = problem.scale ? *problem.scale : 1 / std::sqrt(static_cast<double>(n.d));
  call.scale = static_cast<Real>(scale);
  call.score_factor = static_cast<Real>(scale * exp_unit<Real>);
  call.soft = problem.soft_edge.has_value();
  if (call.soft) {
    call.edge = problem.soft_edge->edge;
    call.tau = problem.soft_edge->tau;
  }
  call.drops = problem.dropout && problem.dropout->p > 0;
  if (call.drops) {
    call.seed = problem.dropout->seed;
    call.dropout_offset = problem.dropout->offset;
    call.threshold = static_cast<std::uint64_t>(std::ceil(problem.dropout->p * 0x1p32));
    call.keep_factor = static_cast<Real>(1 / (1 - problem.dropout->p));
  }
  if (in.window.present() && in.window.dtype == DType::i32)
    call.window_int = row_tensor<const std::int32_t>(in.window, n.packed, false);
  else
    call.window = row_tensor<const Real>(in.window, n.packed, false);
  call.cu_q = device_view<const std::int32_t, 1>(in.cu_seqlens_q);
  call.cu_k = device_view<const std::int32_t, 1>(in.cu_seqlens_k);
  call.k_lengths = device_view<const std::int32_t, 1>(in.k_lengths);
  call.weight = device_view<const Real, 4>(in.landmark_log_weight);
  return call;
}

/// Cleaned lists of a call, in stream order.
class LandmarkLists {
 public:
  LandmarkLists(const Context& context, const char* operation, const AttentionInputs& inputs);
  /// On the way *zero becomes 0 (null: nothing does).
  CleanLists prepare(const AttentionProblem& problem, const AttentionInputs& inputs, int* zero = nullptr);

 private:
  const Context& context_;
  const char* operation_;
  std::int64_t lists_, slots_, sort_width_;
  Scratch<std::int32_t> index_, slot_, count_;
  Scratch<std::uint64_t> sorting_;
};

}  // namespace dsalt::cuda
