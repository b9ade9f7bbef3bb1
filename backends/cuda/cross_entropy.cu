// Linear layer and loss in one: docs/semantics.md, "Network pieces". With logits z_rv = <hidden_r, weight_v>, C counted
// rows and e = label_smoothing:
//   loss = 1/C sum_r [ lse_r - (1-e) z_r,label - e mean_v z_rv ],   lse_r = log sum_v exp(z_rv)
//   dz_rv = exp(z_rv - lse_r) - (1-e) [v = label_r] - e/V
//   dhidden_r = dloss/C sum_v dz_rv weight_v        dweight_v = dloss/C sum_r dz_rv hidden_r
//
// Counted rows are gathered into chunks; ignored ones cost nothing. Logits are made tile by tile, and of a tile the
// forward pass keeps a maximum and a sum of exponentials per row. The backward pass also keeps exp(z - the tile's
// maximum) for the rows of one chunk, in the main dtype: they become dz once the rows' sums are known, without a second
// product for the logits. Rounding them is the one rounding between the products.
//
// Memory beside the packed rows is dz of one chunk and, for more than one chunk, float32 sums of dweight: O(V d) for
// any R. A chunk has 1024 rows; with Hopper's products of 16-bit elements 8 d, from 1024 to 8192, so that where d >=
// 128 dz is at most as large as four float32 matrices like weight, and R up to that is one chunk: all of dz, but no
// sums.
//
// Every sum is cut by V and d alone and runs in their order or that of the counted rows.
#include <algorithm>
#include <optional>

#include "cross_entropy_gradients.cuh"
#include "cross_entropy_rows.cuh"
#include "cuda_backend.hpp"
#include "hopper/cross_entropy_products.hpp"

namespace dsalt::cuda {
namespace {

constexpr std::int64_t forward_rows = 8192, least_backward_rows = 1024, most_backward_rows = 8192;  // of a chunk
constexpr int list_threads = 1024;

template <class T>
using HiddenTile = GemmTile<T, true, false>;  // sum over v: dz [r, v], weight [v, d]
template <class T>
using WeightTile = GemmTile<T, false, false>;  // sum over r: dz [r, v], hidden [r, d]

/// Lists the rows whose label is not `ignored`, in order. One block.
__global__ void __launch_bounds__(list_threads)
    cross_entropy_list_kernel(View<const std::int32_t, 1> labels, std::int64_t ignored, std::int64_t* list,
                              std::int64_t* count) {
  __shared__ int warp_counts[list_threads / 32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  std::int64_t listed = 0;
  for (std::int64_t first = 0; first < labels.shape[0]; first += list_threads) {
    const std::int64_t row = first + threadIdx.x;
    const bool counted = row < labels.shape[0] && *labels.at(row) != ignored;
    const std::uint32_t votes = __ballot_sync(0xffffffffu, counted);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < list_threads / 32; ++w) {
      if (w < warp) before += warp_counts[w];
      all += warp_counts[w];
    }
    if (counted) list[listed + before] = row;
    listed += all;
    __syncthreads();  // before warp_counts is written again
  }
  if (threadIdx.x == 0) *count = listed;
}

/// The mean of `count` losses. One block.
template <class Real>
__global__ void __launch_bounds__(list_threads)
    cross_entropy_mean_kernel(const double* losses, const std::int64_t* count, Real* mean) {
  double sum = 0;
  for (std::int64_t n = threadIdx.x; n < *count; n += list_threads) sum += losses[n];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *mean = static_cast<Real>(*count == 0 ? 0 : sum / static_cast<double>(*count));
}

/// sums[s][r][:] = sum over v of segment s of dz_rv weight_v
template <class T>
__global__ void __launch_bounds__(HiddenTile<T>::threads)
    cross_entropy_dhidden_kernel(RowChunk chunk, Operand<T> dz, Operand<T> weight, std::int64_t vocabulary,
                                 std::int64_t segment, accumulator_t<T>* sums, std::int64_t pitch) {
  using Tile = HiddenTile<T>;
  const std::int64_t column_tiles = ceil_div(weight.extent, Tile::columns),
                     row_tiles = ceil_div(chunk.most, Tile::rows);
  const std::int64_t column0 = blockIdx.x % column_tiles * Tile::columns;
  const std::int64_t row0 = blockIdx.x / column_tiles % row_tiles * Tile::rows;
  const std::int64_t index = blockIdx.x / (column_tiles * row_tiles), begin = index * segment;
  dz.extent = chunk.rows();
  if (row0 >= dz.extent) return;
  dz.data += begin;
  weight.data += begin * weight.pitch;
  Tile tile;
  tile.multiply(dz, row0, weight, column0, min(segment, vocabulary - begin), dynamic_shared_memory<T>());
  accumulator_t<T>* const to = sums + (index * chunk.most + row0) * pitch + column0;
#pragma unroll
  for (int r = 0; r < Tile::row_slots; ++r)
#pragma unroll
    for (int c = 0; c < Tile::column_slots; c += 2)
      if (row0 + tile.row(r) < dz.extent && column0 + tile.column(c) < weight.extent)
        store_vector<2>({tile.value(r, c), tile.value(r, c + 1)}, to + tile.row(r) * pitch + tile.column(c));
}

/// sums += sum over the chunk's rows of dz_rv hidden_r; the first chunk has nothing to add to, the last one writes
/// dweight.
template <class T>
__global__ void __launch_bounds__(WeightTile<T>::threads)
    cross_entropy_dweight_kernel(RowChunk chunk, Operand<T> dz, Operand<T> hidden, accumulator_t<T>* sums,
                                 std::int64_t pitch, bool first, bool last, Upstream<T> upstream, View<T, 2> dweight,
                                 bool in_vectors) {
  using Real = accumulator_t<T>;
  using Tile = WeightTile<T>;
  const std::int64_t rows = chunk.rows();
  if (rows == 0 && !first && !last) return;
  const std::int64_t column_tiles = ceil_div(hidden.extent, Tile::columns);  // neighbours share a tile of dz
  const std::int64_t column0 = blockIdx.x % column_tiles * Tile::columns, v0 = blockIdx.x / column_tiles * Tile::rows;
  Tile tile;
  tile.multiply(dz, v0, hidden, column0, rows, dynamic_shared_memory<T>());
  const Real factor = last ? upstream.factor() : Real{1};
  const auto for_each_pair = [&](const auto& body) {
#pragma unroll
    for (int r = 0; r < Tile::row_slots; ++r)
#pragma unroll
      for (int c = 0; c < Tile::column_slots; c += 2)
        if (v0 + tile.row(r) < dz.extent && column0 + tile.column(c) < hidden.extent)
          body(v0 + tile.row(r), column0 + tile.column(c), tile.value(r, c), tile.value(r, c + 1));
  };
  for_each_pair([&](std::int64_t v, std::int64_t column, Real& sum0, Real& sum1) {
    if (!first) {
      const Vector<Real, 2> before = load_vector<2>(sums + v * pitch + column);
      sum0 += before.element[0];
      sum1 += before.element[1];
    }
    if (!last) return store_vector<2>({sum0, sum1}, sums + v * pitch + column);
    sum0 *= factor;
    sum1 *= factor;
    if (in_vectors) return;
    *dweight.at(v, column) = narrow<T>(sum0);
    if (column + 1 < hidden.extent) *dweight.at(v, column + 1) = narrow<T>(sum1);
  });
  if (last && in_vectors)
    tile.store(dweight.at(v0, column0), dweight.strides[0], dz.extent - v0, hidden.extent - column0);
}

template <class T>
std::int64_t whole_vectors(std::int64_t elements) {
  return ceil_div(elements, vector_length<T>) * vector_length<T>;
}

/// One call: the list of counted rows and the operands that all chunks share.
template <class T>
class CrossEntropy {
 public:
  using Real = accumulator_t<T>;

  CrossEntropy(const Context& context, const char* operation, const CrossEntropyProblem& problem,
               const CrossEntropyInputs& in)
      : context_(context),
        operation_(operation),
        smoothing_(problem.label_smoothing),
        ignored_(problem.ignore_index),
        hidden_(device_view<const T, 2>(in.hidden)),
        labels_(device_view<const std::int32_t, 1>(in.labels)),
        rows_(in.hidden.shape[0]),
        d_(in.hidden.shape[1]),
        vocabulary_(in.weight.shape[0]),
        pitch_(whole_vectors<T>(d_)),
        list_(context, operation, rows_),
        count_(context, operation, 1),
        hidden_in_vectors_(rows_are_packed(in.hidden, vector_length<T>)) {
    launch(context_, operation_, cross_entropy_list_kernel, 1, list_threads, 0, labels_, ignored_, list_.data(),
           count_.data());
    weight_ = {static_cast<const T*>(in.weight.data), in.weight.strides[0], vocabulary_};
    // Rows in ascending order, apart: the copy engine reads no others, and which kernels run may not depend on strides.
    if (!rows_are_packed(in.weight, vector_length<T>) || in.weight.strides[0] < d_) {
      packed_weight_.emplace(context_, operation_, vocabulary_ * pitch_);
      pack(device_view<const T, 2>(in.weight), false, {nullptr, nullptr, 0, vocabulary_}, packed_weight_->data());
      weight_.data = packed_weight_->data();
      weight_.pitch = pitch_;
    }
    if constexpr (is_16_bit<T>) {
      hopper_ = rows_ > 0 && hopper::takes_cross_entropy(context_, d_, vocabulary_, weight_.pitch);
      if (hopper_) tile_columns_ = hopper::logits_columns;
    }
    tiles_ = ceil_div(vocabulary_, tile_columns_);
  }

  void forward(Real* loss) {
    const Scratch<double> losses(context_, operation_, rows_);
    Rows rows(*this, std::min(rows_, forward_rows), false);
    for (std::int64_t first = 0; first < rows_; first += forward_rows)
      logits<false>(chunk(first, forward_rows), rows, nullptr, 0, losses.data());
    launch(context_, operation_, cross_entropy_mean_kernel<Real>, 1, list_threads, 0, losses.data(), count_.data(),
           loss);
  }

  void backward(const Real* dloss, const CrossEntropyGradients& gradients) {
    const Upstream<T> upstream{dloss, count_.data()};
    const View<T, 2> dhidden = device_view<T, 2>(gradients.dhidden), dweight = device_view<T, 2>(gradients.dweight);
    const std::int64_t backward_rows = rows_of_backward_chunk(), most = std::min(rows_, backward_rows),
                       dz_pitch = whole_vectors<T>(vocabulary_);
    Rows rows(*this, most, true);
    const Scratch<T> dz(context_, operation_, most * dz_pitch);
    const std::int64_t segment = hidden_segment(backward_rows), segments = ceil_div(vocabulary_, segment);
    const Scratch<Real> hidden_sums(context_, operation_, dhidden.present() ? segments * most * pitch_ : 0);
    const Scratch<Real> weight_sums(context_, operation_, dweight.present() && rows_ > most ? vocabulary_ * pitch_ : 0);

    if (dhidden.present())
      launch(context_, operation_, cross_entropy_dhidden_ignored_kernel<T>, rows_, gradient_threads, 0, labels_,
             ignored_, dhidden);
    const auto everywhere = static_cast<Real>(smoothing_ / static_cast<double>(vocabulary_) * dz_scale<T>);
    const auto at_label = static_cast<Real>((1 - smoothing_) * dz_scale<T>);
    std::int64_t first = 0;
    do {  // once without rows: dweight is 0
      const RowChunk part = chunk(first, backward_rows);
      logits<true>(part, rows, dz.data(), dz_pitch, nullptr);
      launch(context_, operation_, cross_entropy_dlogits_kernel<T>,
             Grid(ceil_div(vocabulary_, gradient_threads * vector_length<T>), part.most), gradient_threads, 0, part,
             labels_, rows.sums, vocabulary_, tile_columns_, everywhere, at_label, dz.data(), dz_pitch);
      if (dhidden.present()) {
        dhidden_sums(part, rows, dz.data(), dz_pitch, segment, hidden_sums.data());
        launch(context_, operation_, cross_entropy_dhidden_rows_kernel<T>,
               Grid(ceil_div(d_, gradient_threads), part.most), gradient_threads, 0, part, hidden_sums.data(), pitch_,
               segments, upstream, dhidden);
      }
      if (dweight.present())
        dweight_sums(part, rows, dz.data(), dz_pitch, weight_sums.data(), first == 0, first + backward_rows >= rows_,
                     upstream, dweight, rows_are_packed(gradients.dweight, vector_length<T>));
      first += backward_rows;
    } while (first < rows_);
  }

 private:
  /// Memory for the rows of one chunk after the other.
  struct Rows {
    Rows(const CrossEntropy& of, std::int64_t most, bool backward)
        : hidden(of.context_, of.operation_, most * of.pitch_),
          memory(of.context_, of.operation_, (3 * of.tiles_ + 3) * most) {
      const std::int64_t tiles = of.tiles_ * most;
      Real* const rows = memory.data() + 3 * tiles;
      sums = {
          memory.data(), memory.data() + tiles, of.smoothing_ > 0 && !backward ? memory.data() + 2 * tiles : nullptr,
          rows,          rows + most,           rows + 2 * most,
          most};
    }
    Scratch<T> hidden;
    Scratch<Real> memory;
    RowSums<Real> sums;
  };

  RowChunk chunk(std::int64_t first, std::int64_t most) const {
    return {list_.data(), count_.data(), first, std::min(most, rows_ - first)};
  }

  /// Larger ones spare the sums of dweight from being read and written, at the price of memory for dz.
  std::int64_t rows_of_backward_chunk() const {
    if (!hopper_) return least_backward_rows;
    return std::clamp(8 * d_ / 128 * 128, least_backward_rows, most_backward_rows);
  }

  /// Few rows and columns of dhidden are made up for by segments of V: about 256 blocks for a chunk, or on Hopper as
  /// few as keep 132 multiprocessors busy. Neither which multiprocessors there are nor how many rows a call has may
  /// matter to the sums.
  std::int64_t hidden_segment(std::int64_t chunk_rows) const {
    std::int64_t wanted = std::clamp<std::int64_t>(8192 / std::max<std::int64_t>(d_, 1), 1, 16);
    if (hopper_) {
      const std::int64_t tiles = ceil_div(chunk_rows, 128) * ceil_div(d_, 256);
      const auto busy = [tiles](std::int64_t segments) {
        const std::int64_t all = tiles * segments;
        return static_cast<double>(all) / static_cast<double>(ceil_div(all, 132) * 132);
      };
      wanted = std::min<std::int64_t>(ceil_div(200, tiles), 16);
      while (wanted < 16 && busy(wanted) < 0.9) ++wanted;
    }
    constexpr std::int64_t unit = 256;
    return ceil_div(ceil_div(vocabulary_, wanted), unit) * unit;
  }

  void pack(const View<const T, 2>& from, bool vectors, const RowChunk& rows, T* to) const {
    launch(context_, operation_, cross_entropy_pack_kernel<T>,
           Grid(ceil_div(d_, 128 * vector_length<T>), std::min<std::int64_t>(rows.most, 65535)), 128, 0, from, vectors,
           rows, to, pitch_);
  }

  template <bool keep>
  void logits(const RowChunk& part, Rows& rows, T* kept, std::int64_t kept_pitch, double* losses) const {
    pack(hidden_, hidden_in_vectors_, part, rows.hidden.data());
    logits_tiles<keep>(part, rows, kept, kept_pitch);
    launch(context_, operation_, cross_entropy_rows_kernel<T>, ceil_div(part.most, merge_rows),
           merge_rows * merge_parts, 0, part, labels_, rows.sums, tiles_, vocabulary_, smoothing_, losses);
  }

  // The products, by Hopper's kernels or the portable ones.
  hopper::CrossEntropyMatrices<T> matrices(const Rows& rows, T* dz, std::int64_t dz_pitch) const {
    return {operation_, rows.hidden.data(), pitch_, weight_.data, weight_.pitch, dz, dz_pitch, d_, vocabulary_};
  }

  template <bool keep>
  void logits_tiles(const RowChunk& part, const Rows& rows, T* kept, std::int64_t kept_pitch) const {
    if constexpr (is_16_bit<T>)
      if (hopper_)
        return hopper::cross_entropy_logits(context_, matrices(rows, kept, kept_pitch), part, labels_, rows.sums);
    using Tile = LogitsTile<T>;
    launch(context_, operation_, cross_entropy_logits_kernel<T, keep>, ceil_div(part.most, Tile::rows) * tiles_,
           Tile::threads, Tile::shared_bytes, Operand<T>{rows.hidden.data(), pitch_, part.most}, weight_, d_, part,
           labels_, rows.sums, kept, kept_pitch, dz_scale<T>);
  }

  void dhidden_sums(const RowChunk& part, const Rows& rows, T* dz, std::int64_t dz_pitch, std::int64_t segment,
                    Real* sums) const {
    if constexpr (is_16_bit<T>)
      if (hopper_)
        return hopper::cross_entropy_dhidden(context_, matrices(rows, dz, dz_pitch), part, segment, sums, pitch_);
    using Tile = HiddenTile<T>;
    const std::int64_t tiles = ceil_div(d_, Tile::columns) * ceil_div(part.most, Tile::rows);
    launch(context_, operation_, cross_entropy_dhidden_kernel<T>, tiles * ceil_div(vocabulary_, segment), Tile::threads,
           Tile::shared_bytes, part, Operand<T>{dz, dz_pitch, part.most}, Operand<T>{weight_.data, weight_.pitch, d_},
           vocabulary_, segment, sums, pitch_);
  }

  void dweight_sums(const RowChunk& part, const Rows& rows, T* dz, std::int64_t dz_pitch, Real* sums, bool first,
                    bool last, const Upstream<T>& upstream, const View<T, 2>& dweight, bool in_vectors) const {
    if constexpr (is_16_bit<T>)
      if (hopper_)
        return hopper::cross_entropy_dweight(context_, matrices(rows, dz, dz_pitch), part, sums, pitch_, first, last,
                                             upstream, dweight, in_vectors);
    using Tile = WeightTile<T>;
    const std::int64_t blocks = ceil_div(d_, Tile::columns) * ceil_div(vocabulary_, Tile::rows);
    launch(context_, operation_, cross_entropy_dweight_kernel<T>, blocks, Tile::threads, Tile::shared_bytes, part,
           Operand<T>{dz, dz_pitch, vocabulary_}, Operand<T>{rows.hidden.data(), pitch_, d_}, sums, pitch_, first, last,
           upstream, dweight, in_vectors);
  }

  const Context& context_;
  const char* operation_;
  double smoothing_;
  std::int64_t ignored_;
  View<const T, 2> hidden_;
  View<const std::int32_t, 1> labels_;
  std::int64_t rows_, d_, vocabulary_, pitch_, tiles_ = 0;
  Scratch<std::int64_t> list_, count_;
  bool hidden_in_vectors_, hopper_ = false;  // hopper_: of V, d and the layout of weight
  int tile_columns_ = LogitsTile<T>::columns;
  Operand<T> weight_;
  std::optional<Scratch<T>> packed_weight_;
};

}  // namespace

void CudaBackend::cross_entropy_forward(const CrossEntropyProblem& problem, const CrossEntropyInputs& in,
                                        const TensorView& loss) {
  const CurrentDevice current(context_.device);
  for_floating(in.hidden.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    CrossEntropy<T>(context_, "cross_entropy_forward", problem, in).forward(static_cast<accumulator_t<T>*>(loss.data));
  });
}

void CudaBackend::cross_entropy_backward(const CrossEntropyProblem& problem, const CrossEntropyInputs& in,
                                         const TensorView& dloss, const CrossEntropyGradients& gradients) {
  const CurrentDevice current(context_.device);
  for_floating(in.hidden.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    CrossEntropy<T>(context_, "cross_entropy_backward", problem, in)
        .backward(static_cast<const accumulator_t<T>*>(dloss.data), gradients);
  });
}

}  // namespace dsalt::cuda
