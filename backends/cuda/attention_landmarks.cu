// Landmark lists made ready (docs/semantics.md, "The admitted set"): of each list the valid indices, ascending, each
// once with the lowest slot that holds it. What depends on the row (window, causality) is left to the reader;
// ascending, the keys before a position are a prefix, and indices that a longer sequence adds come last.
#include "attention_call.cuh"
#include "dependent_launch.cuh"

namespace dsalt::cuda {
namespace {

constexpr int threads = 128;
constexpr std::int64_t shared_width = 4096;  // wider lists are sorted in device memory
constexpr std::uint64_t unused = ~std::uint64_t{0};

struct RawLists {
  View<const std::int32_t, 4> landmarks;  // [B,Hl,T,K]
  View<const std::int32_t, 1> cu_q, cu_k, k_lengths;
  std::int64_t nq, nk, chunk, chunk_offset;
};

/// Sorts (index, slot) pairs of one list by a bitonic network, then keeps the first of each index.
__global__ void __launch_bounds__(threads)
    attention_lists_kernel(RawLists raw, std::int64_t sort_width, std::uint64_t* sorting, std::int32_t* index,
                           std::int32_t* slot, std::int32_t* count, int* zero) {
  let_later_kernels_start();
  if (zero != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *zero = 0;
  const std::int64_t list = blockIdx.x, heads = raw.landmarks.shape[1], lists = raw.landmarks.shape[2],
                     slots = raw.landmarks.shape[3];
  const std::int64_t t = list % lists, h = list / lists % heads, b = list / lists / heads;
  const bool packed = raw.cu_q.present();
  const std::int64_t nq = packed ? *raw.cu_q.at(b + 1) - *raw.cu_q.at(b) : raw.nq;
  const std::int64_t nk = packed                    ? *raw.cu_k.at(b + 1) - *raw.cu_k.at(b)
                          : raw.k_lengths.present() ? *raw.k_lengths.at(b)
                                                    : raw.nk;
  const bool read = nq > 0 && t <= (raw.chunk == 0 ? 0 : (nq - 1 + raw.chunk_offset) / raw.chunk);
  if (!read) {
    if (threadIdx.x == 0) count[list] = 0;
    return;
  }
  std::uint64_t* keys = sorting == nullptr ? dynamic_shared_memory<std::uint64_t>() : sorting + list * sort_width;
  for (std::int64_t n = threadIdx.x; n < sort_width; n += threads) {
    const std::int64_t l = n < slots ? *raw.landmarks.at(b, h, t, n) : -1;
    keys[n] = l >= 0 && l < nk ? static_cast<std::uint64_t>(l) << 32 | static_cast<std::uint64_t>(n) : unused;
  }
  __syncthreads();
  // Bitonic: pairs `1 << step` apart, ascending or descending by the bit of the run they are in.
  for (int run = 1; std::int64_t{1} << run <= sort_width; ++run)
    for (int step = run - 1; step >= 0; --step) {
      for (std::int64_t n = threadIdx.x; n < sort_width / 2; n += threads) {
        const std::int64_t low = (n >> step << (step + 1)) + (n & ((std::int64_t{1} << step) - 1)),
                           high = low + (std::int64_t{1} << step);
        const std::uint64_t a = keys[low], c = keys[high];
        if ((a > c) == ((low >> run & 1) == 0)) {
          keys[low] = c;
          keys[high] = a;
        }
      }
      __syncthreads();
    }

  __shared__ int kept_by_warp[threads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::int64_t kept = 0;
  for (std::int64_t start = 0; start < slots; start += threads) {
    const std::int64_t n = start + threadIdx.x;
    const bool keep = n < slots && keys[n] != unused && (n == 0 || keys[n - 1] >> 32 != keys[n] >> 32);
    const std::uint32_t votes = __ballot_sync(0xffffffffu, keep);
    if (lane == 0) kept_by_warp[warp] = __popc(votes);
    __syncthreads();
    std::int64_t place = kept + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < threads / 32; ++w) {
      if (w < warp) place += kept_by_warp[w];
      kept += kept_by_warp[w];
    }
    if (keep) {
      index[list * slots + place] = static_cast<std::int32_t>(keys[n] >> 32);
      slot[list * slots + place] = static_cast<std::int32_t>(keys[n] & 0xffffffffu);
    }
    __syncthreads();  // kept_by_warp may be written again
  }
  if (threadIdx.x == 0) count[list] = static_cast<std::int32_t>(kept);
}

std::int64_t power_of_two(std::int64_t n) {
  std::int64_t width = 2;
  while (width < n) width *= 2;
  return width;
}

std::int64_t list_count(const TensorView& landmarks) {
  return landmarks.present() ? landmarks.shape[0] * landmarks.shape[1] * landmarks.shape[2] : 0;
}

}  // namespace

LandmarkLists::LandmarkLists(const Context& context, const char* operation, const AttentionInputs& inputs)
    : context_(context),
      operation_(operation),
      lists_(list_count(inputs.landmarks)),
      slots_(inputs.landmarks.present() ? inputs.landmarks.shape[3] : 0),
      sort_width_(power_of_two(slots_)),
      index_(context, operation, lists_ * slots_),
      slot_(context, operation, lists_ * slots_),
      count_(context, operation, lists_),
      sorting_(context, operation, sort_width_ > shared_width ? lists_ * sort_width_ : 0) {}

CleanLists LandmarkLists::prepare(const AttentionProblem& problem, const AttentionInputs& inputs, int* zero) {
  if (lists_ == 0) {
    if (zero != nullptr) check(cudaMemsetAsync(zero, 0, sizeof(int), context_.stream()), operation_, "cudaMemsetAsync");
    return {};
  }
  const internal::AttentionSizes sizes = internal::attention_sizes(inputs);
  const RawLists raw{device_view<const std::int32_t, 4>(inputs.landmarks),
                     device_view<const std::int32_t, 1>(inputs.cu_seqlens_q),
                     device_view<const std::int32_t, 1>(inputs.cu_seqlens_k),
                     device_view<const std::int32_t, 1>(inputs.k_lengths),
                     sizes.nq,
                     sizes.nk,
                     problem.landmark_chunk.value_or(0),
                     problem.landmark_offset};
  const std::size_t shared =
      sorting_.data() == nullptr ? static_cast<std::size_t>(sort_width_) * sizeof(std::uint64_t) : 0;
  launch(context_, operation_, attention_lists_kernel, lists_, dim3(threads), shared, raw, sort_width_, sorting_.data(),
         index_.data(), slot_.data(), count_.data(), zero);
  return {index_.data(), slot_.data(), count_.data()};
}

}  // namespace dsalt::cuda
