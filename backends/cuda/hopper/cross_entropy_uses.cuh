// What the products of cross_entropy are used for (see product.cuh), straight from the registers that hold their sums.
#pragma once

#include "../cross_entropy_rows.cuh"
#include "cross_entropy_products.hpp"
#include "fragments.cuh"
#include "product.cuh"

namespace dsalt::cuda::hopper {

/// Row `r` (0, or 1 for the one 8 below) of a thread's sums in 16-byte pieces, as far as they begin inside the matrix.
template <class T, int count>
__device__ inline void store_columns(T* to, bool exists, int columns_left, const float (&d)[count], int r, float factor,
                                     int lane) {
#pragma unroll
  for (int block = 0; block < count / 16; ++block) {
    std::uint32_t a[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int at = 4 * (4 * block + n) + 2 * r;
      a[n] = narrow_pair<T>(d[at] * factor, d[at + 1] * factor);
    }
    transpose_quad(a, lane);
    const int column = 32 * block + lane % 4 * 8;
    if (exists && column < columns_left) *reinterpret_cast<uint4*>(to + column) = uint4{a[0], a[1], a[2], a[3]};
  }
}

/// Statistics of each row of a tile of logits; kKeep: and what they are relative to its maximum.
template <class T, bool kKeep>
struct LogitsUse {
  RowChunk chunk;
  View<const std::int32_t, 1> labels;
  RowSums<float> sums;
  T* kept;
  std::int64_t kept_pitch;
  int d, vocabulary;

  __device__ ProductExtent extent() const { return {static_cast<int>(chunk.rows()), vocabulary, d}; }
  /// The row's label.
  __device__ int note(const ProductExtent& extent, int row) const {
    return row < extent.rows ? *labels.at(chunk.row(row)) : -1;
  }

  template <int count>
  __device__ void use(const ProductExtent& extent, const ProductTile& tile, int row, int lane, const RowNotes& notes,
                      float (&z)[count]) const {
    const int columns = vocabulary - tile.column0, first = lane % 4 * 2;  // of the thread's
    float logit_sum[2] = {};
    if constexpr (!kKeep) {
#pragma unroll
      for (int n = 0; n < count; ++n) logit_sum[n / 2 % 2] += z[n];  // 0 outside
    }
    if (columns < logits_columns) {
#pragma unroll
      for (int n = 0; n < count; ++n)
        if (n / 4 * 8 + first + n % 2 >= columns) z[n] = -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = row + 8 * r;
      const bool exists = at < extent.rows;
      const auto for_each = [&](const auto& body) {
#pragma unroll
        for (int c = 0; c < count / 4; ++c)
#pragma unroll
          for (int half = 0; half < 2; ++half) body(8 * c + half, z[4 * c + 2 * r + half]);
      };
      const int label = notes.of(r);
      if (label >= tile.column0 && label - tile.column0 < min(columns, logits_columns) && label / 2 % 4 == lane % 4) {
        const int column_of_label = label - tile.column0 - first;  // seldom here
        float label_logit = 0;
        for_each([&](int column, float value) {
          if (column == column_of_label) label_logit = value;
        });
        sums.label_logit[at] = label_logit;
      }
      float maximum = -INFINITY, exponential_sum = 0;
      for_each([&](int, float value) { maximum = fmaxf(maximum, value); });
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
      for_each([&](int, float& value) {
        const float e = exp2_fast((value - maximum) * 1.44269504088896341f);
        exponential_sum += e;
        if constexpr (kKeep) value = e;
      });
#pragma unroll
      for (int step = 1; step <= 2; step *= 2) {
        exponential_sum += __shfl_xor_sync(0xffffffffu, exponential_sum, step);
        if constexpr (!kKeep) logit_sum[r] += __shfl_xor_sync(0xffffffffu, logit_sum[r], step);
      }
      if (exists && lane % 4 == 0) {
        const std::int64_t to = tile.column0 / logits_columns * sums.line + at;
        sums.tile_maximum[to] = maximum;
        sums.tile_exponentials[to] = exponential_sum;
        if constexpr (!kKeep)
          if (sums.tile_logits != nullptr) sums.tile_logits[to] = logit_sum[r];
      }
      if constexpr (kKeep)
        store_columns(kept + at * kept_pitch + tile.column0, exists, columns, z, r, dz_scale<T>, lane);
    }
  }
};

/// Stores the sums of each part.
struct HiddenUse {
  RowChunk chunk;
  float* sums;
  std::int64_t pitch;
  int d, vocabulary, segment;

  __device__ ProductExtent extent() const { return {static_cast<int>(chunk.rows()), d, vocabulary, segment}; }
  __device__ int note(const ProductExtent&, int) const { return 0; }

  template <int count>
  __device__ void use(const ProductExtent& extent, const ProductTile& tile, int row, int lane, const RowNotes&,
                      float (&sum)[count]) const {
    float* const to = sums + (tile.part * chunk.most + row) * pitch + tile.column0;
    const int columns = d - tile.column0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= extent.rows) continue;
#pragma unroll
      for (int c = 0; c < count / 4; ++c) {
        const int column = 8 * c + lane % 4 * 2;  // the pitch has room for the second
        if (column < columns)
          *reinterpret_cast<float2*>(to + 8 * r * pitch + column) = {sum[4 * c + 2 * r], sum[4 * c + 2 * r + 1]};
      }
    }
  }
};

/// Adds to the sums, or finishes them.
template <class T>
struct WeightUse {
  RowChunk chunk;
  float* sums;
  std::int64_t pitch;
  int d, vocabulary;
  bool first, last;
  Upstream<T> upstream;
  View<T, 2> dweight;
  bool in_vectors;

  __device__ ProductExtent extent() const {
    const int rows = static_cast<int>(chunk.rows());
    return {rows == 0 && !first && !last ? 0 : vocabulary, d, rows};
  }
  __device__ int note(const ProductExtent&, int) const { return 0; }

  template <int count>
  __device__ void use(const ProductExtent& extent, const ProductTile& tile, int row, int lane, const RowNotes&,
                      float (&sum)[count]) const {
    const int columns = d - tile.column0;
    const float factor = last ? upstream.factor() : 1.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int v = row + 8 * r;
      const bool exists = v < extent.rows;
      float* const at = sums + v * pitch + tile.column0;
      const auto for_each_pair = [&](const auto& body) {
#pragma unroll
        for (int c = 0; c < count / 4; ++c) {
          const int column = 8 * c + lane % 4 * 2;
          if (exists && column < columns) body(column, sum[4 * c + 2 * r], sum[4 * c + 2 * r + 1]);
        }
      };
      if (!first)
        for_each_pair([&](int column, float& sum0, float& sum1) {
          const float2 before = *reinterpret_cast<const float2*>(at + column);
          sum0 += before.x;
          sum1 += before.y;
        });
      if (!last)
        for_each_pair([&](int column, float sum0, float sum1) {
          *reinterpret_cast<float2*>(at + column) = {sum0, sum1};
        });
      else if (in_vectors)
        store_columns(dweight.data + v * dweight.strides[0] + tile.column0, exists, columns, sum, r, factor, lane);
      else
        for_each_pair([&](int column, float sum0, float sum1) {
          *dweight.at(v, tile.column0 + column) = narrow<T>(sum0 * factor);
          if (column + 1 < columns) *dweight.at(v, tile.column0 + column + 1) = narrow<T>(sum1 * factor);
        });
    }
  }
};

}  // namespace dsalt::cuda::hopper
