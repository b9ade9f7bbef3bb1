// Rotary positions (docs/semantics.md, "Rotary positions"). For t < D/2 and a token at position pos:
//   theta = pos base^(-2t/D) / rope_scale
//   y_t = x_t cos(theta) - x_{t+D/2} sin(theta)        y_{t+D/2} = x_t sin(theta) + x_{t+D/2} cos(theta)
// Backward: the inverse rotation of dy.
//
// theta is in double, which costs far more than the rotation itself. So a block makes the sines and cosines of its
// tokens once, in shared memory, for up to `rows_per_block` rows of each token; while it does so, its first rows are
// under way and other blocks move memory. Each thread then keeps the angles of one vector of a token in registers.
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

/// x or y as [B,H,N,D], with distances in bytes: a kernel adds them from where its parameters lie.
template <class T>
struct Side {
  View<T, 4> view;
  std::int64_t step;    // to a thread's next row
  std::int64_t wrap;    // added to that where the row lies in the next sequence
  std::int64_t second;  // from an element of the first half of D to its partner

  __device__ static T* moved(T* from, std::int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(from) + bytes);
  }
  __device__ T* partner(T* first) const { return moved(first, second); }
};

/// A pack is a batch of one whose tokens find their sequence in cu_seqlens.
template <class T>
struct Rotation {
  Side<const T> x;
  Side<T> y;
  View<const std::int32_t, 1> positions, cu_seqlens;
  double base, rope_scale;
  std::int64_t position;
  accumulator_t<T> direction;  // 1, or -1 for the inverse
  std::int64_t half, tokens;
  std::int64_t sequences;  // with positions of their own; 1 where they are the same in all: a token then has B H rows
  std::int64_t rows;       // of a token
  std::int64_t heads;      // rows that follow one another in equal steps
  unsigned pair_tiles, token_tiles, row_tiles;
  int tile_pairs, tile_tokens, rows_at_once, heads_in_block;
  bool rows_adjoin;  // consecutive threads take consecutive heads, else tokens
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

/// Goes over the rows of a thread. `left` are those up to the next sequence, and is cut at rows_per_block.
template <class T>
struct RowCursor {
  T* at;
  int left;

  __device__ void advance(const Side<T>& side, int heads, int rows) {
    at = side.moved(at, side.step);
    left -= rows;
    for (; left <= 0; left += heads) at = side.moved(at, side.wrap);
  }
};

template <class T, int n>
__global__ void __launch_bounds__(threads_per_block, 4) rope_kernel(const Rotation<T> r) {
  using Real = accumulator_t<T>;
  struct alignas(2 * sizeof(Real)) Angle {
    Real cosine, sine;
  };
  __shared__ Angle table[angles_per_block];  // [tokens][n][vectors]: neighbouring threads read neighbouring banks
  __shared__ double frequencies[angles_per_block], positions[most_tokens];
  __shared__ bool exists[most_tokens];
  constexpr bool fetches = n > 1;  // vectors are fetched ahead, single elements are not
  constexpr int stages = fetches ? 4 : 1;
  static_assert(!fetches || n * sizeof(T) == 16);
  alignas(16) __shared__ T ahead[stages][2][fetches ? threads_per_block * n : 1];

  // blockIdx.x counts (sequence, slice of a token's rows, tile of tokens, slice of D/2), the last one fastest.
  unsigned sequence = blockIdx.x;
  const auto tile = [&](unsigned tiles) -> unsigned {
    if (tiles == 1) return 0;
    const unsigned index = sequence % tiles;
    sequence /= tiles;
    return index;
  };
  const auto extent = [](std::int64_t length, std::int64_t first, int step) {
    return static_cast<int>(length - first < step ? length - first : step);
  };
  const std::int64_t first_pair = static_cast<std::int64_t>(tile(r.pair_tiles)) * r.tile_pairs;
  const std::int64_t first_token = static_cast<std::int64_t>(tile(r.token_tiles)) * r.tile_tokens;
  const std::int64_t first_row = static_cast<std::int64_t>(tile(r.row_tiles)) * rows_per_block;
  const int pairs = extent(r.half, first_pair, r.tile_pairs), rows = extent(r.rows, first_row, rows_per_block);
  const int tokens = extent(r.tokens, first_token, r.tile_tokens), vectors = pairs / n;

  // A thread keeps to one vector of one token. Its rows arrive in shared memory while the table is made and while
  // earlier ones are rotated; a thread fetches what it will read itself.
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int vector = threadIdx.x, token = r.rows_adjoin ? threadIdx.z : threadIdx.y;
  int row = r.rows_adjoin ? threadIdx.y : threadIdx.z;
  if (vector >= vectors || token >= tokens) row = rows;  // none
  std::int64_t b = sequence, h = first_row + (row < rows ? row : 0);
  if (r.heads < r.rows) {
    b = h;
    h = take_remainder(b, r.heads);
  }
  const std::int64_t own_token = first_token + (row < rows ? token : 0);
  const std::int64_t own_pair = first_pair + (row < rows ? vector * n : 0);
  const int left = extent(r.heads, h, rows_per_block);
  RowCursor<const T> from{r.x.view.at(b, h, own_token, own_pair), left};
  RowCursor<T> to{r.y.view.at(b, h, own_token, own_pair), left};
  const auto slot = [&](int i, int part) { return ahead[i % stages][part] + thread * n; };
  const auto fetch = [&](int i, int of_row) {
    if (of_row < rows) {
      copy_async_16_streamed(slot(i, 0), from.at);
      copy_async_16_streamed(slot(i, 1), r.x.partner(from.at));
      from.advance(r.x, r.heads_in_block, r.rows_at_once);
    }
    copy_async_commit();
  };
  if constexpr (fetches)
    for (int i = 0; i + 1 < stages; ++i) fetch(i, row + i * r.rows_at_once);

  for (int i = thread; i < tokens; i += threads) exists[i] = find_position(r, sequence, first_token + i, positions[i]);
  for (int pair = thread; pair < pairs; pair += threads)
    frequencies[pair] = pow(r.base, -static_cast<double>(first_pair + pair) / static_cast<double>(r.half));
  __syncthreads();
  for (int index = thread; index < tokens * pairs; index += threads) {
    const int of = index / pairs, pair = index % pairs;
    if (!exists[of]) continue;
    double theta = positions[of] * frequencies[pair], sine, cosine;
    if (r.rope_scale != 1) theta /= r.rope_scale;
    sincos(theta, &sine, &cosine);
    table[of * pairs + pair % n * vectors + pair / n] = {static_cast<Real>(cosine),
                                                         r.direction * static_cast<Real>(sine)};
  }
  __syncthreads();

  if (row < rows && exists[token]) {
    Angle angles[n];  // for all of its rows: shared memory cannot keep up with reading them for each
#pragma unroll
    for (int e = 0; e < n; ++e) angles[e] = table[token * pairs + e * vectors + vector];
    for (int i = 0; row < rows; ++i, row += r.rows_at_once) {
      Vector<T, n> first, second;
      if constexpr (fetches) {
        fetch(i + stages - 1, row + (stages - 1) * r.rows_at_once);  // into what row i - 1 was read from
        copy_async_wait<stages - 1>();
        first = load_vector<n>(slot(i, 0));
        second = load_vector<n>(slot(i, 1));
      } else {
        first = load_vector<n>(from.at);
        second = load_vector<n>(r.x.partner(from.at));
        from.advance(r.x, r.heads_in_block, r.rows_at_once);
      }
      Real upper[n], lower[n];
#pragma unroll
      for (int e = 0; e < n; ++e) {
        const Angle& a = angles[e];
        const Real x1 = widen(first.element[e]), x2 = widen(second.element[e]);
        upper[e] = fma(x1, a.cosine, -(x2 * a.sine));
        lower[e] = fma(x1, a.sine, x2 * a.cosine);
      }
      store_vector<n>(upper, to.at);
      store_vector<n>(lower, r.y.partner(to.at));
      to.advance(r.y, r.heads_in_block, r.rows_at_once);
    }
  }
  copy_async_wait<0>();  // tokens without a sequence leave what was fetched
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
    Rotation<T> r{};
    r.x.view = batched_view<const T>(x);
    r.y.view = batched_view<T>(y);
    r.positions = device_view<const std::int32_t, 1>(in.positions);
    r.cu_seqlens = device_view<const std::int32_t, 1>(in.cu_seqlens);
    r.base = problem.base;
    r.rope_scale = problem.rope_scale;
    r.position = problem.position;
    r.direction = static_cast<accumulator_t<T>>(direction);
    const auto& shape = r.x.view.shape;
    r.half = shape[3] / 2;
    r.tokens = shape[2];
    r.sequences = in.positions.present() ? shape[0] : 1;
    r.heads = shape[1];
    r.rows = in.positions.present() ? r.heads : shape[0] * r.heads;
    if (r.half == 0 || r.rows == 0 || r.tokens == 0) return;
    const auto sequences_adjoin = [&](const std::int64_t(&strides)[4]) { return strides[0] == r.heads * strides[1]; };
    if (sequences_adjoin(r.x.view.strides) && sequences_adjoin(r.y.view.strides)) r.heads = r.rows;

    constexpr int n = vector_length<T>;
    const bool packed = rows_are_packed(x, n) && rows_are_packed(y, n) && r.half % n == 0;
    const int length = packed ? n : 1;  // of a thread's vector
    r.tile_pairs =
        static_cast<int>(std::min<std::int64_t>(r.half, std::min(angles_per_block, threads_per_block * length)));
    r.tile_tokens = std::min({angles_per_block / r.tile_pairs, threads_per_block * length / r.tile_pairs, most_tokens});
    r.tile_tokens = static_cast<int>(std::min<std::int64_t>(r.tile_tokens, r.tokens));
    const auto vectors = static_cast<unsigned>(r.tile_pairs / length), tokens = static_cast<unsigned>(r.tile_tokens);
    r.rows_at_once = std::min(threads_per_block / static_cast<int>(vectors * tokens), rows_per_block);
    r.heads_in_block = static_cast<int>(std::min<std::int64_t>(r.heads, rows_per_block));
    r.rows_adjoin = std::abs(r.x.view.strides[1]) < std::abs(r.x.view.strides[2]);
    const auto set_steps = [&](auto& side) {
      const auto& strides = side.view.strides;
      const auto bytes = static_cast<std::int64_t>(sizeof(T));
      side.step = r.rows_at_once * strides[1] * bytes;
      side.wrap = (strides[0] - r.heads * strides[1]) * bytes;
      side.second = r.half * strides[3] * bytes;
    };
    set_steps(r.x);
    set_steps(r.y);

    const std::int64_t pair_tiles = ceil_div(r.half, r.tile_pairs), token_tiles = ceil_div(r.tokens, r.tile_tokens),
                       row_tiles = ceil_div(r.rows, rows_per_block),
                       blocks = r.sequences * row_tiles * token_tiles * pair_tiles;
    // Each is at most `blocks`, which launch() refuses where these do not fit.
    r.pair_tiles = static_cast<unsigned>(pair_tiles);
    r.token_tiles = static_cast<unsigned>(token_tiles);
    r.row_tiles = static_cast<unsigned>(row_tiles);
    const auto rows_at_once = static_cast<unsigned>(r.rows_at_once);
    const dim3 block = r.rows_adjoin ? dim3(vectors, rows_at_once, tokens) : dim3(vectors, tokens, rows_at_once);
    launch(context, operation, packed ? rope_kernel<T, n> : rope_kernel<T, 1>, blocks, block, 0, r);
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
