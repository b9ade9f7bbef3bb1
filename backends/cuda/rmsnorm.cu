// y = gamma x r,  r = 1 / sqrt(mean(x^2) + eps)  over rows of d elements (docs/semantics.md, "RMSNorm"); with u = gamma
// dy and h = x r:
//   dx = r (u - h mean(u h))          dgamma = sum over rows of dy h
//
// A group of threads keeps a row on the chip, so that every byte is moved once. Rows too long for that are read twice,
// by the kernels of rmsnorm_wide.cuh; rows that are no whole vectors are copied first (packed_rows.cuh). dgamma adds a
// number of partial sums that depends on the shape alone, in order.
#include "cuda_backend.hpp"
#include "mma.cuh"
#include "packed_rows.cuh"
#include "rmsnorm.cuh"
#include "rmsnorm_wide.cuh"

namespace dsalt::cuda {
namespace {

// Threads of a block, and vectors that each of them holds: 1 in rows of up to 32, usually 4. In the forward pass, 2 in
// rows that take several warps, as long as that many threads can hold them, and most_vectors in long ones. Two blocks
// of most_threads leave them registers enough.
constexpr int most_threads = 320, most_threads_backward = 512;
constexpr int few_vectors = 2, usual_vectors = 4, most_vectors = 16;

template <class T, class G, int vectors>
__global__ void __launch_bounds__(most_threads, 2)
    rmsnorm_kernel(Walk<2> rows, std::int64_t row_count, int d, const T* __restrict__ x, const G* __restrict__ gamma,
                   T* __restrict__ y, accumulator_t<T> eps) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool exists = row < row_count;
  std::int64_t at[2];
  rows.offsets(exists ? row : 0, at);
  const auto element = [](int v) { return static_cast<int>(threadIdx.x + v * blockDim.x) * n; };
  const auto has = [&](int v) { return exists && element(v) < d; };

  Words<T, n> part[vectors];
#pragma unroll
  for (int v = 0; v < vectors; ++v) part[v] = load_streamed<n>(x + at[0] + element(v), has(v));

  Real sums[1];
  const auto add_up = [&](Real scale) {
    sums[0] = 0;
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      Real values[n];
      widen_words(part[v], values);
#pragma unroll
      for (int e = 0; e < n; ++e) sums[0] = fma(values[e] * scale, values[e] * scale, sums[0]);
    }
    group_sum(sums);
  };
  add_up(1);
  Real scale = 1;
  if (__any_sync(0xffffffffu, needs_scale(sums[0], d, eps))) {
    Real largest = 0;
#pragma unroll
    for (int v = 0; v < vectors; ++v) raise_to(largest, std::bit_cast<Vector<T, n>>(part[v]));
    scale = group_scale(needs_scale(sums[0], d, eps), largest);
    add_up(scale);
  }
  const Real r = inverse_rms(sums[0], d, eps, scale);

#pragma unroll
  for (int v = 0; v < vectors; ++v) {
    if (!has(v)) continue;
    Real factor[n], result[n];
    widen_words(std::bit_cast<Words<G, n>>(load_vector<n>(gamma + element(v))), factor);
    widen_words(part[v], result);
#pragma unroll
    for (int e = 0; e < n; ++e) result[e] = result[e] * scale * r * factor[e];
    store_streamed<n>(result, y + at[1] + element(v));
  }
}

/// A group takes `rows_per_group` consecutive rows, and a block adds what its groups give to dgamma. Rows lie in shared
/// memory, where the next one arrives while a row is computed; each thread fetches what it will read itself, and need
/// not wait for others. dx and partial, [blocks][whole vectors of a row], may be null.
template <class T, class G, int vectors>
__global__ void __launch_bounds__(most_threads_backward)
    rmsnorm_backward_kernel(Walk<3> rows, std::int64_t row_count, std::int64_t rows_per_group, std::int64_t d,
                            const T* __restrict__ x, const T* __restrict__ dy, const G* __restrict__ gamma,
                            T* __restrict__ dx, accumulator_t<T>* partial, accumulator_t<T> eps) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>;
  const int threads = blockDim.x * blockDim.y, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const std::int64_t first_row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y) * rows_per_group;
  const std::int64_t left = row_count - first_row, end = left < rows_per_group ? left : rows_per_group;
  const auto element = [](int v) { return (threadIdx.x + static_cast<std::int64_t>(v) * blockDim.x) * n; };

  // This thread's vectors of row i: [i % 2][x, dy][vectors], `threads` apart.
  T* const slots = dynamic_shared_memory<T>() + thread * n;
  const auto x_slot = [&](std::int64_t i, int v) {
    return slots + (static_cast<int>(i % 2) * 2 * vectors + v) * threads * n;
  };
  const auto dy_slot = [&](std::int64_t i, int v) { return x_slot(i, v) + vectors * threads * n; };
  const auto fetch = [&](std::int64_t i) {
    const std::int64_t length = i < end ? d : 0;  // the rest becomes 0
    std::int64_t at[3];
    rows.offsets(i < end ? first_row + i : 0, at);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      const bool some = element(v) < length;
      copy_async_16(x_slot(i, v), x + at[0] + (some ? element(v) : 0), some ? 16 : 0);
      copy_async_16(dy_slot(i, v), dy + at[1] + (some ? element(v) : 0), some ? 16 : 0);
    }
    copy_async_commit();
  };

  Real dgamma[vectors][n] = {};
  fetch(0);
  for (std::int64_t i = 0; i < rows_per_group; ++i) {
    fetch(i + 1);  // into what row i - 1 was read from
    copy_async_wait<1>();
    Real sums[2];  // of x^2 and of u x
    const auto add_up = [&](Real scale) {
      sums[0] = sums[1] = 0;
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        const auto x_part = load_vector<n>(x_slot(i, v)), dy_part = load_vector<n>(dy_slot(i, v));
        Real factor[n] = {};
        if (element(v) < d) widen_vector(load_vector<n>(gamma + element(v)), factor);
#pragma unroll
        for (int e = 0; e < n; ++e) {
          const Real value = widen(x_part.element[e]) * scale;
          sums[0] = fma(value, value, sums[0]);
          sums[1] = fma(widen(dy_part.element[e]) * factor[e], value, sums[1]);
        }
      }
      group_sum(sums);
    };
    add_up(1);
    Real scale = 1;
    if (__any_sync(0xffffffffu, needs_scale(sums[0], d, eps))) {
      Real largest = 0;
      for (int v = 0; v < vectors; ++v) raise_to(largest, load_vector<n>(x_slot(i, v)));
      scale = group_scale(needs_scale(sums[0], d, eps), largest);
      add_up(scale);
    }
    const Real r = inverse_rms(sums[0], d, eps, scale), mean = sums[1] * r / static_cast<Real>(d);

    const bool exists = i < end;
    std::int64_t at[3];
    rows.offsets(exists ? first_row + i : 0, at);
#pragma unroll
    for (int v = 0; v < vectors; ++v) {
      if (!exists || element(v) >= d) continue;
      const auto x_part = load_vector<n>(x_slot(i, v)), dy_part = load_vector<n>(dy_slot(i, v));
      Real factor[n], result[n];
      widen_vector(load_vector<n>(gamma + element(v)), factor);
#pragma unroll
      for (int e = 0; e < n; ++e) {
        const Real h = widen(x_part.element[e]) * scale * r, along = widen(dy_part.element[e]);
        result[e] = scale * r * fma(-h, mean, along * factor[e]);
        dgamma[v][e] = fma(along, h, dgamma[v][e]);
      }
      if (dx != nullptr) store_vector<n>(result, dx + at[2] + element(v));
    }
  }
  copy_async_wait<0>();

  if (partial == nullptr) return;
  const std::int64_t row_vectors = (d + n - 1) / n, pitch = row_vectors * n;
  partial += blockIdx.x * pitch;
  if (blockDim.y == 1) {
#pragma unroll
    for (int v = 0; v < vectors; ++v)
      if (element(v) < d) store_vector<n>(dgamma[v], partial + element(v));
    return;
  }
  Real* of_groups = dynamic_shared_memory<Real>();  // [groups][pitch]; the slots are free by now
  __syncthreads();
#pragma unroll
  for (int v = 0; v < vectors; ++v)
#pragma unroll
    for (int e = 0; e < n; ++e)
      if (element(v) < d) of_groups[threadIdx.y * pitch + element(v) + e] = dgamma[v][e];
  __syncthreads();
  for (int i = thread; i < pitch; i += threads) {
    Real sum = 0;
    for (int group = 0; group < static_cast<int>(blockDim.y); ++group) sum += of_groups[group * pitch + i];
    partial[i] = sum;
  }
}

template <class T, class G>
void forward(const Context& context, const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& out) {
  using Real = accumulator_t<T>;
  const char* const operation = "rmsnorm_forward";
  const int last = in.x.rank - 1;
  const std::int64_t d = in.x.shape[static_cast<std::size_t>(last)];
  const auto eps = static_cast<Real>(problem.eps);
  constexpr int n = vector_length<T>;
  const std::int64_t row_vectors = ceil_div(d, n);
  if (row_vectors > most_threads * most_vectors) {
    const auto rows = walk_over(last, in.x, out);
    launch(context, operation, rmsnorm_wide_kernel<T, G>, rows.size(), wide_threads, 0, rows, d, row_of<const T>(in.x),
           row_of<const G>(in.gamma), row_of<T>(out), eps);
    return;
  }
  const PackedRows x(context, operation, in.x, n), gamma(context, operation, in.gamma, n);
  const PackedRows y(context, operation, out, n, Fill::later);
  const auto rows = walk_over(last, x.view(), y.view());
  const auto run = [&]<int vectors>(std::integral_constant<int, vectors>) {
    const GroupLayout layout(row_vectors, vectors);
    launch(context, operation, rmsnorm_kernel<T, G, vectors>, ceil_div(rows.size(), layout.groups), layout.block(), 0,
           rows, rows.size(), static_cast<int>(d), x.data<T>(), gamma.data<G>(), y.data<T>(), eps);
  };
  if (row_vectors <= 32)
    run(std::integral_constant<int, 1>{});
  else if (row_vectors > 32 * usual_vectors && row_vectors <= most_threads * few_vectors)
    run(std::integral_constant<int, few_vectors>{});
  else if (row_vectors <= most_threads * usual_vectors)
    run(std::integral_constant<int, usual_vectors>{});
  else
    run(std::integral_constant<int, most_vectors>{});
  y.copy_back();
}

/// Rows of each of the groups (or of each block, in the wide kernels) that sum dgamma in parallel: enough groups to
/// fill any device, without making the partial sums more than a small part of the traffic. A function of the shape
/// alone.
std::int64_t rows_per_partial_sum(std::int64_t rows, std::int64_t d, std::int64_t groups_per_block) {
  const std::int64_t blocks = std::clamp<std::int64_t>((std::int64_t{1} << 21) / d, 64, 2048);
  return std::max<std::int64_t>(ceil_div(rows, blocks * groups_per_block), 4);
}

template <class T, class G>
void backward(const Context& context, const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& dy_view,
              const RmsNormGradients& gradients) {
  using Real = accumulator_t<T>;
  const char* const operation = "rmsnorm_backward";
  const int last = in.x.rank - 1;
  const std::int64_t d = in.x.shape[static_cast<std::size_t>(last)], row_count = in.x.size() / d;
  const auto eps = static_cast<Real>(problem.eps);
  constexpr int n = vector_length<T>;
  const std::int64_t row_vectors = ceil_div(d, n), pitch = row_vectors * n;
  const auto slot_bytes = [](const GroupLayout& layout, int vectors) { return layout.size() * 4 * vectors * 16; };
  const GroupLayout layout(row_vectors, row_vectors <= 32 ? 1 : usual_vectors);
  const bool wide =
      layout.threads > most_threads_backward || slot_bytes(layout, usual_vectors) > context.shared_memory_per_block;
  const std::int64_t groups_per_block = wide ? 1 : layout.groups;
  const std::int64_t rows_per_group = rows_per_partial_sum(row_count, d, groups_per_block);
  const std::int64_t blocks = ceil_div(row_count, rows_per_group * groups_per_block);
  const Scratch<Real> partial(context, operation, gradients.dgamma.present() ? blocks * pitch : 0);

  if (wide) {
    wide_backward<T, G>(context, walk_over(last, in.x, dy_view, gradients.dx), rows_per_group, blocks, d, pitch,
                        row_of<const T>(in.x), row_of<const T>(dy_view), row_of<const G>(in.gamma),
                        row_of<T>(gradients.dx), partial.data(), eps);
  } else {
    const PackedRows x(context, operation, in.x, n), dy(context, operation, dy_view, n);
    const PackedRows gamma(context, operation, in.gamma, n), dx(context, operation, gradients.dx, n, Fill::later);
    const auto rows = walk_over(last, x.view(), dy.view(), dx.view());
    const auto run = [&]<int vectors>(std::integral_constant<int, vectors>) {
      const std::size_t sums = layout.groups == 1 ? 0 : layout.groups * static_cast<std::size_t>(pitch) * sizeof(Real);
      launch(context, operation, rmsnorm_backward_kernel<T, G, vectors>, blocks, layout.block(),
             std::max<std::size_t>(slot_bytes(layout, vectors), sums), rows, row_count, rows_per_group, d, x.data<T>(),
             dy.data<T>(), gamma.data<G>(), dx.data<T>(), partial.data(), eps);
    };
    if (row_vectors <= 32)
      run(std::integral_constant<int, 1>{});
    else
      run(std::integral_constant<int, usual_vectors>{});
    dx.copy_back();
  }
  if (gradients.dgamma.present())
    launch(context, operation, rmsnorm_dgamma_kernel<G>, ceil_div(d, 32), dim3{32, dgamma_slices}, 0, partial.data(),
           blocks, pitch, d, row_of<G>(gradients.dgamma));
}

/// body(Tag<T>{}, Tag<G>{}) with the types of x and gamma.
template <class Body>
void for_types(const RmsNormInputs& in, Body&& body) {
  for_floating(in.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (in.gamma.dtype == in.x.dtype)
      body(tag, tag);
    else
      body(tag, Tag<accumulator_t<T>>{});
  });
}

}  // namespace

void CudaBackend::rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& y) {
  const CurrentDevice current(context_.device);
  if (in.gamma.size() == 0) return;
  for_types(in, [&]<class T, class G>(Tag<T>, Tag<G>) { forward<T, G>(context_, problem, in, y); });
}

void CudaBackend::rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& in, const TensorView& dy,
                                   const RmsNormGradients& gradients) {
  const CurrentDevice current(context_.device);
  if (in.gamma.size() == 0 || (!gradients.dx.present() && !gradients.dgamma.present())) return;
  for_types(in, [&]<class T, class G>(Tag<T>, Tag<G>) { backward<T, G>(context_, problem, in, dy, gradients); });
}

}  // namespace dsalt::cuda
