// Linear layer and loss in one. With logits s_rv = <hidden_r, weight_v>, e = label_smoothing and M counted rows:
//   loss = 1/M sum_r [ lse_r - (1-e) s_r,label - e mean_v s_rv ],   lse_r = log sum_v exp(s_rv)
//   ds_rv = dloss/M [ exp(s_rv - lse_r) - (1-e) (v = label_r) - e/V ]
//   dhidden_r = sum_v ds_rv weight_v        dweight_v = sum_r ds_rv hidden_r
// Rows with label ignore_index are not read; M = 0 gives loss 0 and gradients 0.
//
// Logits exist one tile of rows x vocabulary at a time. The forward keeps, per row and vocabulary segment, the maximum
// and the sum of exponentials under it; the backward recomputes each tile: by row blocks for dhidden, by vocabulary
// tiles for dweight. Tiles, segments and the order of every sum are fixed by the shapes alone.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_backend.hpp"
#include "float_math.hpp"
#include "internal/elements.hpp"
#include "matmul.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace dsalt::internal {
namespace {

constexpr std::int64_t tile_rows = 64;      // rows whose logits are worked on together
constexpr std::int64_t tile_columns = 128;  // vocabulary entries of a tile
constexpr std::int64_t segment = 32 * tile_columns;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// What one vocabulary segment contributes to a row's loss.
struct SegmentSums {
  float maximum = -std::numeric_limits<float>::infinity();
  double exponentials = 0;  // sum of exp(s - maximum)
  double logits = 0;        // sum of s
};

/// The same over the whole vocabulary.
struct RowSums {
  SegmentSums all;
  float label_logit = 0;
};

class CrossEntropy {
 public:
  CrossEntropy(int threads, const Matmul& matmul, const CrossEntropyProblem& problem, const CrossEntropyInputs& in)
      : threads_(threads),
        matmul_(matmul),
        in_(in),
        smoothing_(problem.label_smoothing),
        vocabulary_(in.weight.shape[0]),
        d_(in.hidden.shape[1]) {
    for (std::int64_t r = 0; r < in.labels.shape[0]; ++r)
      if (const std::int32_t label = load_i32(in.labels, r); label != problem.ignore_index)
        counted_.push_back({r, label});
    rows_ = static_cast<std::int64_t>(counted_.size());
  }

  double loss() {
    sum_rows();
    double total = 0;
    for (const RowSums& row : sums_) {
      const double maximum = static_cast<double>(row.all.maximum);
      const double lse = maximum + std::log(row.all.exponentials);
      total += lse - (1 - smoothing_) * static_cast<double>(row.label_logit);
      if (smoothing_ > 0) total -= smoothing_ * (row.all.logits / static_cast<double>(vocabulary_));
    }
    return rows_ == 0 ? 0 : total / static_cast<double>(rows_);
  }

  void gradients(double dloss, const CrossEntropyGradients& gradients) {
    row_gradient_ = rows_ == 0 ? 0 : dloss / static_cast<double>(rows_);
    sum_rows();
    if (gradients.dhidden.present()) hidden_gradient(gradients.dhidden);
    if (gradients.dweight.present()) weight_gradient(gradients.dweight);
  }

 private:
  struct Counted {
    std::int64_t row;
    std::int32_t label;
  };

  /// One thread's buffers.
  struct Scratch {
    explicit Scratch(std::int64_t d)
        : hidden(tile_rows * d), weight(tile_columns * d), logits(tile_rows * tile_columns) {}
    std::vector<float> hidden, weight, logits;
  };
  struct Matrix {
    const float* data;
    std::int64_t stride;
  };

  /// Sums of many tiles: float32 over a few tiles, these in double.
  struct TileSum {
    TileSum(std::int64_t rows, std::int64_t d) : part(rows * d), total(rows * d) {}
    void clear() {
      std::fill(part.begin(), part.end(), 0.0f);
      std::fill(total.begin(), total.end(), 0.0);
      tiles = 0;
    }
    void tile_added() {
      if (++tiles % 16 == 0) flush();
    }
    void flush() {
      for (std::size_t i = 0; i < part.size(); ++i) total[i] += static_cast<double>(part[i]);
      std::fill(part.begin(), part.end(), 0.0f);
    }
    std::vector<float> part;
    std::vector<double> total;
    std::int64_t tiles = 0;
  };

  /// Hidden rows of the counted rows [first, first + count).
  Matrix hidden_rows(std::int64_t first, std::int64_t count, Scratch& scratch) const {
    for (std::int64_t i = 0; i < count; ++i)
      load_row(in_.hidden, counted_[first + i].row * in_.hidden.strides[0], in_.hidden.strides[1], d_,
               scratch.hidden.data() + i * d_);
    return {scratch.hidden.data(), d_};
  }

  Matrix weight_rows(std::int64_t first, std::int64_t count, Scratch& scratch) const {
    const TensorView& weight = in_.weight;
    if (weight.dtype == DType::f32 && weight.strides[1] == 1)
      return {weight.at<float>(first * weight.strides[0]), weight.strides[0]};
    for (std::int64_t j = 0; j < count; ++j)
      load_row(weight, (first + j) * weight.strides[0], weight.strides[1], d_, scratch.weight.data() + j * d_);
    return {scratch.weight.data(), d_};
  }

  void logits_tile(std::int64_t rows, std::int64_t columns, const Matrix& hidden, const Matrix& weight,
                   Scratch& scratch) const {
    std::fill(scratch.logits.begin(), scratch.logits.end(), 0.0f);
    matmul_.dot(rows, columns, d_, hidden.data, hidden.stride, weight.data, weight.stride, scratch.logits.data(),
                tile_columns);
  }

  static float maximum_of(const float* s, std::int64_t count) {
    float lanes[8];
    std::fill_n(lanes, 8, -std::numeric_limits<float>::infinity());
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      for (int l = 0; l < 8; ++l) lanes[l] = s[i + l] > lanes[l] ? s[i + l] : lanes[l];
    for (int l = 0; i < count; ++i, ++l) lanes[l] = s[i] > lanes[l] ? s[i] : lanes[l];
    return *std::max_element(lanes, lanes + 8);
  }

  /// Adds one row of a tile to its segment's sums.
  void add_logits(float* s, std::int64_t count, SegmentSums& sums) const {
    if (smoothing_ > 0)
      for (std::int64_t i = 0; i < count; ++i) sums.logits += static_cast<double>(s[i]);
    const float maximum = std::max(sums.maximum, maximum_of(s, count));
    if (maximum > sums.maximum) {
      sums.exponentials *= std::exp(static_cast<double>(sums.maximum) - static_cast<double>(maximum));
      sums.maximum = maximum;
    }
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) s[i] = exp_float(s[i] - maximum);
    double exponentials = 0;
    for (std::int64_t i = 0; i < count; ++i) exponentials += static_cast<double>(s[i]);
    sums.exponentials += exponentials;
  }

  void sum_rows() {
    const std::int64_t blocks = ceil_div(rows_, tile_rows), segments = ceil_div(vocabulary_, segment);
    std::vector<SegmentSums> parts(rows_ * segments);
    sums_.assign(rows_, {});
    parallel_for(
        threads_, blocks * segments, 1, [&] { return Scratch(d_); },
        [&](Scratch& scratch, std::int64_t task) {
          const std::int64_t first = task / segments * tile_rows, rows = std::min(tile_rows, rows_ - first);
          const std::int64_t begin = task % segments * segment, end = std::min(vocabulary_, begin + segment);
          const Matrix hidden = hidden_rows(first, rows, scratch);
          for (std::int64_t v = begin; v < end; v += tile_columns) {
            const std::int64_t columns = std::min(tile_columns, end - v);
            logits_tile(rows, columns, hidden, weight_rows(v, columns, scratch), scratch);
            for (std::int64_t i = 0; i < rows; ++i) {
              float* s = scratch.logits.data() + i * tile_columns;
              const std::int64_t label = counted_[first + i].label - v;
              if (label >= 0 && label < columns) sums_[first + i].label_logit = s[label];
              add_logits(s, columns, parts[(first + i) * segments + task % segments]);
            }
          }
        });
    for (std::int64_t r = 0; r < rows_; ++r) {
      SegmentSums& all = sums_[r].all;
      for (std::int64_t part = 0; part < segments; ++part)
        all.maximum = std::max(all.maximum, parts[r * segments + part].maximum);
      for (std::int64_t part = 0; part < segments; ++part) {
        const SegmentSums& sums = parts[r * segments + part];
        all.exponentials +=
            sums.exponentials * std::exp(static_cast<double>(sums.maximum) - static_cast<double>(all.maximum));
        all.logits += sums.logits;
      }
    }
  }

  /// Logits of a tile to ds.
  void logits_to_gradients(std::int64_t first, std::int64_t rows, std::int64_t v, std::int64_t columns,
                           Scratch& scratch) const {
    const auto smooth = static_cast<float>(smoothing_ * row_gradient_ / static_cast<double>(vocabulary_));
    const auto hit = static_cast<float>((1 - smoothing_) * row_gradient_);
    for (std::int64_t i = 0; i < rows; ++i) {
      const RowSums& sums = sums_[first + i];
      const float maximum = sums.all.maximum;
      const auto scale = static_cast<float>(row_gradient_ / sums.all.exponentials);
      float* s = scratch.logits.data() + i * tile_columns;
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) s[j] = exp_float(s[j] - maximum) * scale - smooth;
      const std::int64_t label = counted_[first + i].label - v;
      if (label >= 0 && label < columns) s[label] -= hit;
    }
  }

  void hidden_gradient(const TensorView& dhidden) const {
    for (std::int64_t r = 0, next = 0; r < dhidden.shape[0]; ++r) {
      if (next < rows_ && counted_[next].row == r)
        ++next;
      else
        for (std::int64_t c = 0; c < d_; ++c) store_double(dhidden, r * dhidden.strides[0] + c * dhidden.strides[1], 0);
    }
    struct HiddenScratch : Scratch {
      explicit HiddenScratch(std::int64_t d) : Scratch(d), sum(tile_rows, d) {}
      TileSum sum;
    };
    parallel_for(
        threads_, ceil_div(rows_, tile_rows), 1, [&] { return HiddenScratch(d_); },
        [&](HiddenScratch& scratch, std::int64_t block) {
          const std::int64_t first = block * tile_rows, rows = std::min(tile_rows, rows_ - first);
          const Matrix hidden = hidden_rows(first, rows, scratch);
          scratch.sum.clear();
          for (std::int64_t v = 0; v < vocabulary_; v += tile_columns) {
            const std::int64_t columns = std::min(tile_columns, vocabulary_ - v);
            const Matrix weight = weight_rows(v, columns, scratch);
            logits_tile(rows, columns, hidden, weight, scratch);
            logits_to_gradients(first, rows, v, columns, scratch);
            matmul_.accumulate(rows, d_, columns, scratch.logits.data(), tile_columns, 1, weight.data, weight.stride,
                               scratch.sum.part.data(), d_);
            scratch.sum.tile_added();
          }
          scratch.sum.flush();
          for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t c = 0; c < d_; ++c)
              store_double(dhidden, counted_[first + i].row * dhidden.strides[0] + c * dhidden.strides[1],
                           scratch.sum.total[i * d_ + c]);
        });
  }

  void weight_gradient(const TensorView& dweight) const {
    struct WeightScratch : Scratch {
      explicit WeightScratch(std::int64_t d) : Scratch(d), sum(tile_columns, d) {}
      TileSum sum;
    };
    parallel_for(
        threads_, ceil_div(vocabulary_, tile_columns), 1, [&] { return WeightScratch(d_); },
        [&](WeightScratch& scratch, std::int64_t tile) {
          const std::int64_t v = tile * tile_columns, columns = std::min(tile_columns, vocabulary_ - v);
          const Matrix weight = weight_rows(v, columns, scratch);
          scratch.sum.clear();
          for (std::int64_t first = 0; first < rows_; first += tile_rows) {
            const std::int64_t rows = std::min(tile_rows, rows_ - first);
            const Matrix hidden = hidden_rows(first, rows, scratch);
            logits_tile(rows, columns, hidden, weight, scratch);
            logits_to_gradients(first, rows, v, columns, scratch);
            matmul_.accumulate(columns, d_, rows, scratch.logits.data(), 1, tile_columns, hidden.data, hidden.stride,
                               scratch.sum.part.data(), d_);
            scratch.sum.tile_added();
          }
          scratch.sum.flush();
          for (std::int64_t j = 0; j < columns; ++j)
            for (std::int64_t c = 0; c < d_; ++c)
              store_double(dweight, (v + j) * dweight.strides[0] + c * dweight.strides[1],
                           scratch.sum.total[j * d_ + c]);
        });
  }

  int threads_;
  const Matmul& matmul_;
  const CrossEntropyInputs& in_;
  double smoothing_;
  std::int64_t vocabulary_, d_, rows_ = 0;
  std::vector<Counted> counted_;
  std::vector<RowSums> sums_;
  double row_gradient_ = 0;
};

}  // namespace

void CpuBackend::cross_entropy_forward(const CrossEntropyProblem& problem, const CrossEntropyInputs& in,
                                       const TensorView& loss) {
  store_double(loss, 0, CrossEntropy(threads(), matmul_for(kernels_), problem, in).loss());
}

void CpuBackend::cross_entropy_backward(const CrossEntropyProblem& problem, const CrossEntropyInputs& in,
                                        const TensorView& dloss, const CrossEntropyGradients& gradients) {
  CrossEntropy(threads(), matmul_for(kernels_), problem, in).gradients(load_double(dloss, 0), gradients);
}

}  // namespace dsalt::internal
