#include "dense_call.cuh"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor_map.hpp"

namespace dsalt::cuda::hopper {

bool takes_dense(const Context& context, const AttentionProblem& problem, const AttentionInputs& in) {
  return problem.mask != Mask::sparse && takes_attention(context, problem, in);
}

bool takes_attention(const Context& context, const AttentionProblem& problem, const AttentionInputs& in) {
  if (!context.hopper() || problem.dropout) return false;
  if (in.q.dtype != DType::bf16 && in.q.dtype != DType::f16) return false;
  const auto last = static_cast<std::size_t>(in.q.rank - 1);
  const std::int64_t d = in.q.shape[last];
  if ((d != 64 && d != 128) || in.v.shape[last] != d) return false;
  // The maximum is taken before scaling, in float.
  if (problem.scale && (*problem.scale < 1e-30 || *problem.scale > 1e30)) return false;
  constexpr std::int64_t most_rows = std::int64_t{1} << 30;  // positions are 32-bit numbers, and so are tiles
  for (const TensorView* view : {&in.q, &in.k, &in.v}) {
    if (view->size() == 0) return false;
    if (view->shape[in.cu_seqlens_q.present() ? 0 : 2] > most_rows) return false;
  }
  // The smallest tiles have 64 rows; a pack may have one more for each sequence.
  const bool packed = in.cu_seqlens_q.present();
  const std::int64_t sequences = packed ? in.cu_seqlens_q.shape[0] - 1 : in.q.shape[0];
  const std::int64_t rows = packed ? in.q.shape[0] : in.q.shape[2] * sequences;
  return (rows / 64 + sequences) * in.q.shape[1] < most_rows;
}

DenseCall dense_call(const AttentionProblem& problem, const AttentionInputs& in) {
  const bool packed = in.cu_seqlens_q.present();
  const auto i32 = [](const TensorView& view) {
    return view.present() ? Int32List{static_cast<const std::int32_t*>(view.data), view.strides[0]} : Int32List{};
  };
  const auto last = static_cast<std::size_t>(in.q.rank - 1);
  DenseCall call;
  call.batch = static_cast<int>(packed ? in.cu_seqlens_q.shape[0] - 1 : in.q.shape[0]);
  call.hq = static_cast<int>(in.q.shape[1]);
  call.hkv = static_cast<int>(in.k.shape[1]);
  call.nq = static_cast<int>(in.q.shape[packed ? 0 : 2]);
  call.nk = static_cast<int>(in.k.shape[packed ? 0 : 2]);
  call.cu_q = i32(in.cu_seqlens_q);
  call.cu_k = i32(in.cu_seqlens_k);
  call.k_lengths = i32(in.k_lengths);
  const auto d = static_cast<double>(in.q.shape[last]);
  call.scale_log2 = static_cast<float>(problem.scale.value_or(1 / std::sqrt(d)) * std::numbers::log2e);
  // As many heads side by side as leave their keys and values in half of the L2 cache.
  const double bytes_per_head = 4 * d * call.nk;
  const std::int64_t group = call.hq / call.hkv, pairs = static_cast<std::int64_t>(call.batch) * call.hq;
  const auto fitting = static_cast<std::int64_t>(25e6 / bytes_per_head);
  call.heads_per_section = static_cast<int>(std::min(pairs, std::max<std::int64_t>(1, fitting) * group));
  call.by_section_heads = Divider(call.heads_per_section);
  call.by_hq = Divider(call.hq);
  call.by_group = Divider(call.hq / call.hkv);
  return call;
}

}  // namespace dsalt::cuda::hopper
