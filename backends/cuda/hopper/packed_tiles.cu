#include "packed_tiles.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr int threads = 256;

/// One block. Sequences in order, each with ceil(n / rows) tiles; the rest of the list is (-1, 0).
__global__ void packed_tiles_kernel(Int32List cu, int sequences, int rows, int2* tiles, int count) {
  __shared__ int ends[threads];
  int done = 0;  // tiles of the sequences before this round
  for (int first = 0; first < sequences; first += threads) {
    const int sequence = first + static_cast<int>(threadIdx.x);
    const int mine = sequence < sequences ? (cu[sequence + 1] - cu[sequence] + rows - 1) / rows : 0;
    ends[threadIdx.x] = mine;
    __syncthreads();
    for (int step = 1; step < threads; step *= 2) {  // inclusive sums
      const int before = static_cast<int>(threadIdx.x) >= step ? ends[threadIdx.x - step] : 0;
      __syncthreads();
      ends[threadIdx.x] += before;
      __syncthreads();
    }
    const int start = done + ends[threadIdx.x] - mine;
    for (int n = 0; n < mine && start + n < count; ++n) tiles[start + n] = int2{sequence, n};
    done += ends[threads - 1];
    __syncthreads();
  }
  for (int n = done + static_cast<int>(threadIdx.x); n < count; n += threads) tiles[n] = int2{-1, 0};
}

}  // namespace

PackedTiles::PackedTiles(const Context& context, const char* operation, const Int32List& cu, int sequences,
                         int pack_rows, int rows)
    : count_(static_cast<int>(ceil_div(pack_rows, rows)) + sequences),  // each sequence may end with a partial tile
      tiles_(context, operation, count_) {
  launch(context, operation, packed_tiles_kernel, 1, threads, 0, cu, sequences, rows, tiles_.data(), count_);
}

}  // namespace dsalt::cuda::hopper
