// Products of two matrices of 16-bit elements in memory, D(i, j) = sum over k of A(i, k) B(j, k), for kernels that have
// their own use of D: a persistent block of one copying warp and two computing warpgroups walks over tiles of D.
//
//   kTurns false   the warpgroups share tiles of 128 x 256, 64 rows each: fewest bytes copied per product
//   kTurns true    the warpgroups have tiles of 128 x 128 by turns: one uses its tile while the other multiplies
//
// k is cut into steps of 64, which are added in ascending order; outside the matrices elements are 0. D(i, j) has the
// same bits wherever in a tile and in whichever tile it is computed.
//
// `Use` is what becomes of D, with
//   extent()            the product's size, known on the device only
//   note(extent, row)   one number of a row of D, asked for before its products, so that it has arrived after them
//   use(extent, tile, row, lane, notes, d)
//                       64 rows of a tile, laid out as wgmma.cuh says: this thread has rows `row` and `row` + 8 of D,
//                       columns tile.column0 + 8 c + lane % 4 * 2 ...
#pragma once

#include "tensor_map.hpp"
#include "tma.cuh"
#include "warp_specialized.cuh"
#include "wgmma_wide.cuh"

namespace dsalt::cuda::hopper {

struct ProductExtent {
  int rows, columns, depth;
  int part = 0;  // k is cut into parts of this many (a multiple of 64), each with a D of its own; 0: it is not
};

struct ProductTile {
  int row0, column0, part, k0, steps;
};

/// Notes of the rows that a warp uses: lanes 0 .. 15 have those of its 16 rows of a tile's 64, lanes 16 .. 31 with
/// turns those of the next 64.
struct RowNotes {
  int of_lane, first;  // first: lane that has the note of this thread's first row

  /// Of the first or second of the thread's rows. All lanes call.
  __device__ int of(int r) const { return __shfl_sync(0xffffffffu, of_lane, first + 8 * r); }
};

/// Tile n of an extent. Tiles that run at the same time have few rows and columns in all, so that most of what they
/// read lies in the cache.
template <int rows, int columns, int depth>
struct ProductTiles {
  static constexpr int group = 16;  // tiles of rows
  ProductExtent extent;
  int row_tiles, column_tiles, parts;

  __host__ __device__ explicit ProductTiles(const ProductExtent& e)
      : extent(e),
        row_tiles((e.rows + rows - 1) / rows),
        column_tiles((e.columns + columns - 1) / columns),
        parts(e.part == 0 ? 1 : (e.depth + e.part - 1) / e.part) {}

  __host__ __device__ int count() const { return row_tiles * column_tiles * parts; }

  __device__ ProductTile tile(int n) const {
    const int part = n / (row_tiles * column_tiles), in_part = n % (row_tiles * column_tiles);
    const int first = in_part / (group * column_tiles) * group, in_group = in_part % (group * column_tiles);
    const int height = min(group, row_tiles - first);
    const int k0 = part * extent.part, left = extent.depth - k0,
              deep = extent.part == 0 ? left : min(left, extent.part);
    return {(first + in_group % height) * rows, in_group / height * columns, part, k0, (deep + depth - 1) / depth};
  }
};

template <class T, Major kA, Major kB, bool kTurns, class Use>
struct Product {
  static constexpr int rows = 128, columns = kTurns ? 128 : 256, depth = 64, stages = kTurns ? 6 : 4;
  static constexpr int consumers = 256, threads = consumers + 128, blocks_per_multiprocessor = 1;
  static constexpr int blocks = kTurns ? 2 : 1;  // of 64 rows, of a warpgroup
  // Both ways to lie give A and B the same size: 128-byte rows, one for each row or column (k) or, in boxes of 64 rows
  // or columns, one for each k (mn).
  static constexpr std::uint32_t box_bytes = 64 * 128, a_bytes = rows * 128, b_bytes = columns * 128,
                                 stage_bytes = a_bytes + b_bytes;
  using Tiles = ProductTiles<rows, columns, depth>;

  struct Barriers {
    Barrier full[stages], empty[stages];
  };
  static constexpr std::uint32_t barriers_at = stages * stage_bytes;
  static constexpr std::uint32_t shared_bytes = 1024 + barriers_at + sizeof(Barriers);

  struct Parameters {
    CUtensorMap a, b;
    Use use;
  };
  /// Rows of the operands' boxes.
  static constexpr int a_box_rows = kA == Major::k ? rows : depth, b_box_rows = kB == Major::k ? columns : depth;

  unsigned char* shared;
  const Parameters& p;
  Barriers& barriers;

  __device__ Product(const Parameters& parameters, unsigned char* memory)
      : shared(memory), p(parameters), barriers(*reinterpret_cast<Barriers*>(memory + barriers_at)) {}

  __device__ unsigned char* a_tile(int stage) const { return shared + stage * stage_bytes; }
  __device__ unsigned char* b_tile(int stage) const { return a_tile(stage) + a_bytes; }

  __device__ void init_barriers() const {
    for (int stage = 0; stage < stages; ++stage) {
      barrier_init(&barriers.full[stage], 1);
      barrier_init(&barriers.empty[stage], (kTurns ? 4 : 8) * arrivals_of_warp());  // warps that read a stage
    }
  }

  /// One lane of the copying warp.
  __device__ void produce(const Tiles& tiles) {
    int count = 0;
    for (int n = static_cast<int>(blockIdx.x); n < tiles.count(); n += static_cast<int>(gridDim.x)) {
      const ProductTile tile = tiles.tile(n);
      for (int step = 0; step < tile.steps; ++step, ++count) {
        const int stage = count % stages, k = tile.k0 + step * depth;
        Barrier* const full = &barriers.full[stage];
        barrier_wait(&barriers.empty[stage], count / stages % 2 ^ 1);
        barrier_expect(full, stage_bytes);
        load<kA, rows>(a_tile(stage), p.a, full, tile.row0, k);
        load<kB, columns>(b_tile(stage), p.b, full, tile.column0, k);
      }
    }
  }
  template <Major major, int extent>
  static __device__ void load(unsigned char* to, const CUtensorMap& map, Barrier* full, int first, int k) {
    if constexpr (major == Major::k) {
      tma_load(to, &map, full, k, first);
    } else {
#pragma unroll
      for (int box = 0; box < extent / 64; ++box) tma_load(to + box * box_bytes, &map, full, first + 64 * box, k);
    }
  }

  /// One warpgroup.
  struct Consumer {
    Product& f;
    int group, lane;
    int count = 0;  // steps of this block's tiles so far
    float d[blocks][columns / 2];

    __device__ Consumer(Product& product, int thread) : f(product), group(thread / 128), lane(thread % 32) {}

    /// The warp's first of 64 rows: 16 are its own.
    static __device__ int warp_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 16; }

    /// D's of this warpgroup += the products of one step.
    __device__ void issue(int stage) {
      const std::uint64_t a = tile_descriptor(f.a_tile(stage) + (kTurns ? 0 : group * box_bytes));
      const std::uint64_t b = tile_descriptor(f.b_tile(stage), kB == Major::k ? 16 : box_bytes);
      constexpr std::uint32_t a_step = kA == Major::k ? 32 : 2048, b_step = kB == Major::k ? 32 : 2048;
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < depth / 16; ++step)
#pragma unroll
        for (int block = 0; block < blocks; ++block)
          Wgmma<columns>::template shared_shared<T, kA, kB>(d[block], advance(a, block * box_bytes + step * a_step),
                                                            advance(b, step * b_step), true);
      wgmma_commit();
    }
    __device__ void release(int of) const { release_by_warp(&f.barriers.empty[of % stages], lane); }

    __device__ void multiply(int steps) {
#pragma unroll
      for (int block = 0; block < blocks; ++block) {
#pragma unroll
        for (int n = 0; n < columns / 2; ++n) d[block][n] = 0;
        keep_in_registers(d[block]);
      }
      // A turn also says that the other warpgroup has seen all of its steps arrive: before that a barrier's parity may
      // be that of an earlier phase.
      if constexpr (kTurns) named_sync(1 + group, consumers);
      for (int step = 0; step < steps; ++step, ++count) {
        barrier_wait(&f.barriers.full[count % stages], count / stages % 2);
        issue(count % stages);
        if (step == 0) continue;
        wgmma_wait<1>();
        release(count - 1);
      }
      if constexpr (kTurns) named_arrive(1 + (group ^ 1), consumers);
      wgmma_wait<0>();
#pragma unroll
      for (int block = 0; block < blocks; ++block) keep_in_registers(d[block]);
      if (steps > 0) release(count - 1);
    }

    __device__ void run(const Tiles& tiles) {
      if (kTurns && group == 1) named_arrive(1, consumers);  // the first group has the first turn
      int turn = 0;
      for (int n = static_cast<int>(blockIdx.x); n < tiles.count(); n += static_cast<int>(gridDim.x), turn ^= 1) {
        const ProductTile tile = tiles.tile(n);
        if (kTurns && turn != group) {
          count += tile.steps;
          continue;
        }
        const int note =
            f.p.use.note(tiles.extent, tile.row0 + 64 * (kTurns ? lane / 16 : group) + warp_row() + lane % 16);
        multiply(tile.steps);
#pragma unroll
        for (int block = 0; block < blocks; ++block)
          f.p.use.use(tiles.extent, tile, tile.row0 + 64 * (kTurns ? block : group) + warp_row() + lane / 4, lane,
                      RowNotes{note, 16 * block + lane / 4}, d[block]);
      }
    }
  };

  __device__ void run(int thread) {
    const Tiles tiles(p.use.extent());
    if (thread >= consumers) {
      fewer_registers<24>();
      if (thread == consumers) produce(tiles);
    } else {
      more_registers<240>();
      Consumer(*this, thread).run(tiles);
    }
  }
};

}  // namespace dsalt::cuda::hopper
