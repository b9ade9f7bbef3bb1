#include "cross_entropy_products.hpp"

#include <algorithm>

#include "../launch.cuh"
#include "cross_entropy_uses.cuh"
#include "product.cuh"

namespace dsalt::cuda::hopper {
namespace {

template <class T>
MatrixView matrix(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t pitch) {
  return {data, std::is_same_v<T, bf16> ? DType::bf16 : DType::f16, rows, columns, pitch};
}

/// `extent`: the most it can be on the device.
template <class T, Major kA, Major kB, bool kTurns, class Use>
void multiply(const Context& context, const char* operation, const MatrixView& a, const MatrixView& b,
              const ProductExtent& extent, const Use& use) {
  using F = Product<T, kA, kB, kTurns, Use>;
  const typename F::Parameters p{make_tensor_map(a, F::a_box_rows, operation),
                                 make_tensor_map(b, F::b_box_rows, operation), use};
  const int blocks = std::min(typename F::Tiles(extent).count(), context.multiprocessors);
  launch(context, operation, warp_specialized_kernel<F>, blocks, F::threads, F::shared_bytes, p);
}

template <class T, bool kKeep>
void logits(const Context& context, const CrossEntropyMatrices<T>& m, const RowChunk& chunk,
            const View<const std::int32_t, 1>& labels, const RowSums<float>& sums) {
  const int d = static_cast<int>(m.d), vocabulary = static_cast<int>(m.vocabulary);
  multiply<T, Major::k, Major::k, true>(context, m.operation, matrix(m.hidden, chunk.most, m.d, m.hidden_pitch),
                                        matrix(m.weight, m.vocabulary, m.d, m.weight_pitch),
                                        {static_cast<int>(chunk.most), vocabulary, d},
                                        LogitsUse<T, kKeep>{chunk, labels, sums, m.dz, m.dz_pitch, d, vocabulary});
}

}  // namespace

template <class T>
void cross_entropy_logits(const Context& context, const CrossEntropyMatrices<T>& m, const RowChunk& chunk,
                          const View<const std::int32_t, 1>& labels, const RowSums<float>& sums) {
  m.dz == nullptr ? logits<T, false>(context, m, chunk, labels, sums)
                  : logits<T, true>(context, m, chunk, labels, sums);
}

/// Tiles of 128 x 128 where all of them take less time: half as long each, they leave fewer multiprocessors idle when
/// there are few rows. Tiles do not matter to the sums' bits (product.cuh), so the number of rows may choose them.
template <class T>
void cross_entropy_dhidden(const Context& context, const CrossEntropyMatrices<T>& m, const RowChunk& chunk,
                           std::int64_t segment, float* sums, std::int64_t pitch) {
  const int d = static_cast<int>(m.d), vocabulary = static_cast<int>(m.vocabulary);
  const ProductExtent extent{static_cast<int>(chunk.most), d, vocabulary, static_cast<int>(segment)};
  const auto run = [&]<bool kTurns>(std::bool_constant<kTurns>) {
    multiply<T, Major::k, Major::mn, kTurns>(context, m.operation,
                                             matrix<T>(m.dz, chunk.most, m.vocabulary, m.dz_pitch),
                                             matrix(m.weight, m.vocabulary, m.d, m.weight_pitch), extent,
                                             HiddenUse{chunk, sums, pitch, d, vocabulary, static_cast<int>(segment)});
  };
  const auto rounds = [&](auto tiles) { return ceil_div(tiles.count(), context.multiprocessors); };
  if (rounds(ProductTiles<128, 128, 64>(extent)) < 2 * rounds(ProductTiles<128, 256, 64>(extent)))
    run(std::true_type{});
  else
    run(std::false_type{});
}

template <class T>
void cross_entropy_dweight(const Context& context, const CrossEntropyMatrices<T>& m, const RowChunk& chunk, float* sums,
                           std::int64_t pitch, bool first, bool last, const Upstream<T>& upstream,
                           const View<T, 2>& dweight, bool in_vectors) {
  const int d = static_cast<int>(m.d), vocabulary = static_cast<int>(m.vocabulary);
  multiply<T, Major::mn, Major::mn, false>(
      context, m.operation, matrix<T>(m.dz, chunk.most, m.vocabulary, m.dz_pitch),
      matrix(m.hidden, chunk.most, m.d, m.hidden_pitch), {vocabulary, d, static_cast<int>(chunk.most)},
      WeightUse<T>{chunk, sums, pitch, d, vocabulary, first, last, upstream, dweight, in_vectors});
}

#define DSALT_INSTANTIATE(T)                                                                                         \
  template void cross_entropy_logits(const Context&, const CrossEntropyMatrices<T>&, const RowChunk&,                \
                                     const View<const std::int32_t, 1>&, const RowSums<float>&);                     \
  template void cross_entropy_dhidden(const Context&, const CrossEntropyMatrices<T>&, const RowChunk&, std::int64_t, \
                                      float*, std::int64_t);                                                         \
  template void cross_entropy_dweight(const Context&, const CrossEntropyMatrices<T>&, const RowChunk&, float*,       \
                                      std::int64_t, bool, bool, const Upstream<T>&, const View<T, 2>&, bool);
DSALT_INSTANTIATE(bf16)
DSALT_INSTANTIATE(f16)
#undef DSALT_INSTANTIATE

}  // namespace dsalt::cuda::hopper
