// The landmarks' part of the gradients where few queries read a list: before the windows' kernel (sparse_backward.cuh),
// in place of landmark_backward.hpp.
#pragma once

#include "../context.hpp"
#include "list_tile.cuh"
#include "sparse_backward.cuh"

namespace dsalt::cuda::hopper {

template <class T>
struct ListBackwardParameters {
  AttentionCall<T> call;     // clean: lists without repeats, in any order
  DenseCall queries;         // tiles of `query_rows` queries
  QuerySlots slots;          // dq gets this part added, not yet scaled
  const float *lse, *delta;  // as in QueryRows, of slot 0; those of the next slot are `statistics_stride` further
  std::int64_t statistics_stride;
  int query_rows;
  LandmarkSums landmarks;
  Rows<const T> dout;
  float scale_log2;
  ListTiles tiles;
};

/// In stream order after the sums were cleared. D = 64 or 128.
template <class T>
void list_backward(const Context& context, int head_size, ListBackwardParameters<T> parameters);

}  // namespace dsalt::cuda::hopper
