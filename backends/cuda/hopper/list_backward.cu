#include "list_backward.cuh"

#include "../launch.cuh"

namespace dsalt::cuda::hopper {
namespace {

template <class T, int kHead, int kRows>
void run(const Context& context, ListBackwardParameters<T>& p) {
  p.tiles = list_tiles(p.call, kRows);
  const bool shared = share_list(p.call);
  const std::int64_t blocks = shared ? p.tiles.tiles : ceil_div(p.tiles.tiles, list_tile_threads / 32);
  launch(context, "attention_backward",
         shared ? list_backward_kernel<T, kHead, kRows, true> : list_backward_kernel<T, kHead, kRows, false>, blocks,
         list_tile_threads, 0, p);
}

template <class T, int kHead>
void choose(const Context& context, ListBackwardParameters<T>& p) {
  p.call.chunk* p.call.heads_per_row_head <= 8 ? run<T, kHead, 8>(context, p) : run<T, kHead, 16>(context, p);
}

}  // namespace

template <class T>
void list_backward(const Context& context, int head_size, ListBackwardParameters<T> p) {
  head_size == 64 ? choose<T, 64>(context, p) : choose<T, 128>(context, p);
}
template void list_backward(const Context&, int, ListBackwardParameters<bf16>);
template void list_backward(const Context&, int, ListBackwardParameters<f16>);

}  // namespace dsalt::cuda::hopper
