#include "list_forward.hpp"

#include "../launch.cuh"
#include "dense_tensors.cuh"
#include "list_forward.cuh"
#include "sparse_forward.hpp"
#include "unique_lists.hpp"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_forward";

template <class T, int kHead, int kRows>
void run(const Context& context, ListForwardParameters<T>& p) {
  p.tiles = list_tiles(p.call, kRows);
  constexpr int warps = list_tile_threads / 32;
  using Part = typename ListForward<T, kHead, kRows>::Part;
  if (share_list(p.call))
    launch(context, operation, long_list_forward_kernel<T, kHead, kRows>, p.tiles.tiles, list_tile_threads,
           warps * sizeof(Part), p);
  else
    launch(context, operation, list_forward_kernel<T, kHead, kRows>, ceil_div(p.tiles.tiles, warps), list_tile_threads,
           0, p);
}

template <class T, int kHead>
void choose(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
            const AttentionOutputs& out) {
  UniqueLists lists(context, operation, in);
  const bool packed = in.cu_seqlens_q.present();
  ListForwardParameters<T> p{attention_call<T>(problem, in),
                             {},
                             rows_of<T>(out.out, packed),
                             rows_of<float>(out.lse, packed),
                             in.window.present()};
  p.call.clean = lists.prepare(problem, in);
  if (*problem.landmark_chunk * p.call.heads_per_row_head <= 8)
    run<T, kHead, 8>(context, p);
  else
    run<T, kHead, 16>(context, p);
}

}  // namespace

bool takes_list_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& in) {
  if (!has_narrow_lists(problem, in)) return false;
  const WindowPart window(problem, in);
  if (!takes_sparse_forward(context, window.problem, window.inputs)) return false;
  const internal::AttentionSizes n = internal::attention_sizes(in);
  // Tiles of at least 8 rows.
  const double tiles = static_cast<double>(n.batch) * static_cast<double>(n.hq) *
                       static_cast<double>(in.landmarks.shape[2]) *
                       static_cast<double>(ceil_div(*problem.landmark_chunk, 8) + 1);
  return tiles < 0x1p30 && in.landmarks.shape[3] < (std::int64_t{1} << 30);
}

void list_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                  const AttentionOutputs& outputs) {
  AttentionInputs in = inputs;
  AttentionOutputs out = outputs;
  const DenseTensors tensors(context, operation, {&in.q, &in.k, &in.v}, {&out.out});
  std::optional<Scratch<float>> lse;
  if (in.window.present()) {
    if (!out.lse.present()) {  // the two parts are weighed by it
      const auto rank = static_cast<std::size_t>(out.out.rank - 1);
      std::int64_t rows = 1;
      for (std::size_t dim = 0; dim < rank; ++dim) rows *= out.out.shape[dim];
      lse.emplace(context, operation, rows);
      out.lse = TensorView::of(lse->data(), DType::f32, std::span(out.out.shape.data(), rank), out.out.device);
    }
    const WindowPart window(problem, in);
    sparse_forward(context, window.problem, window.inputs, out);
  }
  for_kernel(in.q, [&]<class T, int kHead>(Tag<T>, std::integral_constant<int, kHead>) {
    choose<T, kHead>(context, problem, in, out);
  });
  tensors.copy_back();
}

}  // namespace dsalt::cuda::hopper
