// The counted rows of a loss, gathered into chunks, and what a chunk's tiles of logits leave of each row.
#pragma once

#include <cmath>

#include "elements.cuh"
#include "gemm.cuh"
#include "launch.cuh"
#include "reduce.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

/// Rows first .. first + most - 1 of a list whose length only the device knows.
struct RowChunk {
  const std::int64_t* list;   // row numbers; null: row n is n
  const std::int64_t* count;  // how many; null: at least first + most
  std::int64_t first, most;

  __device__ std::int64_t rows() const {
    if (count == nullptr) return most;
    const std::int64_t left = *count - first;
    return left < 0 ? 0 : left < most ? left : most;
  }
  /// Products that sum over rows take them in steps of 64: rows from rows() to here are made 0.
  __device__ std::int64_t padded_rows() const { return min((rows() + 63) / 64 * 64, most); }
  __device__ std::int64_t row(std::int64_t n) const { return list == nullptr ? first + n : list[first + n]; }
};

/// float16 loses what is below 2^-24: dz is kept as 2^14 dz.
template <class T>
constexpr float dz_scale = std::is_same_v<T, f16> ? 0x1p14f : 1.0f;

/// dloss / C, for sums of scaled dz; 0 without counted rows.
template <class T>
struct Upstream {
  const accumulator_t<T>* dloss;
  const std::int64_t* count;

  __device__ accumulator_t<T> factor() const {
    if (*count == 0) return 0;
    return static_cast<accumulator_t<T>>(static_cast<double>(*dloss) / (static_cast<double>(*count) * dz_scale<T>));
  }
};

/// What is known of the chunk's rows after their logits: for each tile of columns, then for the whole row. Tiles follow
/// each other at a distance of `line`.
template <class Real>
struct RowSums {
  Real *tile_maximum, *tile_exponentials;  // sum of exp(z - the tile's maximum)
  Real* tile_logits;                       // sum of z; null: not needed
  Real* label_logit;
  Real *maximum, *reciprocal;  // 1 / sum of exp(z - maximum); null in the forward pass
  std::int64_t line;
};

/// The chunk's rows one after the other, each at a multiple of 16 bytes, up to padded_rows(). Block (x, y): columns of
/// rows y, y + gridDim.y, ...
template <class T>
__global__ void cross_entropy_pack_kernel(View<const T, 2> from, bool vectors, RowChunk chunk, T* to,
                                          std::int64_t pitch) {
  constexpr int n = vector_length<T>;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * n;
  if (column >= from.shape[1]) return;
  const std::int64_t rows = chunk.rows(), padded_rows = chunk.padded_rows();
  for (std::int64_t r = blockIdx.y; r < padded_rows; r += gridDim.y) {
    Vector<T, n>& vector = *reinterpret_cast<Vector<T, n>*>(to + r * pitch + column);
    if (r >= rows) {
      vector = {};
      continue;
    }
    const T* const row = from.at(chunk.row(r));
    vector = vectors ? load_part<n, true>(row, 1, column, from.shape[1])
                     : load_part<n, false>(row, from.strides[1], column, from.shape[1]);
  }
}

template <class T>
__device__ inline accumulator_t<T> exponential(accumulator_t<T> x) {
  if constexpr (is_16_bit<T>)
    return __expf(x);
  else
    return exp(x);
}

template <class T>
using LogitsTile = GemmTile<T, true, true>;

/// One tile of logits: hidden rows of the chunk, rows of weight. `kept` gets scale exp(z - maximum of the row's tile).
template <class T, bool keep>
__global__ void __launch_bounds__(LogitsTile<T>::threads)
    cross_entropy_logits_kernel(Operand<T> hidden, Operand<T> weight, std::int64_t d, RowChunk chunk,
                                View<const std::int32_t, 1> labels, RowSums<accumulator_t<T>> sums, T* kept,
                                std::int64_t kept_pitch, float scale) {
  using Real = accumulator_t<T>;
  using Tile = LogitsTile<T>;
  constexpr int groups = Tile::column_groups;
  __shared__ std::int64_t row_labels[Tile::rows];                   // columns of this tile, or outside of it
  const std::int64_t row_tiles = ceil_div(chunk.most, Tile::rows);  // neighbours share a tile of weight
  const std::int64_t row0 = blockIdx.x % row_tiles * Tile::rows, index = blockIdx.x / row_tiles;
  const std::int64_t column0 = index * Tile::columns;
  hidden.extent = chunk.rows();
  const std::int64_t rows_left = hidden.extent - row0, columns_left = weight.extent - column0;
  if (rows_left <= 0) return;

  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Tile::rows)
    row_labels[thread] = thread < rows_left ? *labels.at(chunk.row(row0 + thread)) - column0 : -1;
  Real* const shared = dynamic_shared_memory<Real>();
  Tile tile;
  tile.multiply(hidden, row0, weight, column0, d, shared);

  Real* const maxima = shared;  // [groups][Tile::rows], as the next two
  Real* const exponentials = maxima + groups * Tile::rows;
  Real* const logits = exponentials + groups * Tile::rows;
  const auto maximum_of = [&](int row) {
    Real maximum = maxima[row];
#pragma unroll
    for (int g = 1; g < groups; ++g) maximum = fmax(maximum, maxima[g * Tile::rows + row]);
    return maximum;
  };
#pragma unroll
  for (int r = 0; r < Tile::row_slots; ++r) {
    Real maximum = -std::numeric_limits<Real>::infinity();
#pragma unroll
    for (int c = 0; c < Tile::column_slots; ++c)
      if (tile.column(c) < columns_left) maximum = fmax(maximum, tile.value(r, c));
    for (int step = Tile::row_lanes / 2; step > 0; step /= 2)
      maximum = fmax(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    if (thread % Tile::row_lanes == 0) maxima[tile.column_group() * Tile::rows + tile.row(r)] = maximum;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < Tile::row_slots; ++r) {
    const Real maximum = maximum_of(tile.row(r));
    const std::int64_t label = row_labels[tile.row(r)];
    Real exponential_sum = 0, logit_sum = 0;
#pragma unroll
    for (int c = 0; c < Tile::column_slots; ++c) {
      if (tile.column(c) >= columns_left) continue;
      const Real z = tile.value(r, c), e = exponential<T>(z - maximum);
      if (tile.column(c) == label) sums.label_logit[row0 + tile.row(r)] = z;
      exponential_sum += e;
      logit_sum += z;
      if constexpr (keep) tile.value(r, c) = e * static_cast<Real>(scale);
    }
    for (int step = Tile::row_lanes / 2; step > 0; step /= 2) {
      exponential_sum += __shfl_xor_sync(0xffffffffu, exponential_sum, step);
      logit_sum += __shfl_xor_sync(0xffffffffu, logit_sum, step);
    }
    if (thread % Tile::row_lanes == 0) {
      exponentials[tile.column_group() * Tile::rows + tile.row(r)] = exponential_sum;
      logits[tile.column_group() * Tile::rows + tile.row(r)] = logit_sum;
    }
  }
  if constexpr (keep) tile.store(kept + row0 * kept_pitch + column0, kept_pitch, rows_left, columns_left);
  __syncthreads();
  if (thread >= Tile::rows || thread >= rows_left) return;
  Real exponential_sum = 0, logit_sum = 0;
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    exponential_sum += exponentials[g * Tile::rows + thread];
    logit_sum += logits[g * Tile::rows + thread];
  }
  const std::int64_t at = index * sums.line + row0 + thread;
  sums.tile_maximum[at] = maximum_of(thread);
  sums.tile_exponentials[at] = exponential_sum;
  if (sums.tile_logits != nullptr) sums.tile_logits[at] = logit_sum;
}

constexpr int merge_rows = 32, merge_parts = 8;  // of a block: a row's tiles are dealt out to its parts

/// Tiles to rows: maximum and reciprocal, or (`losses`) the row's loss. Labels outside [0, vocabulary) have no logit:
/// 0.
template <class T>
__global__ void __launch_bounds__(merge_rows* merge_parts)
    cross_entropy_rows_kernel(RowChunk chunk, View<const std::int32_t, 1> labels, RowSums<accumulator_t<T>> sums,
                              std::int64_t tiles, std::int64_t vocabulary, double smoothing, double* losses) {
  using Real = accumulator_t<T>;
  __shared__ Real maxima[merge_parts][merge_rows], exponentials[merge_parts][merge_rows];
  __shared__ double logits[merge_parts][merge_rows];
  const int in_block = static_cast<int>(threadIdx.x % merge_rows), part = static_cast<int>(threadIdx.x / merge_rows);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * merge_rows + in_block;
  const bool exists = row < chunk.rows();
  Real maximum = -std::numeric_limits<Real>::infinity(), exponential_sum = 0;
  double logit_sum = 0;
  if (exists) {
    for (std::int64_t t = part; t < tiles; t += merge_parts)
      maximum = fmax(maximum, sums.tile_maximum[t * sums.line + row]);
    for (std::int64_t t = part; t < tiles; t += merge_parts) {
      const std::int64_t at = t * sums.line + row;
      exponential_sum += sums.tile_exponentials[at] * exp(sums.tile_maximum[at] - maximum);
      if (sums.tile_logits != nullptr) logit_sum += static_cast<double>(sums.tile_logits[at]);
    }
  }
  maxima[part][in_block] = maximum;
  exponentials[part][in_block] = exponential_sum;
  logits[part][in_block] = logit_sum;
  __syncthreads();
  if (part != 0 || !exists) return;
  for (int p = 1; p < merge_parts; ++p) maximum = fmax(maximum, maxima[p][in_block]);
  exponential_sum = 0;
  logit_sum = 0;
  for (int p = 0; p < merge_parts && p < tiles; ++p) {
    exponential_sum += exponentials[p][in_block] * exp(maxima[p][in_block] - maximum);
    logit_sum += logits[p][in_block];
  }
  if (losses == nullptr) {
    sums.maximum[row] = maximum;
    sums.reciprocal[row] = 1 / exponential_sum;
    return;
  }
  const std::int64_t label = *labels.at(chunk.row(row));
  const double label_logit = label >= 0 && label < vocabulary ? static_cast<double>(sums.label_logit[row]) : 0;
  double loss =
      static_cast<double>(maximum) + log(static_cast<double>(exponential_sum)) - (1 - smoothing) * label_logit;
  if (smoothing > 0) loss -= smoothing * (logit_sum / static_cast<double>(vocabulary));
  losses[chunk.first + row] = loss;
}

}  // namespace dsalt::cuda
