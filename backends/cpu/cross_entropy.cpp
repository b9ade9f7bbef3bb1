// Linear layer and loss in one. With logits s_rv = <hidden_r, weight_v>, e = label_smoothing and M counted rows:
//   loss = 1/M sum_r [ lse_r - (1-e) s_r,label - e mean_v s_rv ],   lse_r = log sum_v exp(s_rv)
//   ds_rv = dloss/M [ exp(s_rv - lse_r) - (1-e) (v = label_r) - e/V ]
//   dhidden_r = sum_v ds_rv weight_v        dweight_v = sum_r ds_rv hidden_r
// Rows with label ignore_index are not read; M = 0 gives loss 0 and gradients 0.
//
// Logits exist one tile of rows x vocabulary at a time. The forward keeps, per row and vocabulary segment, the maximum
// and the sum of exponentials under it; the backward recomputes each tile: by row blocks for dhidden, by vocabulary
// tiles for dweight. The order of every sum is fixed by the shapes alone.
//
// A tile is a product of panels (panel_kernels.hpp): one side, which stays for many tiles, is transposed so that its
// rows are lanes, the other is copied block by block. The lanes are rows of hidden in the forward pass and in dhidden,
// and rows of weight in dweight; a logit has the same bits both ways. How many lanes a task holds depends on the number
// of threads; no bit does, since a lane knows nothing of the others.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_backend.hpp"
#include "internal/elements.hpp"
#include "panel_kernels.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {
namespace {

constexpr std::int64_t tile = 128;        // copied rows that are worked on together
constexpr std::int64_t most_lanes = 256;  // transposed rows of a task
constexpr std::int64_t segment = 32 * tile;
constexpr std::int64_t chain = 64;  // multiply-adds in a row; longer sums are added up from these
constexpr std::int64_t tiles_in_float = 16;

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

/// Up to `tile` rows of a matrix, in blocks of panel_width columns; the last is filled up with zeros.
class Blocks {
 public:
  explicit Blocks(std::int64_t d) : count(ceil_div(d, panel_width)), d_(d), storage_(1, count * stride) {}

  /// Row r of it is at operator[](b) + r * panel_width.
  float* operator[](std::int64_t b) { return storage_[0] + b * stride; }

  void load(const RowIo& io, const TensorView& view, std::int64_t row, std::int64_t offset) {
    for (std::int64_t b = 0; b < count; ++b) {
      const std::int64_t columns = std::min(panel_width, d_ - b * panel_width);
      float* to = (*this)[b] + row * panel_width;
      const float* from = io.read(view, offset + b * panel_width * view.strides[1], view.strides[1], columns, to);
      if (from != to) std::copy_n(from, columns, to);
    }
  }

  std::int64_t count;

 private:
  static constexpr std::int64_t stride = tile * panel_width + 16;  // no two blocks on the same cache sets
  std::int64_t d_;
  RowBuffers storage_;
};

/// Up to `lanes` rows as panels.
class Panels {
 public:
  Panels(std::int64_t d, std::int64_t lanes)
      : blocks_(ceil_div(d, panel_width)), storage_(lanes / panel_width, blocks_ * step) {}

  void clear() { count = 0; }
  void append(const PanelKernels& kernels, Blocks& from, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; row += panel_width, ++count) {
      const std::int64_t lanes = std::min(panel_width, rows - row);
      width[count] = ceil_div(lanes, panel_lanes) * panel_lanes;
      for (std::int64_t b = 0; b < blocks_; ++b)
        kernels.transpose(from[b] + row * panel_width, panel_width, lanes, panel_width, at(count, b));
    }
  }
  float* at(std::int64_t panel, std::int64_t block) { return storage_[panel] + block * step; }

  std::int64_t count = 0, width[most_lanes / panel_width] = {};

 private:
  static constexpr std::int64_t step = panel_width * panel_width;
  std::int64_t blocks_;
  RowBuffers storage_;
};

class CrossEntropy {
 public:
  CrossEntropy(int threads, const Kernels& kernels, const CrossEntropyProblem& problem, const CrossEntropyInputs& in)
      : threads_(threads),
        io_(kernels),
        kernels_(panel_kernels_for(kernels)),
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
    Scratch(std::int64_t d, std::int64_t lanes)
        : panels(d, lanes), blocks(d), logits_(lanes / panel_width, tile * panel_width) {}
    /// Row i of the copied side, lane of the transposed one: logits(panel)[i * panel_width + lane].
    float* logits(std::int64_t panel) { return logits_[panel]; }
    Panels panels;  // the side that stays
    Blocks blocks;

   private:
    RowBuffers logits_;
  };

  /// The gradient of the rows in `panels`: float32 over a few tiles, then in double.
  struct TileSum {
    TileSum(std::int64_t d, std::int64_t lanes)
        : stride(ceil_div(d, panel_width) * panel_width + 16), part(1, lanes * stride), total(lanes * stride) {}
    void clear() {
      std::fill_n(part[0], total.size(), 0.0f);
      std::fill(total.begin(), total.end(), 0.0);
      tiles = 0;
    }
    std::int64_t stride;  // of a row
    RowBuffers part;
    std::vector<double> total;
    std::int64_t tiles = 0;
  };
  struct GradientScratch : Scratch {
    GradientScratch(std::int64_t d, std::int64_t lanes) : Scratch(d, lanes), sum(d, lanes) {}
    TileSum sum;
  };

  void load_hidden(std::int64_t first, std::int64_t count, Scratch& scratch) const {
    for (std::int64_t i = 0; i < count; ++i)
      scratch.blocks.load(io_, in_.hidden, i, counted_[first + i].row * in_.hidden.strides[0]);
  }
  void load_weight(std::int64_t first, std::int64_t count, Scratch& scratch) const {
    for (std::int64_t i = 0; i < count; ++i)
      scratch.blocks.load(io_, in_.weight, i, (first + i) * in_.weight.strides[0]);
  }

  /// Lanes of a task: few enough that every thread gets several of the tasks that `rows` rows and `factor` make.
  std::int64_t lanes_for(std::int64_t rows, std::int64_t factor) const {
    std::int64_t lanes = most_lanes;
    while (lanes > panel_width && rows * factor < 4 * threads_ * lanes) lanes /= 2;
    return lanes;
  }

  /// load(begin, count) brings rows [begin, begin + count) of `rows` into the blocks, and from there they become
  /// panels.
  template <class Load>
  void fill_panels(std::int64_t rows, Scratch& scratch, Load load) const {
    scratch.panels.clear();
    for (std::int64_t begin = 0; begin < rows; begin += tile) {
      const std::int64_t count = std::min(tile, rows - begin);
      load(begin, count);
      scratch.panels.append(kernels_, scratch.blocks, count);
    }
  }

  /// Logits of the transposed rows with `count` copied ones.
  void logits_tile(std::int64_t count, Scratch& scratch) const {
    for (std::int64_t b = 0; b < scratch.blocks.count; ++b)
      for (std::int64_t p = 0; p < scratch.panels.count; ++p)
        kernels_.product(count, panel_width, scratch.panels.width[p], scratch.blocks[b], panel_width, 1,
                         scratch.panels.at(p, b), scratch.logits(p), panel_width, b > 0);
  }

  /// sum += ds * copied rows, for `lanes` transposed rows and `count` copied ones.
  void add_tile(std::int64_t lanes, std::int64_t count, GradientScratch& scratch) const {
    TileSum& sum = scratch.sum;
    for (std::int64_t b = 0; b < scratch.blocks.count; ++b)
      for (std::int64_t begin = 0; begin < count; begin += chain)
        for (std::int64_t p = 0; p < scratch.panels.count; ++p)
          kernels_.product(std::min(panel_width, lanes - p * panel_width), std::min(chain, count - begin), panel_width,
                           scratch.logits(p) + begin * panel_width, 1, panel_width,
                           scratch.blocks[b] + begin * panel_width,
                           sum.part[0] + p * panel_width * sum.stride + b * panel_width, sum.stride, true);
    if (++sum.tiles % tiles_in_float == 0) flush(sum);
  }
  void flush(TileSum& sum) const {
    kernels_.flush(sum.part[0], sum.total.data(), static_cast<std::int64_t>(sum.total.size()));
  }

  void store(const TileSum& sum, std::int64_t row, const TensorView& into, std::int64_t into_row) const {
    for (std::int64_t c = 0; c < d_; ++c)
      store_double(into, into_row * into.strides[0] + c * into.strides[1], sum.total[row * sum.stride + c]);
  }

  void sum_rows() {
    const std::int64_t segments = ceil_div(vocabulary_, segment), lanes = lanes_for(rows_, segments);
    const std::int64_t blocks = ceil_div(rows_, lanes);
    std::vector<SegmentSums> parts(rows_ * segments);
    sums_.assign(rows_, {});
    parallel_for(
        threads_, blocks * segments, 1, [&] { return Scratch(d_, lanes); },
        [&](Scratch& scratch, std::int64_t task) {
          const std::int64_t first = task / segments * lanes, rows = std::min(lanes, rows_ - first);
          const std::int64_t begin = task % segments * segment, end = std::min(vocabulary_, begin + segment);
          fill_panels(rows, scratch,
                      [&](std::int64_t begin, std::int64_t count) { load_hidden(first + begin, count, scratch); });
          float maximum[most_lanes];
          double exponentials[most_lanes] = {}, logits[most_lanes] = {};
          std::fill_n(maximum, most_lanes, -std::numeric_limits<float>::infinity());
          for (std::int64_t v = begin; v < end; v += tile) {
            const std::int64_t columns = std::min(tile, end - v);
            load_weight(v, columns, scratch);
            logits_tile(columns, scratch);
            for (std::int64_t i = 0; i < rows; ++i) {
              const std::int64_t label = counted_[first + i].label - v;
              if (label >= 0 && label < columns)
                sums_[first + i].label_logit = scratch.logits(i / panel_width)[label * panel_width + i % panel_width];
            }
            for (std::int64_t p = 0, lane = 0; p < scratch.panels.count; ++p, lane += panel_width)
              kernels_.add_logits(scratch.logits(p), columns, scratch.panels.width[p], maximum + lane,
                                  exponentials + lane, smoothing_ > 0 ? logits + lane : nullptr);
          }
          for (std::int64_t i = 0; i < rows; ++i)
            parts[(first + i) * segments + task % segments] = {maximum[i], exponentials[i], logits[i]};
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

  /// Maxima, scales and the two constants of ds for rows [first, first + count).
  struct RowScales {
    RowScales(const CrossEntropy& of, std::int64_t first, std::int64_t count)
        : smooth(static_cast<float>(of.smoothing_ * of.row_gradient_ / static_cast<double>(of.vocabulary_))),
          hit(static_cast<float>((1 - of.smoothing_) * of.row_gradient_)) {
      for (std::int64_t i = 0; i < count; ++i) {
        const SegmentSums& sums = of.sums_[first + i].all;
        maximum[i] = sums.maximum;
        scale[i] = static_cast<float>(of.row_gradient_ / sums.exponentials);
      }
    }
    float smooth, hit;
    float maximum[most_lanes] = {}, scale[most_lanes] = {};
  };

  void hidden_gradient(const TensorView& dhidden) const {
    for (std::int64_t r = 0, next = 0; r < dhidden.shape[0]; ++r) {
      if (next < rows_ && counted_[next].row == r)
        ++next;
      else
        for (std::int64_t c = 0; c < d_; ++c) store_double(dhidden, r * dhidden.strides[0] + c * dhidden.strides[1], 0);
    }
    const std::int64_t lanes = lanes_for(rows_, 1);
    parallel_for(
        threads_, ceil_div(rows_, lanes), 1, [&] { return GradientScratch(d_, lanes); },
        [&](GradientScratch& scratch, std::int64_t block) {
          const std::int64_t first = block * lanes, rows = std::min(lanes, rows_ - first);
          const RowScales scales(*this, first, rows);
          fill_panels(rows, scratch,
                      [&](std::int64_t begin, std::int64_t count) { load_hidden(first + begin, count, scratch); });
          scratch.sum.clear();
          for (std::int64_t v = 0; v < vocabulary_; v += tile) {
            const std::int64_t columns = std::min(tile, vocabulary_ - v);
            load_weight(v, columns, scratch);
            logits_tile(columns, scratch);
            for (std::int64_t p = 0, lane = 0; p < scratch.panels.count; ++p, lane += panel_width)
              kernels_.gradients_lanes(scratch.logits(p), columns, scratch.panels.width[p], scales.maximum + lane,
                                       scales.scale + lane, scales.smooth);
            for (std::int64_t i = 0; i < rows; ++i) {
              const std::int64_t label = counted_[first + i].label - v;
              if (label >= 0 && label < columns)
                scratch.logits(i / panel_width)[label * panel_width + i % panel_width] -= scales.hit;
            }
            add_tile(rows, columns, scratch);
          }
          flush(scratch.sum);
          for (std::int64_t i = 0; i < rows; ++i) store(scratch.sum, i, dhidden, counted_[first + i].row);
        });
  }

  void weight_gradient(const TensorView& dweight) const {
    const std::int64_t lanes = lanes_for(vocabulary_, 1);
    parallel_for(
        threads_, ceil_div(vocabulary_, lanes), 1, [&] { return GradientScratch(d_, lanes); },
        [&](GradientScratch& scratch, std::int64_t index) {
          const std::int64_t v = index * lanes, columns = std::min(lanes, vocabulary_ - v);
          fill_panels(columns, scratch,
                      [&](std::int64_t begin, std::int64_t count) { load_weight(v + begin, count, scratch); });
          scratch.sum.clear();
          for (std::int64_t first = 0; first < rows_; first += tile) {
            const std::int64_t rows = std::min(tile, rows_ - first);
            const RowScales scales(*this, first, rows);
            load_hidden(first, rows, scratch);
            logits_tile(rows, scratch);
            for (std::int64_t p = 0; p < scratch.panels.count; ++p)
              kernels_.gradients_rows(scratch.logits(p), rows, scratch.panels.width[p], scales.maximum, scales.scale,
                                      scales.smooth);
            for (std::int64_t i = 0; i < rows; ++i) {
              const std::int64_t label = counted_[first + i].label - v;
              if (label >= 0 && label < columns)
                scratch.logits(label / panel_width)[i * panel_width + label % panel_width] -= scales.hit;
            }
            add_tile(columns, rows, scratch);
          }
          flush(scratch.sum);
          for (std::int64_t j = 0; j < columns; ++j) store(scratch.sum, j, dweight, v + j);
        });
  }

  int threads_;
  RowIo io_;
  const PanelKernels& kernels_;
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
  store_double(loss, 0, CrossEntropy(threads(), kernels_, problem, in).loss());
}

void CpuBackend::cross_entropy_backward(const CrossEntropyProblem& problem, const CrossEntropyInputs& in,
                                        const TensorView& dloss, const CrossEntropyGradients& gradients) {
  CrossEntropy(threads(), kernels_, problem, in).gradients(load_double(dloss, 0), gradients);
}

}  // namespace dsalt::internal
