// What rows admit of a tile of 64 keys in the sparse kernels, element by element of a warpgroup's scores (wgmma.cuh has
// their layout). docs/semantics.md, "The admitted set".
#pragma once

#include "../attention_call.cuh"
#include "../exp2.cuh"
#include "../landmark_weights.cuh"
#include "../reduce.cuh"

namespace dsalt::cuda::hopper {

/// What one row admits: keys [begin, begin + length) as its window, landmarks up to `newest` outside it.
struct RowMask {
  int begin = 0, length = 0, newest = -1;

  template <class T>
  __device__ static RowMask of(const AttentionRow<T>& row) {
    return {row.begin, row.end - row.begin, row.newest};
  }
  /// What AttentionRow::fill finds in a sparse mask without a soft edge, without double precision.
  template <class T>
  __device__ static RowMask of_hard_window(const AttentionCall<T>& call, const SequenceRows& s, int query, int head) {
    const int position = query + s.nk - s.nq, window_head = call.window_heads == 1 ? 0 : head;
    RowMask row;
    row.newest = call.bidirectional ? s.nk - 1 : min(position, s.nk - 1);
    int reach = -1;
    if (call.window_int.present()) reach = *call.window_int.at(s.b, window_head, s.q_start + query);
    if (call.window.present()) {
      const auto window = *call.window.at(s.b, window_head, s.q_start + query);
      if (window >= 0) reach = window < 0x1p31f ? static_cast<int>(window) : INT32_MAX;
    }
    if (reach < 0) return row;
    const std::int64_t first = static_cast<std::int64_t>(position) - reach,
                       last = static_cast<std::int64_t>(position) + (call.bidirectional ? reach : 0);
    row.begin = static_cast<int>(max(first, std::int64_t{0}));
    row.length = static_cast<int>(min(last, static_cast<std::int64_t>(s.nk) - 1)) + 1 - row.begin;
    if (first >= s.nk || last < 0 || row.length < 0) row.begin = row.length = 0;
    return row;
  }
};

/// The soft edge of a row's window: keys at distance `edge` or more are inside it.
struct RowEdge {
  int edge = no_edge, position = 0;
  int window_floor = 0;  // the window is window_floor + window_fraction, of which the floor ends at 2^31 - 1
  float window_fraction = 0;

  template <class T>
  __device__ static RowEdge of(const AttentionRow<T>& row) {
    RowEdge result{row.edge, row.position};
    if (row.edge == no_edge) return result;
    const double whole = fmin(floor(row.window), 2147483647.0);  // an edge beyond is out of reach
    result.window_floor = static_cast<int>(whole);
    result.window_fraction = static_cast<float>(row.window - whole);
    return result;
  }
  /// z = (w - e) / tau of a key of the window inside the edge, else +inf.
  __device__ float argument(int key, float inverse_tau) const {
    if (edge == no_edge || key == no_key) return INFINITY;
    const int distance = abs(position - key);
    if (distance < edge) return INFINITY;
    return (static_cast<float>(window_floor - distance) + window_fraction) * inverse_tau;
  }
  /// dz/dw times d(log sigma)/dz; 0 outside the edge.
  __device__ float slope(int key, float inverse_tau) const {
    const float z = argument(key, inverse_tau);
    return z == INFINITY ? 0 : inverse_tau / (1 + exp2_fast(z * 1.44269504088896341f));
  }
};

/// What 64 rows admit as window keys: some of them [begin, end), every one of them without an edge [whole_begin,
/// whole_end).
struct RowExtent {
  int begin = INT32_MAX, end = 0, whole_begin = 0, whole_end = INT32_MAX;

  template <class T>
  __device__ void include(const AttentionRow<T>& row) {
    if (row.begin < row.end) begin = min(begin, row.begin);
    end = max(end, row.end);
    // Keys with distance below the edge: on both sides when bidirectional.
    int first = row.begin, last = row.end;
    if (row.edge != no_edge) {
      first = static_cast<int>(
          max(static_cast<std::int64_t>(first), static_cast<std::int64_t>(row.position) - row.edge + 1));
      last = static_cast<int>(min(static_cast<std::int64_t>(last), static_cast<std::int64_t>(row.position) + row.edge));
    }
    whole_begin = max(whole_begin, first);
    whole_end = min(whole_end, last);
  }
  __device__ void include(const RowMask& row) {
    if (row.length > 0) begin = min(begin, row.begin);
    end = max(end, row.begin + row.length);
    whole_begin = max(whole_begin, row.begin);
    whole_end = min(whole_end, row.begin + row.length);
  }
  /// Over the lanes of a warp.
  __device__ void reduce() {
    begin = warp_min(begin);
    end = warp_max(end);
    whole_begin = warp_max(whole_begin);
    whole_end = warp_min(whole_end);
  }
};

/// Landmarks are taken that many at a time.
inline constexpr int landmarks_of_block = 64;

/// A block of entries of a clean list, and the queries [first_query, last_query) that read the list.
struct LandmarkBlock {
  std::int64_t list, first_query, last_query;
  const std::int32_t *index, *slot;  // of the whole list
  int start, count;

  __device__ int key(int n) const { return start + n < count ? index[start + n] : no_key; }
  template <class T>
  __device__ float log_weight(const AttentionCall<T>& call, const SequenceRows& s, int head, int n) const {
    if (!call.weight.present() || start + n >= count) return 0;
    return call.log_weight(s.b, head, list, slot[start + n]);
  }
};

/// Calls body(block) for the blocks of landmarks that some query of [first_query, last_query] of a head admits.
template <class T, class Body>
__device__ inline void for_landmark_blocks(const AttentionCall<T>& call, const SequenceRows& s, int head,
                                           int first_query, int last_query, Body&& body) {
  if (call.clean.count == nullptr) return;
  const int newest = call.bidirectional ? s.nk - 1 : min(last_query + s.nk - s.nq, s.nk - 1);
  const std::int64_t last = min(call.list_of(last_query), call.lists - 1);
  const std::int64_t base = (s.b * call.list_heads + call.list_head(head)) * call.lists;
  for (std::int64_t list = call.list_of(first_query); list <= last; ++list) {
    LandmarkBlock block{list,
                        0,
                        s.nq,
                        call.clean.index + (base + list) * call.slots,
                        call.clean.slot + (base + list) * call.slots,
                        0,
                        call.clean.count[base + list]};
    if (call.chunk != 0) {
      block.first_query = list * call.chunk - call.chunk_offset;
      block.last_query = min(static_cast<std::int64_t>(s.nq), block.first_query + call.chunk);
    }
    for (; block.start < block.count && block.index[block.start] <= newest; block.start += landmarks_of_block)
      body(block);
  }
}

/// A block of landmarks in shared memory. Its keys ascend.
template <int rows>
struct LandmarkNames {
  std::uint64_t admitted[rows];    // by each row of the tile: bit n for landmark n
  int key[landmarks_of_block];     // no_key at the end: nothing
  float bias[landmarks_of_block];  // added to scores before these are scaled
  int width[rows / 64];            // what 64 rows need of the block: its first 64 landmarks, 32 or none

  /// How many keys are below `bound`.
  __device__ int below(int bound) const {
    int count = 0;
#pragma unroll
    for (int step = landmarks_of_block / 2; step > 0; step /= 2)
      if (key[count + step - 1] < bound) count += step;
    return count + (key[count] < bound);
  }
  /// Landmarks that are not later than the row and outside its window.
  __device__ std::uint64_t admitted_by(const RowMask& row, bool bidirectional) const {
    const auto first = [](int n) { return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1; };
    // A window ends with the newest key, unless it looks ahead.
    if (!bidirectional) return first(below(row.length > 0 ? row.begin : row.newest + 1));
    const std::uint64_t until_newest = first(below(row.newest + 1));
    if (row.length == 0) return until_newest;
    return until_newest & ~(first(below(row.begin + row.length)) & ~first(below(row.begin)));
  }
};

/// Scores of keys of a tile that starts at `first_key` become -inf where the row's window does not have them.
template <int count>
__device__ inline void mask_window(float (&s)[count], int first_key, const RowMask (&mask)[2], int lane) {
  static_assert(count <= 64, "a row's scores of one thread are the bits of a word");
  // A thread has columns 8 c + 2 (lane % 4) and the next one: how many of its scores lie before a key?
  const auto before = [&](int key) {
    const int column = min(max(key - first_key - lane % 4 * 2, 0), 2 * count);
    return column / 8 * 2 + min(column % 8, 2);
  };
  const auto first = [](int n) { return n >= 32 ? ~0u : (1u << n) - 1; };
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int begin = mask[r].begin;
    const std::uint32_t bits = first(before(begin + mask[r].length)) & ~first(before(begin));
#pragma unroll
    for (int n = 0; n < count / 2; ++n) {
      float& value = s[n / 2 * 4 + 2 * r + n % 2];
      value = bits >> n & 1 ? value : -INFINITY;
    }
  }
}

/// log2 sigma(z): its absolute error counts, since it is added to exponents.
__device__ inline float log2_sigmoid(float z) {
  const float e = exp2_fast(-fabsf(z) * 1.44269504088896341f);
  return fminf(z, 0.0f) * 1.44269504088896341f - log2_fast(1 + e);
}

/// The bias of the soft edge, in units of unscaled scores. `edges`: of the thread's row and the one 8 below.
template <class T, int count>
__device__ inline void add_soft_edge(float (&s)[count], int first_key, const RowEdge* edges, int lane,
                                     const AttentionCall<T>& call, float inverse_scale) {
  const float inverse_tau = static_cast<float>(1 / call.tau), unit = inverse_scale * 0.693147180559945f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowEdge row = edges[8 * r];
    if (row.edge == no_edge) continue;
    const int nearest = row.position - first_key - lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < count / 4; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int distance = abs(nearest - 8 * c - half);
        if (distance < row.edge) continue;
        const float left = static_cast<float>(row.window_floor - distance) + row.window_fraction;
        s[4 * c + 2 * r + half] += log2_sigmoid(left * inverse_tau) * unit;
      }
  }
}

/// `row`: the thread's first, of the tile.
template <int rows, int count>
__device__ inline void mask_landmarks(float (&s)[count], const LandmarkNames<rows>& names, int row, int lane,
                                      bool weighted) {
  if (weighted) {
#pragma unroll
    for (int c = 0; c < count / 4; ++c) {
      const float2 bias = *reinterpret_cast<const float2*>(names.bias + 8 * c + lane % 4 * 2);
#pragma unroll
      for (int n = 0; n < 4; ++n) s[4 * c + n] += n % 2 ? bias.y : bias.x;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::uint64_t bits = names.admitted[row + 8 * r] >> lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < count / 2; ++n) {
      float& value = s[n / 2 * 4 + 2 * r + n % 2];
      value = bits >> (n / 2 * 8 + n % 2) & 1 ? value : -INFINITY;
    }
  }
}

}  // namespace dsalt::cuda::hopper
