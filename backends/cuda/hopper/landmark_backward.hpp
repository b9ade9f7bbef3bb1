// The landmarks' part of the sparse backward pass where many queries read a list: it comes first, and the windows'
// kernel (sparse_backward.cuh) adds to what it leaves.
#pragma once

#include "../context.hpp"
#include "backward_fragments.cuh"
#include "landmark_sums.cuh"

namespace dsalt::cuda::hopper {

template <class T>
struct LandmarkBackwardCall {
  AttentionCall<T> call;   // clean: sorted lists
  DenseCall queries;       // tiles of 128 queries at D = 64, of 64 at D = 128
  QuerySlots slots;        // dq of every tile becomes this part, not yet scaled
  void* rows;              // QueryRows of slot 0, delta -dlse, which becomes delta - dlse
  std::int64_t rows_step;  // bytes to those of the next slot
  LandmarkSums landmarks;  // get this part added
  int* next;               // a counter, 0
  TensorView q, dout, out;
  float inverse_scale;
};

/// D = 64 or 128.
template <class T>
void landmark_backward(const Context& context, int head_size, const LandmarkBackwardCall<T>& call);

}  // namespace dsalt::cuda::hopper
