#include "landmark_backward.hpp"

#include <algorithm>

#include "landmark_backward.cuh"
#include "tensor_map.hpp"
#include "warp_specialized.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_backward";

/// The length of segments with which the multiprocessor that has most to do has least: a segment costs about as much as
/// 256 rows to begin and to end.
LandmarkSegments segments_of(const Context& context, std::int64_t heads, int tiles, int rows) {
  LandmarkSegments best;
  std::int64_t least = INT64_MAX;
  for (int each = LandmarkSegments::most_rows / rows; each * rows >= 256; each /= 2) {
    const std::int64_t per_head = ceil_div(tiles, each),
                       cost = ceil_div(per_head * heads, context.multiprocessors) * (each * rows + 256);
    if (cost >= least) continue;
    least = cost;
    best = {each, static_cast<int>(per_head), static_cast<int>(heads)};
  }
  return best;
}

template <class T, int kHead>
void run(const Context& context, const LandmarkBackwardCall<T>& of) {
  constexpr int rows = kHead == 64 ? 128 : 64;
  using F = LandmarkBackward<T, kHead, rows>;
  const std::int64_t heads = static_cast<std::int64_t>(of.queries.hq) * (of.call.packed ? 1 : of.queries.batch);
  typename F::Parameters p{};
  p.q = make_tensor_map(of.q, rows, operation);
  p.dout = make_tensor_map(of.dout, rows, operation);
  p.out = make_tensor_map(of.out, rows, operation);
  p.call = of.queries;
  p.sparse = of.call;
  p.slots = of.slots;
  p.rows = static_cast<typename F::Queries*>(of.rows);
  p.rows_step = of.rows_step;
  p.landmarks = of.landmarks;
  p.segments = segments_of(context, heads, of.queries.tiles, rows);
  p.job_count = static_cast<int>(p.segments.count());
  p.next = of.next;
  p.inverse_scale = of.inverse_scale;
  launch(context, operation, warp_specialized_kernel<F>, std::min<std::int64_t>(p.job_count, context.multiprocessors),
         F::threads, F::shared_bytes, p);
}

}  // namespace

template <class T>
void landmark_backward(const Context& context, int head_size, const LandmarkBackwardCall<T>& call) {
  head_size == 64 ? run<T, 64>(context, call) : run<T, 128>(context, call);
}
template void landmark_backward(const Context&, int, const LandmarkBackwardCall<bf16>&);
template void landmark_backward(const Context&, int, const LandmarkBackwardCall<f16>&);

}  // namespace dsalt::cuda::hopper
