// w(b,h,i) = n_min + sigma(z) (n_max - n_min), z = <x_bi, a_h> + c_h, floored when asked: docs/semantics.md,
// "Selectors".
//   dz = dw (n_max - n_min) sigma(z) sigma(-z), 0 with floor
//   dx_bi = sum_h dz a_h        da_h = sum_{b,i} dz x_bi        dc_h = sum_{b,i} dz
//
// The forward pass reads x once for all heads. The backward pass does the same again, keeps dz in float (double for
// double), and makes each gradient from it; only da needs x a second time. Sums over a row of x run over its vectors in
// the same way for every row; da is summed in parts of rows that depend on nothing but their number.
#include <algorithm>
#include <bit>

#include "cuda_backend.hpp"
#include "launch.cuh"
#include "mma.cuh"
#include "reduce.cuh"
#include "window_sizes_predictor.cuh"

namespace dsalt::cuda {
namespace {

constexpr int block = 128, warps = block / 32, block_rows = 16;  // of the two kernels for z

/// x and weights of one 16-bit type. A warp takes every fourth 32 elements of 16 rows; within these, lane 4 g + t
/// has elements 8 t .. 8 t + 7 of rows g and g + 8 of x and of head g, so that fragments come straight from memory:
/// both sides of the product have their k in the same (shuffled) order.
template <class T, bool packed, int groups>
__global__ void __launch_bounds__(block) window_sizes_mma_kernel(Predictor<T, T> p) {
  constexpr int heads_at_once = groups * head_group, batch = packed ? 4 : 1;  // of loads of x on their way together
  __shared__ float parts[warps][heads_at_once][block_rows + 1];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * block_rows;
  const T *const low = p.template x_row<packed>(row0 + g), *const high = p.template x_row<packed>(row0 + g + 8);
  using Four = Vector<std::uint32_t, 4>;
  const auto fragment = [&](const T* row, std::int64_t step, std::int64_t k) {
    return std::bit_cast<Four>(row_vector<packed, 8>(row, step, k, p.x.d));
  };
  for (std::int64_t head0 = 0; head0 < p.pitch; head0 += heads_at_once) {
    const T* weight[groups];
#pragma unroll
    for (int n = 0; n < groups; ++n) weight[n] = p.weight_row(head0 + n * head_group + g);
    float sums[groups][4] = {};
    for (std::int64_t k0 = warp * 32 + 8 * t; k0 - 8 * t < p.x.d; k0 += batch * warps * 32) {
      Four x0[batch], x1[batch];
#pragma unroll
      for (int s = 0; s < batch; ++s) {
        x0[s] = fragment(low, p.x.step, k0 + s * warps * 32);
        x1[s] = fragment(high, p.x.step, k0 + s * warps * 32);
      }
#pragma unroll
      for (int s = 0; s < batch; ++s)
#pragma unroll
        for (int n = 0; n < groups; ++n) {
          const Four a = fragment(weight[n], p.weight.strides[1], k0 + s * warps * 32);
#pragma unroll
          for (int pair = 0; pair < 4; pair += 2)
            mma_16x8x16<T>(sums[n],
                           {x0[s].element[pair], x1[s].element[pair], x0[s].element[pair + 1], x1[s].element[pair + 1]},
                           {a.element[pair], a.element[pair + 1]});
        }
    }
#pragma unroll
    for (int n = 0; n < groups; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) parts[warp][n * head_group + 2 * t + e % 2][g + e / 2 * 8] = sums[n][e];
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < heads_at_once * block_rows; e += block) {
      const int head = e / block_rows, row = e % block_rows;
      float product = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) product += parts[w][head][row];
      p.finish(row0 + row, head0 + head, product);
    }
    __syncthreads();  // before parts is written again
  }
}

/// Other types: a warp takes 4 rows and 8 heads at once, its lanes the vectors of a row. The 32 sums are added up
/// over the lanes by halves, so that each lane ends with one of them.
template <class T, class W, bool packed>
__global__ void __launch_bounds__(block) window_sizes_kernel(Predictor<T, W> p) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>, warp_rows = block_rows / warps;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.x) * block_rows + warp * warp_rows;
  for (std::int64_t head0 = 0; head0 < p.pitch; head0 += head_group) {
    Real sums[warp_rows * head_group] = {};
    for (std::int64_t column = lane * n; column < p.x.d; column += 32 * n) {
      Real x[warp_rows][n];
#pragma unroll
      for (int r = 0; r < warp_rows; ++r)
        widen_vector(row_vector<packed, n>(p.template x_row<packed>(row0 + r), p.x.step, column, p.x.d), x[r]);
#pragma unroll
      for (int h = 0; h < head_group; ++h) {
        Real a[n];
        widen_vector(row_vector<packed, n>(p.weight_row(head0 + h), p.weight.strides[1], column, p.x.d), a);
#pragma unroll
        for (int r = 0; r < warp_rows; ++r)
#pragma unroll
          for (int e = 0; e < n; ++e) sums[r * head_group + h] = fma(x[r][e], a[e], sums[r * head_group + h]);
      }
    }
#pragma unroll
    for (int bit = 4; bit >= 0; --bit) {
      const int step = 1 << bit;
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (i >= step) continue;
        const Real other = __shfl_xor_sync(0xffffffffu, upper ? sums[i] : sums[i + step], step);
        sums[i] = (upper ? sums[i + step] : sums[i]) + other;
      }
    }
    p.finish(row0 + lane / head_group, head0 + lane % head_group, sums[0]);
  }
}

constexpr int dx_rows = 4;  // of a warp

/// dx = dz a. A warp takes 4 rows of 32 vectors of columns.
template <class T, class W, bool packed>
__global__ void __launch_bounds__(block) window_sizes_dx_kernel(Predictor<T, W> p, TokenRows<T> dx) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>;
  const std::int64_t column_blocks = ceil_div(dx.d, 32 * n);
  const std::int64_t column = (blockIdx.x % column_blocks * 32 + threadIdx.x % 32) * n;
  const std::int64_t row0 = (blockIdx.x / column_blocks * warps + threadIdx.x / 32) * dx_rows;
  if (column >= dx.d || row0 >= dx.count) return;
  Real sums[dx_rows][n] = {};
  constexpr int heads_at_once = 4;
  for (std::int64_t head0 = 0; head0 < p.heads(); head0 += heads_at_once) {
    Real dz[dx_rows][heads_at_once];
#pragma unroll
    for (int r = 0; r < dx_rows; ++r)
      widen_vector(load_vector<heads_at_once>(p.dz + min(row0 + r, dx.count - 1) * p.pitch + head0), dz[r]);
#pragma unroll
    for (int h = 0; h < heads_at_once; ++h) {
      Real a[n];  // dz is 0 for heads past the last one
      widen_vector(row_vector<packed, n>(p.weight_row(head0 + h), p.weight.strides[1], column, dx.d), a);
#pragma unroll
      for (int r = 0; r < dx_rows; ++r)
#pragma unroll
        for (int e = 0; e < n; ++e) sums[r][e] = fma(dz[r][h], a[e], sums[r][e]);
    }
  }
#pragma unroll
  for (int r = 0; r < dx_rows; ++r) {
    if (row0 + r >= dx.count) return;
    store_part<n, packed>(sums[r], dx.template row<packed>(row0 + r), dx.step, column, dx.d);
  }
}

/// parts[part][h][:] = sum of dz x over the part's rows. A block takes 8 heads and 32 vectors of columns, its warps
/// every fourth row. Blocks of the same x are neighbours.
template <class T, bool packed>
__global__ void __launch_bounds__(block)
    window_sizes_dweight_parts_kernel(TokenRows<const T> x, const accumulator_t<T>* dz, std::int64_t pitch,
                                      std::int64_t heads, std::int64_t part_rows, accumulator_t<T>* parts) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>, columns = 32 * n;
  __shared__ Real warp_sums[warps][head_group][columns];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const std::int64_t groups = pitch / head_group, column_blocks = ceil_div(x.d, columns);
  const std::int64_t head0 = blockIdx.x % groups * head_group;
  const std::int64_t column0 = blockIdx.x / groups % column_blocks * columns, column = column0 + lane * n;
  const std::int64_t part = blockIdx.x / (groups * column_blocks), end = min(x.count, (part + 1) * part_rows);
  Real sums[head_group][n] = {};
#pragma unroll(packed ? 4 : 1)
  for (std::int64_t row = part * part_rows + warp; row < end; row += warps) {
    Real values[n], dz_row[head_group];
    widen_vector(row_vector<packed, n>(x.template row<packed>(row), x.step, column, x.d), values);
    widen_vector(load_vector<head_group>(dz + row * pitch + head0), dz_row);
#pragma unroll
    for (int h = 0; h < head_group; ++h)
#pragma unroll
      for (int e = 0; e < n; ++e) sums[h][e] = fma(dz_row[h], values[e], sums[h][e]);
  }
#pragma unroll
  for (int h = 0; h < head_group; ++h)
#pragma unroll
    for (int e = 0; e < n; ++e) warp_sums[warp][h][lane * n + e] = sums[h][e];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < head_group * columns; c += block) {
    const std::int64_t head = head0 + c / columns, to = column0 + c % columns;
    if (head >= heads || to >= x.d) continue;
    Real sum = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) sum += warp_sums[w][c / columns][c % columns];
    parts[(part * heads + head) * x.d + to] = sum;
  }
}

template <class W, class Real>
__global__ void __launch_bounds__(block)
    window_sizes_dweight_kernel(const Real* parts, std::int64_t count, View<W, 2> dweight) {
  const std::int64_t size = dweight.shape[0] * dweight.shape[1];
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * block + threadIdx.x;
  if (n >= size) return;
  Real sum = 0;
#pragma unroll 8
  for (std::int64_t part = 0; part < count; ++part) sum += parts[part * size + n];
  *dweight.at(n / dweight.shape[1], n % dweight.shape[1]) = narrow<W>(sum);
}

constexpr int dbias_threads = 1024;

/// One block per head.
template <class W, class Real>
__global__ void __launch_bounds__(dbias_threads)
    window_sizes_dbias_kernel(const Real* dz, std::int64_t rows, std::int64_t pitch, View<W, 1> dbias) {
  Real sum = 0;
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += dbias_threads) sum += dz[row * pitch + blockIdx.x];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *dbias.at(blockIdx.x) = narrow<W>(sum);
}

/// dx of a floored window.
template <class T>
__global__ void __launch_bounds__(block) window_sizes_zero_kernel(TokenRows<T> rows) {
  for (std::int64_t column = threadIdx.x; column < rows.d; column += block)
    rows.template row<false>(blockIdx.x)[column * rows.step] = narrow<T>(0.0f);
}

/// Calls body(Tag<T>{}, Tag<W>{}) with the element types of x and of the weights.
template <class Body>
void for_types(const WindowInputs& in, const Body& body) {
  for_floating(in.x.dtype, [&](auto x) {
    using T = typename decltype(x)::type;
    if (in.weight.dtype == in.x.dtype)
      body(x, x);
    else if constexpr (is_16_bit<T>)
      body(x, Tag<float>{});
  });
}

/// Calls body(std::bool_constant) with the value of `packed`.
template <class Body>
void for_packed(bool packed, const Body& body) {
  if (packed)
    body(std::true_type{});
  else
    body(std::false_type{});
}

template <class T, class W>
void compute(const Context& context, const char* operation, const Predictor<T, W>& predictor) {
  if (predictor.heads() == 0) return;
  const std::int64_t blocks = ceil_div(predictor.x.count, block_rows);
  const auto run = [&](auto kernel) { launch(context, operation, kernel, blocks, block, 0, predictor); };
  const bool packed = predictor.x.packed && predictor.weight_packed;
  if constexpr (!is_16_bit<T> || !std::is_same_v<T, W>)
    for_packed(packed, [&](auto is_packed) { run(window_sizes_kernel<T, W, is_packed()>); });
  else if (!packed)
    run(window_sizes_mma_kernel<T, false, 4>);
  else if (predictor.pitch <= head_group)
    run(window_sizes_mma_kernel<T, true, 1>);
  else if (predictor.pitch <= 2 * head_group)
    run(window_sizes_mma_kernel<T, true, 2>);
  else
    run(window_sizes_mma_kernel<T, true, 4>);
}

}  // namespace

void CudaBackend::window_sizes_forward(const WindowProblem& problem, const WindowInputs& in, const TensorView& window) {
  const CurrentDevice current(context_.device);
  for_types(in, [&](auto x, auto weight) {
    using T = typename decltype(x)::type;
    using W = typename decltype(weight)::type;
    compute(context_, "window_sizes_forward", Predictor<T, W>(problem, in, window, nullptr));
  });
}

void CudaBackend::window_sizes_backward(const WindowProblem& problem, const WindowInputs& in, const TensorView& dwindow,
                                        const WindowGradients& gradients) {
  const CurrentDevice current(context_.device);
  constexpr const char* operation = "window_sizes_backward";
  for_types(in, [&](auto x_tag, auto weight_tag) {
    using T = typename decltype(x_tag)::type;
    using W = typename decltype(weight_tag)::type;
    using Real = accumulator_t<T>;
    // A floored window has gradients of 0: those of no rows.
    const TokenRows<const T> x(in.x);
    const TokenRows<T> dx(gradients.dx);
    const std::int64_t rows = problem.floor ? 0 : x.count;
    const std::int64_t heads = in.weight.shape[0], pitch = ceil_div(heads, head_group) * head_group;
    const Scratch<Real> dz(context_, operation, rows * pitch);
    const Predictor<T, W> predictor(problem, in, dwindow, dz.data());
    if (rows > 0) compute(context_, operation, predictor);
    const std::int64_t column_blocks = ceil_div(x.d, 32 * vector_length<T>);
    if (problem.floor)
      launch(context_, operation, window_sizes_zero_kernel<T>, dx.count, block, 0, dx);
    else
      for_packed(dx.packed && predictor.weight_packed, [&](auto packed) {
        launch(context_, operation, window_sizes_dx_kernel<T, W, packed()>,
               column_blocks * ceil_div(dx.count, warps * dx_rows), block, 0, predictor, dx);
      });
    if (gradients.dweight.present()) {
      const std::int64_t parts = std::min<std::int64_t>(ceil_div(rows, 128), 256);
      const Scratch<Real> sums(context_, operation, parts * heads * x.d);
      for_packed(x.packed, [&](auto packed) {
        launch(context_, operation, window_sizes_dweight_parts_kernel<T, packed()>,
               pitch / head_group * column_blocks * parts, block, 0, x, dz.data(), pitch, heads,
               ceil_div(rows, std::max<std::int64_t>(parts, 1)), sums.data());
      });
      launch(context_, operation, window_sizes_dweight_kernel<W, Real>, ceil_div(heads * x.d, block), block, 0,
             sums.data(), parts, device_view<W, 2>(gradients.dweight));
    }
    if (gradients.dbias.present())
      launch(context_, operation, window_sizes_dbias_kernel<W, Real>, heads, dbias_threads, 0, dz.data(), rows, pitch,
             device_view<W, 1>(gradients.dbias));
  });
}

}  // namespace dsalt::cuda
