// The matrix products of cross_entropy with Hopper's instructions, for 16-bit elements: what the kernels of the same
// names in ../cross_entropy.cu and ../cross_entropy_rows.cuh do, with other tiles.
#pragma once

#include "../context.hpp"
#include "../cross_entropy_rows.cuh"

namespace dsalt::cuda::hopper {

constexpr int logits_columns = 128;  // of a tile of logits

/// The three matrices that are multiplied. Columns beyond d or the vocabulary are never read; neither are rows of
/// hidden and dz that the chunk does not have, but its padded_rows() must be there.
template <class T>
struct CrossEntropyMatrices {
  const char* operation;  // for errors
  const T* hidden;        // rows of a chunk
  std::int64_t hidden_pitch;
  const T* weight;
  std::int64_t weight_pitch;
  T* dz;  // rows of a chunk; null in the forward pass
  std::int64_t dz_pitch;
  std::int64_t d, vocabulary;
};

/// Whether the copy engine can read the matrices. Depends on the layout of weight and on no number of rows.
inline bool takes_cross_entropy(const Context& context, std::int64_t d, std::int64_t vocabulary,
                                std::int64_t weight_pitch) {
  constexpr std::int64_t limit = std::int64_t{1} << 30;
  return context.hopper() && d > 0 && vocabulary > 0 && d < limit && vocabulary < limit && weight_pitch >= d &&
         weight_pitch % 8 == 0 && weight_pitch < limit;
}

/// Statistics of a chunk's tiles of logits, logits_columns wide; dz, if there is one, gets
/// dz_scale exp(z - maximum of the row's tile).
template <class T>
void cross_entropy_logits(const Context& context, const CrossEntropyMatrices<T>& matrices, const RowChunk& chunk,
                          const View<const std::int32_t, 1>& labels, const RowSums<float>& sums);

/// sums[s][r][:] = sum over v of segment s (a multiple of 64 long) of dz_rv weight_v
template <class T>
void cross_entropy_dhidden(const Context& context, const CrossEntropyMatrices<T>& matrices, const RowChunk& chunk,
                           std::int64_t segment, float* sums, std::int64_t pitch);

/// sums += sum over the chunk's rows of dz_rv hidden_r; the first chunk has nothing to add to, the last one writes
/// dweight.
template <class T>
void cross_entropy_dweight(const Context& context, const CrossEntropyMatrices<T>& matrices, const RowChunk& chunk,
                           float* sums, std::int64_t pitch, bool first, bool last, const Upstream<T>& upstream,
                           const View<T, 2>& dweight, bool in_vectors);

}  // namespace dsalt::cuda::hopper
