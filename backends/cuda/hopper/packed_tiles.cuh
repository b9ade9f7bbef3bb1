// Which tiles of rows a packed call consists of: cu_seqlens is in device memory, so a small kernel writes the list of
// (sequence, tile), as long as the most that this many rows and sequences can need; then (-1, 0).
#pragma once

#include "../launch.cuh"
#include "dense_call.cuh"

namespace dsalt::cuda::hopper {

class PackedTiles {
 public:
  /// `cu` [sequences + 1] in device memory, of a pack of `pack_rows` rows; tiles of `rows` rows.
  PackedTiles(const Context& context, const char* operation, const Int32List& cu, int sequences, int pack_rows,
              int rows);
  const int2* tiles() const { return tiles_.data(); }
  int count() const { return count_; }

 private:
  int count_;
  Scratch<int2> tiles_;
};

}  // namespace dsalt::cuda::hopper
