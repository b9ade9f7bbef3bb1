// Landmark lists that few queries read: what the kernels for them share. docs/semantics.md, "Attention".
//
// A tile is up to 16 rows that read one list: the queries of a chunk, and the query heads that share list and kv head.
// A warp takes it with 16 entries of the list at a time, whose keys and values go from global memory straight into
// the registers of mma_16x8x16 (mma.cuh has the layout; lane l = 4 g + t). Two orders of a row's elements make that
// possible in accesses of 16 bytes, since a product does not care in which order it adds:
//   along a row   lane (g, t) has the pieces of 8 elements number t, t + 4, ... of row g: operands of products that sum
//                 over a row's elements, eight rows at a time
//   across rows   lane (g, t) has the elements [8 g, 8 g + 8) (and 64 on) of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9:
//                 operands of products that sum over the rows
#pragma once

#include "../attention_call.cuh"
#include "../landmark_weights.cuh"
#include "../mma.cuh"
#include "../vectors.cuh"
#include "dense_call.cuh"

namespace dsalt::cuda::hopper {

inline constexpr int list_entries = 16;        // of a step
inline constexpr int list_tile_threads = 128;  // four warps

/// How a call is cut into tiles: those of one list, then the next list, row head, sequence.
struct ListTiles {
  Divider by_lists, by_tiles, by_row_heads,
      by_heads;   // tiles of all lists of a row head, of one list; row heads; heads
  int tiles = 0;  // in all, below 2^30
};

template <class T>
ListTiles list_tiles(const AttentionCall<T>& call, int rows) {
  const auto per_list = static_cast<int>(ceil_div(std::min(call.chunk, call.nq) * call.heads_per_row_head, rows));
  const auto of_head = static_cast<int>(call.lists * per_list);
  return {Divider(of_head), Divider(per_list), Divider(call.row_heads), Divider(call.heads_per_row_head),
          static_cast<int>(call.batch * call.row_heads) * of_head};
}

/// Whether the four warps of a block take one tile, each a quarter of its list. For long lists that few rows read:
/// where there are four tiles to a list, a warp for each reads the list from the cache. The same for every part of a
/// call.
template <class T>
bool share_list(const AttentionCall<T>& call) {
  return call.slots >= 256 && call.chunk * call.heads_per_row_head < 64;
}

/// A tile, as every lane sees it.
template <class T>
struct ListTile {
  SequenceRows s{};
  int z = 0, first_query = 0, first_row = 0, rows = 0;  // `rows` of the list that are left from the tile's first one
  std::int64_t list = 0, clean = 0;                     // number among the sequence's, among all

  __device__ ListTile(const AttentionCall<T>& call, const ListTiles& tiles, int tile_rows, int n) {
    const int bz = tiles.by_lists.quotient(n), rest = tiles.by_lists.remainder(n, bz);
    const int t = tiles.by_tiles.quotient(rest), b = tiles.by_row_heads.quotient(bz);
    z = tiles.by_row_heads.remainder(bz, b);
    s = call.sequence(b);
    list = t;
    clean = (s.b * call.list_heads + call.list_head(z)) * call.lists + t;
    const std::int64_t begin = t * call.chunk - call.chunk_offset;
    if (begin >= s.nq) return;  // nobody reads it; its start may be no 32-bit number
    first_query = static_cast<int>(max(begin, std::int64_t{0}));
    first_row = tiles.by_tiles.remainder(rest, t) * tile_rows;
    const int end = static_cast<int>(min(begin + call.chunk, static_cast<std::int64_t>(s.nq)));
    rows = (end - first_query) * call.heads_per_row_head - first_row;
  }
  __device__ bool exists() const { return rows > 0; }
  /// Query and head of row r, which exists.
  __device__ void split_row(const AttentionCall<T>& call, const ListTiles& tiles, int r, int& query, int& head) const {
    const int quotient = tiles.by_heads.quotient(first_row + r);
    query = first_query + quotient;
    head = z * call.heads_per_row_head + tiles.by_heads.remainder(first_row + r, quotient);
  }
  /// What row r admits; nothing where it does not exist.
  __device__ RowBounds bounds(const AttentionCall<T>& call, const ListTiles& tiles, int r) const {
    AttentionRow<T> row;
    if (r < rows) {
      split_row(call, tiles, r, row.query, row.head);
      row.fill(call, s);
    }
    return row.bounds();
  }
};

/// A row along which products add, as a lane (g, t) has it: the two halves of a piece are two steps of 16 elements.
template <int kHead>
struct AlongRow {
  uint4 piece[kHead / 32];

  template <class T>
  __device__ void load(const T* row, int t, bool some) {
#pragma unroll
    for (int n = 0; n < kHead / 32; ++n)
      piece[n] = some ? *reinterpret_cast<const uint4*>(row + 8 * (t + 4 * n)) : uint4{};
  }
  /// The two registers of step n.
  __device__ std::uint32_t first(int n) const { return n % 2 ? piece[n / 2].z : piece[n / 2].x; }
  __device__ std::uint32_t second(int n) const { return n % 2 ? piece[n / 2].w : piece[n / 2].y; }
};

/// 16 rows over which products add, as a lane (g, t) has them.
template <int kHead>
struct AcrossRows {
  uint4 piece[4][kHead / 64];  // of rows 2 t, 2 t + 1, 2 t + 8, 2 t + 9

  /// `row(n)`: row n of the 16, or null.
  template <class RowOf>
  __device__ void load(int g, int t, RowOf&& row) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const auto* from = row(2 * t + n % 2 + n / 2 * 8);
#pragma unroll
      for (int half = 0; half < kHead / 64; ++half)
        piece[n][half] = from != nullptr ? *reinterpret_cast<const uint4*>(from + 64 * half + 8 * g) : uint4{};
    }
  }
  /// Operand A of the product's tile m: elements 64 (m / 4) + 8 g + 2 (m % 4) and, in rows 8 and on, the ones after.
  __device__ void operand(int m, std::uint32_t (&a)[4]) const {
    const auto word = [&](int n) {
      const uint4& x = piece[n][m / 4];
      return m % 4 == 0 ? x.x : m % 4 == 1 ? x.y : m % 4 == 2 ? x.z : x.w;
    };
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const std::uint32_t x = word(2 * pair), y = word(2 * pair + 1);
      a[2 * pair] = low_halves(x, y);
      a[2 * pair + 1] = high_halves(x, y);
    }
  }

 private:
  __device__ static std::uint32_t low_halves(std::uint32_t x, std::uint32_t y) {
#ifdef DSALT_EMULATED
    return (x & 0xffffu) | y << 16;
#else
    return __byte_perm(x, y, 0x5410);
#endif
  }
  __device__ static std::uint32_t high_halves(std::uint32_t x, std::uint32_t y) {
#ifdef DSALT_EMULATED
    return x >> 16 | (y & 0xffff0000u);
#else
    return __byte_perm(x, y, 0x7632);
#endif
  }
};

/// Sums of rows in the order of AcrossRows: a lane (g, t) has elements [8 g, 8 g + 8) (and 64 on) of rows 2 t and
/// 2 t + 1 (and of those 8 on).
template <int kHead, int kRows>
struct RowSums {
  float tile[kRows / 8][kHead / 16][4];

  __device__ void clear() {
#pragma unroll
    for (auto& tiles : tile)
#pragma unroll
      for (auto& d : tiles)
#pragma unroll
        for (float& value : d) value = 0;
  }
  /// Element e of [0, 8) of half `half` of row 8 n + 2 t + r.
  __device__ float& at(int n, int r, int half, int e) { return tile[n][4 * half + e / 2][2 * (e % 2) + r]; }
};

/// Scores of a lane: entry e(c) of row g (and g + 8), where c counts entries 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
struct EntryScores {
  float block[2][4];

  __device__ float& at(int r, int c) { return block[c / 2][2 * r + c % 2]; }
  __device__ static int entry(int t, int c) { return 2 * t + c % 2 + c / 2 * 8; }
};

/// Scores of 16 rows (8 used where kRows is 8) and 16 entries. `b`: entries g and g + 8.
template <class T, int kHead, int kRows>
__device__ inline void entry_scores(EntryScores& s, const AlongRow<kHead> (&a)[kRows / 8],
                                    const AlongRow<kHead> (&b)[2]) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (float& value : s.block[block]) value = 0;
#pragma unroll
    for (int step = 0; step < kHead / 16; ++step) {
      const std::uint32_t rows[4] = {a[0].first(step), kRows == 16 ? a[kRows / 8 - 1].first(step) : 0,
                                     a[0].second(step), kRows == 16 ? a[kRows / 8 - 1].second(step) : 0};
      const std::uint32_t entries[2] = {b[block].first(step), b[block].second(step)};
      mma_16x8x16<T>(s.block[block], rows, entries);
    }
  }
}

/// sums += weights of 16 entries times their rows. `weights`: in the lane's place of EntryScores.
template <class T, int kHead, int kRows>
__device__ inline void add_entries(RowSums<kHead, kRows>& sums, EntryScores& weights, const AcrossRows<kHead>& values) {
  std::uint32_t b[kRows / 8][2];
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      b[n][half] = narrow_pair<T>(weights.at(n, 2 * half), weights.at(n, 2 * half + 1));
#pragma unroll
  for (int m = 0; m < kHead / 16; ++m) {
    std::uint32_t a[4];
    values.operand(m, a);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) mma_16x8x16<T>(sums.tile[n][m], a, b[n]);
  }
}

/// 16 entries of a list from `start` on: lane l has number l % 16, no_key past the end (UniqueLists).
template <class T>
struct Entries {
  int key;
  float bias;  // in exponents of 2

  __device__ Entries(const AttentionCall<T>& call, const ListTile<T>& tile, int start, int lane) {
    const int n = start + lane % list_entries;
    key = no_key;
    bias = 0;
    if (n < call.slots) key = call.clean.index[tile.clean * call.slots + n];
    if (!call.weight.present() || key == no_key) return;
    const int slot = call.clean.slot[tile.clean * call.slots + n];
    bias = landmark_exponent(call.log_weight(tile.s.b, tile.z, tile.list, slot), call.score_factor);
  }
  /// Whether the list had ended before.
  __device__ bool none() const { return key_of(0) == no_key; }
  __device__ int key_of(int n) const { return __shfl_sync(0xffffffffu, key, n); }
  __device__ float bias_of(int n) const { return __shfl_sync(0xffffffffu, bias, n); }
};

/// Whether lists are for these kernels: few queries read each of them.
inline bool has_narrow_lists(const AttentionProblem& problem, const AttentionInputs& in) {
  return problem.mask == Mask::sparse && problem.landmark_chunk && *problem.landmark_chunk < 32 &&
         in.landmarks.present() && in.landmarks.size() > 0;
}

/// The same call without its lists.
struct WindowPart {
  AttentionProblem problem;
  AttentionInputs inputs;

  WindowPart(const AttentionProblem& whole, const AttentionInputs& in) : problem(whole), inputs(in) {
    problem.landmark_chunk.reset();
    problem.landmark_offset = 0;
    inputs.landmarks = {};
    inputs.landmark_log_weight = {};
  }
};

}  // namespace dsalt::cuda::hopper
