// Rotary positions (docs/semantics.md, "Rotary positions"). For t < D/2 and a token at position pos:
//   theta = pos base^(-2t/D) / rope_scale
//   y_t = x_t cos(theta) - x_{t+D/2} sin(theta)        y_{t+D/2} = x_t sin(theta) + x_{t+D/2} cos(theta)
// Backward: the inverse rotation of dy.
//
// theta is in double, which costs far more than the rotation itself. So a block makes the sines and cosines of its
// tokens once, in shared memory, for up to `rows_per_block` rows of each token; while it does so, its first rows are
// under way and other blocks move memory.
#include <cmath>

#include "cuda_backend.hpp"
#include "launch.cuh"
#include "mma.cuh"
#include "vectors.cuh"
#include "walk.cuh"

namespace dsalt::cuda {
namespace {

constexpr int threads_per_block = 256;
constexpr int angles_per_block = 512;
constexpr int most_tokens = 8;      // of a block
constexpr int rows_per_block = 32;  // of a token: its heads

/// x and y as [B,H,N,D]. A pack is a batch of one whose tokens find their sequence in cu_seqlens.
template <class T>
struct Rotation {
  View<const T, 4> x;
  View<T, 4> y;
  View<const std::int32_t, 1> positions, cu_seqlens;
  double base, rope_scale;
  std::int64_t position;
  accumulator_t<T> direction;  // 1, or -1 for the inverse
  bool same_positions;         // in every sequence of the batch: one token then has B H rows, not H
  bool rows_adjoin;            // consecutive threads take consecutive heads, else tokens
  int tile_pairs, tile_tokens;

  __host__ __device__ std::int64_t half() const { return x.shape[3] / 2; }
  __host__ __device__ std::int64_t rows() const { return same_positions ? x.shape[0] * x.shape[1] : x.shape[1]; }
  __host__ __device__ std::int64_t sequences() const { return same_positions ? 1 : x.shape[0]; }
};

/// Finds the position of token i of sequence b. False where it belongs to no sequence of a pack.
template <class T>
__device__ bool find_position(const Rotation<T>& r, std::int64_t b, std::int64_t i, double& position) {
  std::int64_t sequence = b, first = 0;
  if (r.cu_seqlens.present()) {
    std::int64_t end = r.cu_seqlens.shape[0];  // the last entry that is at most i lies in [sequence, end)
    while (end - sequence > 1) {
      const std::int64_t middle = sequence + (end - sequence) / 2;
      if (*r.cu_seqlens.at(middle) <= i)
        sequence = middle;
      else
        end = middle;
    }
    if (sequence + 1 >= r.cu_seqlens.shape[0]) return false;
    first = *r.cu_seqlens.at(sequence);
  }
  const std::int64_t start = r.positions.present() ? *r.positions.at(sequence) : r.position;
  position = static_cast<double>(start + (i - first));
  return true;
}

template <class T, int n>
__global__ void __launch_bounds__(threads_per_block, 4) rope_kernel(Rotation<T> r) {
  using Real = accumulator_t<T>;
  struct alignas(2 * sizeof(Real)) Angle {
    Real cosine, sine;
  };
  __shared__ Angle table[angles_per_block];  // [tokens][n][vectors]: neighbouring threads read neighbouring banks
  __shared__ double frequencies[angles_per_block], positions[most_tokens];
  __shared__ bool exists[most_tokens];
  // Vectors are fetched ahead, single elements are not. tile_tokens * tile_pairs / n <= threads_per_block.
  constexpr bool fetches = n > 1;
  constexpr int stages = fetches ? 4 : 1;
  static_assert(!fetches || (angles_per_block / n <= threads_per_block && n * sizeof(T) == 16));
  alignas(16) __shared__ T ahead[stages][2][fetches ? threads_per_block * n : 1];

  // blockIdx.x counts (sequence, slice of a token's rows, tile of tokens, slice of D/2), the last one fastest.
  std::int64_t sequence = blockIdx.x;
  const auto tile = [&](std::int64_t length, int step) {
    return take_remainder(sequence, (length + step - 1) / step) * step;
  };
  const auto extent = [](std::int64_t length, std::int64_t first, int step) {
    return static_cast<int>(length - first < step ? length - first : step);
  };
  const std::int64_t first_pair = tile(r.half(), r.tile_pairs);
  const std::int64_t first_token = tile(r.x.shape[2], r.tile_tokens);
  const std::int64_t first_row = tile(r.rows(), rows_per_block);
  const int pairs = extent(r.half(), first_pair, r.tile_pairs), rows = extent(r.rows(), first_row, rows_per_block);
  const int tokens = extent(r.x.shape[2], first_token, r.tile_tokens), vectors = pairs / n;

  for (int token = threadIdx.x; token < tokens; token += threads_per_block)
    exists[token] = find_position(r, sequence, first_token + token, positions[token]);
  __syncthreads();

  // A thread keeps to one vector of one token, and takes every `rows_at_once`-th row of it. These rows arrive in shared
  // memory while the table is made and while earlier ones are rotated; a thread fetches what it will read itself.
  const int places = tokens * vectors;
  const int rows_at_once = places < threads_per_block ? threads_per_block / places : 1;
  struct Place {
    int token, vector, row;  // its first row
  };
  const auto place_of = [&](int index) -> Place {
    const int vector = index % vectors, rest = index / vectors;
    if (r.rows_adjoin) return {rest / rows_at_once, vector, rest % rows_at_once};
    return {rest % tokens, vector, rest / tokens};
  };
  const auto row_offset = [&](const auto& view, int row) {
    std::int64_t b = first_row + row, h = b;
    if (r.same_positions)
      h = take_remainder(b, r.x.shape[1]);
    else
      b = sequence;
    return b * view.strides[0] + h * view.strides[1];
  };
  Place place = place_of(threadIdx.x);
  const int end = places * rows_at_once;
  const auto slot = [&](int i, int part) { return ahead[i % stages][part] + threadIdx.x * n; };
  const auto fetch = [&](int i) {
    if (const int row = place.row + i * rows_at_once; row < rows) {
      const T* x = r.x.at(0, 0, first_token + place.token, first_pair + place.vector * n) + row_offset(r.x, row);
      copy_async_16(slot(i, 0), x);
      copy_async_16(slot(i, 1), x + r.half());
    }
    copy_async_commit();
  };
  if constexpr (fetches)
    if (static_cast<int>(threadIdx.x) < end && exists[place.token])
      for (int i = 0; i + 1 < stages; ++i) fetch(i);

  for (int pair = threadIdx.x; pair < pairs; pair += threads_per_block)
    frequencies[pair] = pow(r.base, -static_cast<double>(first_pair + pair) / static_cast<double>(r.half()));
  __syncthreads();
  for (int index = threadIdx.x; index < tokens * pairs; index += threads_per_block) {
    const int token = index / pairs, pair = index % pairs;
    if (!exists[token]) continue;
    double theta = positions[token] * frequencies[pair], sine, cosine;
    if (r.rope_scale != 1) theta /= r.rope_scale;
    sincos(theta, &sine, &cosine);
    table[token * pairs + pair % n * vectors + pair / n] = {static_cast<Real>(cosine),
                                                            r.direction * static_cast<Real>(sine)};
  }
  __syncthreads();

  for (int index = threadIdx.x; index < end; index += threads_per_block) {  // once, where vectors are fetched ahead
    if constexpr (!fetches) place = place_of(index);
    if (!exists[place.token]) continue;
    const Angle* const angles = table + place.token * pairs + place.vector;
    const T* const x = r.x.at(0, 0, first_token + place.token, first_pair + place.vector * n);
    T* const y = r.y.at(0, 0, first_token + place.token, first_pair + place.vector * n);
    for (int i = 0, row = place.row; row < rows; ++i, row += rows_at_once) {
      Vector<T, n> first, second;
      if constexpr (fetches) {
        fetch(i + stages - 1);  // into what row i - 1 was read from
        copy_async_wait<stages - 1>();
        first = load_vector<n>(slot(i, 0));
        second = load_vector<n>(slot(i, 1));
      } else {
        const T* const from = x + row_offset(r.x, row);
        first = load_vector<n>(from);
        second = load_vector<n>(from + r.half() * r.x.strides[3]);
      }
      Real upper[n], lower[n];
#pragma unroll
      for (int e = 0; e < n; ++e) {
        const Angle a = angles[e * vectors];
        const Real x1 = widen(first.element[e]), x2 = widen(second.element[e]);
        upper[e] = fma(x1, a.cosine, -(x2 * a.sine));
        lower[e] = fma(x1, a.sine, x2 * a.cosine);
      }
      T* const to = y + row_offset(r.y, row);
      store_vector<n>(upper, to);
      store_vector<n>(lower, to + r.half() * r.y.strides[3]);
    }
  }
}

/// [R,H,D] as [1,H,R,D].
template <class T>
View<T, 4> batched_view(const TensorView& view) {
  if (view.rank == 4) return device_view<T, 4>(view);
  const View<T, 3> packed = device_view<T, 3>(view);
  return {packed.data,
          {1, packed.shape[1], packed.shape[0], packed.shape[2]},
          {0, packed.strides[1], packed.strides[0], packed.strides[2]}};
}

void rotate(const Context& context, const char* operation, const RopeProblem& problem, const RopeInputs& in,
            const TensorView& x, const TensorView& y, int direction) {
  for_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Rotation<T> r{.x = batched_view<const T>(x),
                  .y = batched_view<T>(y),
                  .positions = device_view<const std::int32_t, 1>(in.positions),
                  .cu_seqlens = device_view<const std::int32_t, 1>(in.cu_seqlens),
                  .base = problem.base,
                  .rope_scale = problem.rope_scale,
                  .position = problem.position,
                  .direction = static_cast<accumulator_t<T>>(direction),
                  .same_positions = !in.positions.present(),
                  .rows_adjoin = false,
                  .tile_pairs = 0,
                  .tile_tokens = 0};
    if (r.half() == 0) return;
    r.rows_adjoin = std::abs(r.x.strides[1]) < std::abs(r.x.strides[2]);
    r.tile_pairs = static_cast<int>(std::min<std::int64_t>(r.half(), angles_per_block));
    r.tile_tokens = std::min(angles_per_block / r.tile_pairs, most_tokens);
    constexpr int n = vector_length<T>;
    const bool packed = rows_are_packed(x, n) && rows_are_packed(y, n) && r.half() % n == 0;
    const std::int64_t blocks = r.sequences() * ceil_div(r.x.shape[2], r.tile_tokens) *
                                ceil_div(r.rows(), rows_per_block) * ceil_div(r.half(), r.tile_pairs);
    launch(context, operation, packed ? rope_kernel<T, n> : rope_kernel<T, 1>, static_cast<unsigned>(blocks),
           threads_per_block, 0, r);
  });
}

}  // namespace

void CudaBackend::rope_forward(const RopeProblem& problem, const RopeInputs& in, const TensorView& y) {
  const CurrentDevice current(context_.device);
  rotate(context_, "rope_forward", problem, in, in.x, y, 1);
}

void CudaBackend::rope_backward(const RopeProblem& problem, const RopeInputs& in, const TensorView& dy,
                                const TensorView& dx) {
  const CurrentDevice current(context_.device);
  rotate(context_, "rope_backward", problem, in, dy, dx, -1);
}

}  // namespace dsalt::cuda
