// A list is short beside the keys and there may be one for each query and head, so nothing is sorted: an entry stays if
// no lower slot has its index. Up to 32 slots are the lanes of a warp, which look at each other; more go through a hash
// table in shared memory that keeps the lowest slot of each index.
#include "unique_lists.hpp"

namespace dsalt::cuda::hopper {
namespace {

constexpr int threads = 128;
constexpr std::int64_t warp_slots = 32, hashed_slots = 4096;  // the most that a warp, and a block's table, take

struct RawLists {
  View<const std::int32_t, 4> landmarks;  // [B,Hl,T,K]
  View<const std::int32_t, 1> cu_q, cu_k, k_lengths;
  std::int64_t nq, nk, lists, chunk, chunk_offset;
};

/// One list of a call, seen by the threads that clean it.
struct RawList {
  const std::int32_t* first = nullptr;
  std::int64_t step = 0, nk = 0;
  int slots = 0;  // 0: nobody reads it

  __device__ RawList(const RawLists& raw, std::int64_t list) {
    const std::int64_t heads = raw.landmarks.shape[1], count = raw.landmarks.shape[2];
    const std::int64_t t = list % count, h = list / count % heads, b = list / count / heads;
    const bool packed = raw.cu_q.present();
    const std::int64_t nq = packed ? *raw.cu_q.at(b + 1) - *raw.cu_q.at(b) : raw.nq;
    nk = packed ? *raw.cu_k.at(b + 1) - *raw.cu_k.at(b) : raw.k_lengths.present() ? *raw.k_lengths.at(b) : raw.nk;
    if (nq == 0 || t > (raw.chunk == 0 ? 0 : (nq - 1 + raw.chunk_offset) / raw.chunk)) return;
    first = raw.landmarks.at(b, h, t, 0);
    step = raw.landmarks.strides[3];
    slots = static_cast<int>(raw.landmarks.shape[3]);
  }
  /// The index in slot n, -1 if it is unused. (One past the last key moves the entries behind it to other places of a
  /// kernel's steps: a row's bits stay only while lists do not name keys that are not there yet. Selected lists do
  /// not.)
  __device__ std::int32_t index(int n) const {
    const std::int32_t l = n < slots ? first[n * step] : -1;
    return l < nk ? l : -1;
  }
};

/// One warp per list of at most 32 slots.
__global__ void __launch_bounds__(threads)
    unique_in_warp_kernel(RawLists raw, std::int32_t* index, std::int32_t* slot, std::int32_t* count) {
  const std::int64_t list = static_cast<std::int64_t>(blockIdx.x) * (threads / 32) + threadIdx.x / 32;
  if (list >= raw.lists) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, slots = static_cast<int>(raw.landmarks.shape[3]);
  const RawList mine(raw, list);
  const std::int32_t l = mine.index(lane);
  bool keep = l >= 0;
  for (int n = 0; n < slots - 1; ++n) keep &= __shfl_sync(0xffffffffu, l, n) != l || n >= lane;
  const std::uint32_t kept = __ballot_sync(0xffffffffu, keep);
  if (keep) {
    const std::int64_t place = list * slots + __popc(kept & ((1u << lane) - 1));
    index[place] = l;
    slot[place] = lane;
  }
  if (lane >= __popc(kept) && lane < slots) index[list * slots + lane] = no_key;
  if (lane == 0) count[list] = __popc(kept);
}

/// One block per list. The table has 2^bits places, at least twice as many as slots.
__global__ void __launch_bounds__(threads)
    unique_by_hash_kernel(RawLists raw, int bits, std::int32_t* index, std::int32_t* slot, std::int32_t* count) {
  const std::int64_t list = blockIdx.x, slots = raw.landmarks.shape[3];
  const int size = 1 << bits;
  std::int32_t *keys = dynamic_shared_memory<std::int32_t>(), *lowest = keys + size;
  const RawList mine(raw, list);
  for (int n = threadIdx.x; n < size; n += threads) {
    keys[n] = -1;
    lowest[n] = INT32_MAX;
  }
  __syncthreads();
  const auto start_of = [&](std::int32_t l) {
    return static_cast<int>(static_cast<std::uint32_t>(l) * 2654435769u >> (32 - bits));
  };
  for (int n = threadIdx.x; n < mine.slots; n += threads) {
    const std::int32_t l = mine.index(n);
    if (l < 0) continue;
    for (int place = start_of(l);; place = (place + 1) % size) {
      const std::int32_t found = atomicCAS(keys + place, -1, l);
      if (found != -1 && found != l) continue;
      atomicMin(lowest + place, n);
      break;
    }
  }
  __syncthreads();
  __shared__ int kept_by_warp[threads / 32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int kept = 0;
  for (int start = 0; start < mine.slots; start += threads) {
    const int n = start + static_cast<int>(threadIdx.x);
    const std::int32_t l = mine.index(n);
    bool keep = false;
    if (l >= 0) {
      int place = start_of(l);
      while (keys[place] != l) place = (place + 1) % size;
      keep = lowest[place] == n;
    }
    const std::uint32_t votes = __ballot_sync(0xffffffffu, keep);
    if (lane == 0) kept_by_warp[warp] = __popc(votes);
    __syncthreads();
    std::int64_t place = list * slots + kept + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < threads / 32; ++w) {
      if (w < warp) place += kept_by_warp[w];
      kept += kept_by_warp[w];
    }
    if (keep) {
      index[place] = l;
      slot[place] = n;
    }
    __syncthreads();  // kept_by_warp may be written again
  }
  for (int n = kept + static_cast<int>(threadIdx.x); n < slots; n += threads) index[list * slots + n] = no_key;
  if (threadIdx.x == 0) count[list] = kept;
}

/// One block per list.
__global__ void pad_lists_kernel(std::int64_t slots, const std::int32_t* count, std::int32_t* index) {
  const std::int64_t list = blockIdx.x;
  for (std::int64_t n = count[list] + threadIdx.x; n < slots; n += blockDim.x) index[list * slots + n] = no_key;
}

std::int64_t list_count(const AttentionInputs& in) {
  return in.landmarks.shape[0] * in.landmarks.shape[1] * in.landmarks.shape[2];
}
std::int64_t slots_of(const AttentionInputs& in) { return in.landmarks.shape[3]; }

}  // namespace

UniqueLists::UniqueLists(const Context& context, const char* operation, const AttentionInputs& in)
    : context_(context),
      operation_(operation),
      lists_(list_count(in)),
      slots_(slots_of(in)),
      index_(context, operation, slots_ > hashed_slots ? 0 : lists_ * slots_),
      slot_(context, operation, slots_ > hashed_slots ? 0 : lists_ * slots_),
      count_(context, operation, slots_ > hashed_slots ? 0 : lists_) {
  if (slots_ > hashed_slots) sorted_.emplace(context, operation, in);
}

CleanLists UniqueLists::prepare(const AttentionProblem& problem, const AttentionInputs& in) {
  if (sorted_) {
    const CleanLists clean = sorted_->prepare(problem, in);
    launch(context_, operation_, pad_lists_kernel, lists_, threads, 0, slots_, clean.count,
           const_cast<std::int32_t*>(clean.index));
    return clean;
  }
  const internal::AttentionSizes sizes = internal::attention_sizes(in);
  const RawLists raw{device_view<const std::int32_t, 4>(in.landmarks),
                     device_view<const std::int32_t, 1>(in.cu_seqlens_q),
                     device_view<const std::int32_t, 1>(in.cu_seqlens_k),
                     device_view<const std::int32_t, 1>(in.k_lengths),
                     sizes.nq,
                     sizes.nk,
                     lists_,
                     problem.landmark_chunk.value_or(0),
                     problem.landmark_offset};
  if (slots_ <= warp_slots) {
    launch(context_, operation_, unique_in_warp_kernel, ceil_div(lists_, threads / 32), threads, 0, raw, index_.data(),
           slot_.data(), count_.data());
  } else {
    int bits = 1;
    while (std::int64_t{1} << bits < 2 * slots_) ++bits;
    launch(context_, operation_, unique_by_hash_kernel, lists_, threads,
           (std::size_t{2} << bits) * sizeof(std::int32_t), raw, bits, index_.data(), slot_.data(), count_.data());
  }
  return {index_.data(), slot_.data(), count_.data()};
}

}  // namespace dsalt::cuda::hopper
