// The panel kernel table of one instruction set: compiled once per set with its own flags (CMakeLists.txt), which
// define DSALT_PANEL_KERNELS (the table's name) and DSALT_LANES (float32 lanes per vector).
#include "panel_kernels.hpp"

#include "row_vector.hpp"

namespace dsalt::internal {
namespace {

// 6 x 4 (32 vector registers) or 6 x 2 (16) accumulators hide the latency of the multiply-add.
constexpr int block_rows = 6;
constexpr int block_vectors = DSALT_LANES == 16 ? 4 : 2;

template <int R, int N>
inline void block(std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_column, const float* panel,
                  float* c, std::int64_t c_stride, bool add) {
  F sum[R][N] = {};
  for (std::int64_t t = 0; t < k; ++t) {
    F x[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) x[n] = load(panel + t * panel_width + n * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F y = broadcast(a[r * a_row + t * a_column]);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(y, x[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      float* to = c + r * c_stride + n * lanes;
      store(to, add ? load(to) + sum[r][n] : sum[r][n]);
    }
}

template <int N>
inline void rows(std::int64_t count, std::int64_t k, const float* a, std::int64_t a_row, std::int64_t a_column,
                 const float* panel, float* c, std::int64_t c_stride, bool add) {
  for (; count >= block_rows; count -= block_rows, a += block_rows * a_row, c += block_rows * c_stride)
    block<block_rows, N>(k, a, a_row, a_column, panel, c, c_stride, add);
  switch (count) {
    case 1: block<1, N>(k, a, a_row, a_column, panel, c, c_stride, add); break;
    case 2: block<2, N>(k, a, a_row, a_column, panel, c, c_stride, add); break;
    case 3: block<3, N>(k, a, a_row, a_column, panel, c, c_stride, add); break;
    case 4: block<4, N>(k, a, a_row, a_column, panel, c, c_stride, add); break;
    case 5: block<5, N>(k, a, a_row, a_column, panel, c, c_stride, add); break;
    default: break;
  }
}

void product(std::int64_t count, std::int64_t k, std::int64_t width, const float* a, std::int64_t a_row,
             std::int64_t a_column, const float* panel, float* c, std::int64_t c_stride, bool add) {
  std::int64_t lane = 0;
  for (; lane + block_vectors * lanes <= width; lane += block_vectors * lanes)
    rows<block_vectors>(count, k, a, a_row, a_column, panel + lane, c + lane, c_stride, add);
  switch ((width - lane) / lanes) {
    case 1: rows<1>(count, k, a, a_row, a_column, panel + lane, c + lane, c_stride, add); break;
    case 2: rows<2>(count, k, a, a_row, a_column, panel + lane, c + lane, c_stride, add); break;
    case 3: rows<3>(count, k, a, a_row, a_column, panel + lane, c + lane, c_stride, add); break;
    default: break;
  }
}

void transpose(const float* from, std::int64_t row_stride, std::int64_t count, std::int64_t k, float* panel) {
  for (std::int64_t begin = 0; begin < k; begin += 16) {  // a cache line of each row at a time
    const std::int64_t end = begin + 16 < k ? begin + 16 : k;
    for (std::int64_t lane = 0; lane < panel_width; ++lane)
      for (std::int64_t t = begin; t < end; ++t)
        panel[t * panel_width + lane] = lane < count ? from[lane * row_stride + t] : 0.0f;
  }
}

void add_logits(float* s, std::int64_t count, std::int64_t width, float* maximum, double* exponentials,
                double* logits) {
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    const F old = load(maximum + lane);
    F highest = old;
    for (std::int64_t i = 0; i < count; ++i) highest = larger(load(s + i * panel_width + lane), highest);
    const F factor = old < highest ? exponential(old - highest) : broadcast(1.0f);
    store(maximum + lane, highest);
    Dh low = {}, high = {}, low_logits = {}, high_logits = {};
    for (std::int64_t i = 0; i < count; ++i) {
      const F value = load(s + i * panel_width + lane), e = exponential(value - highest);
      low += widen_half(low_half(e));
      high += widen_half(high_half(e));
      low_logits += widen_half(low_half(value));
      high_logits += widen_half(high_half(value));
    }
    double* sums = exponentials + lane;
    store_half(sums, load_half(sums) * widen_half(low_half(factor)) + low);
    store_half(sums + half_lanes, load_half(sums + half_lanes) * widen_half(high_half(factor)) + high);
    if (!logits) continue;
    store_half(logits + lane, load_half(logits + lane) + low_logits);
    store_half(logits + lane + half_lanes, load_half(logits + lane + half_lanes) + high_logits);
  }
}

void gradients_lanes(float* s, std::int64_t count, std::int64_t width, const float* maximum, const float* scale,
                     float shift) {
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    const F highest = load(maximum + lane), factor = load(scale + lane);
    for (std::int64_t i = 0; i < count; ++i) {
      float* at = s + i * panel_width + lane;
      store(at, exponential(load(at) - highest) * factor - shift);
    }
  }
}

void gradients_rows(float* s, std::int64_t count, std::int64_t width, const float* maximum, const float* scale,
                    float shift) {
  for (std::int64_t i = 0; i < count; ++i) {
    const F highest = broadcast(maximum[i]), factor = broadcast(scale[i]);
    for (std::int64_t lane = 0; lane < width; lane += lanes) {
      float* at = s + i * panel_width + lane;
      store(at, exponential(load(at) - highest) * factor - shift);
    }
  }
}

void flush(float* part, double* total, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    total[i] += static_cast<double>(part[i]);
    part[i] = 0;
  }
}

}  // namespace

const PanelKernels DSALT_PANEL_KERNELS = {
#if DSALT_LANES == 16
    .name = "own AVX-512 kernel",
#elif DSALT_LANES == 8
    .name = "own AVX2 kernel",
#else
    .name = "own baseline kernel",
#endif
    .product = product,
    .transpose = transpose,
    .add_logits = add_logits,
    .gradients_lanes = gradients_lanes,
    .gradients_rows = gradients_rows,
    .flush = flush,
};

}  // namespace dsalt::internal
