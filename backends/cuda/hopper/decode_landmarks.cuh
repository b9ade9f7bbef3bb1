// The landmarks of a block of the forward kernel for few queries (decode_forward.cuh): which of its rows admit which.
#pragma once

#include "../landmark_weights.cuh"
#include "decode_call.cuh"

namespace dsalt::cuda::hopper {

/// An *entry* is a slot of the lists that the block's rows read, one list after another. In shared memory: what must be
/// known of the rows, then for each entry its key, its bias, the page of a paged cache and the rows that admit it.
template <class T, int kRows, int kThreads, bool kPaged>
struct DecodeLandmarks {
  struct Row {
    RowMask mask;
    int list;  // -1: none
  };
  static constexpr int keys_at = (sizeof(Row[kRows]) + 15) / 16 * 16;
  __host__ __device__ static std::size_t shared_bytes(int entries) {
    return keys_at + static_cast<std::size_t>(entries) * (kPaged ? 14 : 10);
  }

  const DecodeParameters<T>& p;
  unsigned char* shared;
  const int thread;
  const DecodeTile& tile;
  const DecodeLists& lists;

  __device__ Row* rows() const { return reinterpret_cast<Row*>(shared); }
  __device__ int* keys() const { return reinterpret_cast<int*>(shared + keys_at); }
  __device__ float* biases() const { return reinterpret_cast<float*>(keys() + p.entries); }
  __device__ int* pages() const { return keys() + 2 * p.entries; }
  __device__ std::uint16_t* admitting() const {
    return reinterpret_cast<std::uint16_t*>(keys() + (kPaged ? 3 : 2) * p.entries);
  }

  /// The entries that a thread asks for before anything else is known: the first of its own.
  struct Early {
    static constexpr int count = 512 / kThreads;
    int key[count], page[count];
  };
  __device__ Early ask_for_keys() const {
    Early early{};
#pragma unroll
    for (int n = 0; n < Early::count; ++n)
      if (const int entry = thread + n * kThreads; entry < lists.entries) early.key[n] = raw(p.landmarks, entry);
    return early;
  }
  /// Of a paged cache: the pages that these are in.
  __device__ void ask_for_pages(Early& early) const {
#pragma unroll
    for (int n = 0; n < Early::count; ++n)
      if (thread + n * kThreads < lists.entries) early.page[n] = page_of(early.key[n]);
  }

  /// Entries [first, last), by the whole block: which rows admit them, and with which bias.
  __device__ void prepare(const Early& early, int first, int last) const {
    const auto keep = [&](int entry, int key, int page) {
      keys()[entry] = is_key(key) ? key : no_key;
      if constexpr (kPaged) pages()[entry] = page;
    };
    // All of them: what comes before an entry in its list may repeat it.
#pragma unroll
    for (int n = 0; n < Early::count; ++n)
      if (const int entry = thread + n * kThreads; entry < lists.entries) keep(entry, early.key[n], early.page[n]);
    for (int entry = thread + Early::count * kThreads; entry < last; entry += kThreads) {
      const int key = raw(p.landmarks, entry);
      keep(entry, key, kPaged ? page_of(key) : 0);
    }
    __syncthreads();
    const int slots = static_cast<int>(p.call.slots);
    for (int entry = first + thread; entry < last; entry += kThreads) {
      const int key = keys()[entry], list = entry / slots, slot = entry - list * slots;
      const float weight = key != no_key && p.call.weight.present() ? raw(p.call.weight, entry) : 0;
      bool repeated = key == no_key;
      const int* const others = keys() + entry - slot;
      for (int start = 0; start < slot; start += 8)
#pragma unroll
        for (int n = start; n < start + 8; ++n) repeated |= n < slot && others[min(n, slot)] == key;
      std::uint32_t admitted = 0;
      if (!repeated)
#pragma unroll 1
        for (int n = 0; n < tile.rows; ++n) {
          const Row& row = rows()[n];
          const RowBounds bounds{row.mask.begin, row.mask.begin + row.mask.length, row.mask.newest};
          if (row.list == list && bounds.admits(key, false)) admitted |= 1u << n;
        }
      admitting()[entry] = static_cast<std::uint16_t>(admitted);
      biases()[entry] = landmark_exponent(weight, p.scale_log2);
    }
  }

  /// The rows that admit an entry, a bit for each.
  __device__ std::uint32_t admitted_by(int entry) const { return entry < lists.entries ? admitting()[entry] : 0; }

 private:
  __device__ bool is_key(int key) const { return key >= 0 && key < tile.s.nk; }
  __device__ int page_of(int key) const { return is_key(key) ? p.pages.place(tile.s.b, key).page : 0; }
  /// An entry of the lists, or of their weights, as it came.
  template <class View>
  __device__ auto raw(const View& view, int entry) const {
    const int slots = static_cast<int>(p.call.slots), list = entry / slots, head = list / lists.lists;
    return *view.at(tile.s.b, lists.first_head + head, lists.first_list + (list - head * lists.lists),
                    entry - list * slots);
  }
};

}  // namespace dsalt::cuda::hopper
