// Copies pages to contiguous memory, 64 keys of a sequence to a block: row j of sequence b comes from row j % page of
// page page_table[b, j / page], for j < k_lengths[b]. What lies behind that is neither read nor written. A page that
// does not exist is not read: its rows become NaN.
#include "attention_pages.cuh"

#include <algorithm>
#include <limits>

#include "internal/sequence.hpp"
#include "launch.cuh"
#include "walk.cuh"

namespace dsalt::cuda {
namespace {

constexpr int gather_threads = 256, gather_keys = 64;

/// Elements are moved, not looked at: an unsigned integer of their size.
template <class T>
struct Gather {
  View<const T, 4> pool;  // [P,Hkv,page,E]
  View<const std::int32_t, 2> table;
  View<const std::int32_t, 1> lengths;
  T* copy;  // [B,Hkv,Nk,pitch]
  std::int64_t nk, pitch, key_blocks;
};

template <class T, bool vectors>
__global__ void __launch_bounds__(gather_threads) gather_pages_kernel(Gather<T> gather) {
  constexpr int v = vector_length<T>;
  const std::int64_t b = blockIdx.x / gather.key_blocks;
  const std::int64_t first = blockIdx.x % gather.key_blocks * gather_keys;
  const std::int64_t end = min(static_cast<std::int64_t>(*gather.lengths.at(b)), gather.nk);
  const std::int64_t keys = min(static_cast<std::int64_t>(gather_keys), end - first);
  if (keys <= 0) return;
  const std::int64_t pieces = gather.pitch / v, heads = gather.pool.shape[1], page = gather.pool.shape[2];
  for (std::int64_t n = threadIdx.x; n < heads * keys * pieces; n += gather_threads) {
    std::int64_t head = n;
    const std::int64_t column = take_remainder(head, pieces) * v, key = first + take_remainder(head, keys);
    std::int64_t entry = key;
    const std::int64_t row = take_remainder(entry, page), from = *gather.table.at(b, entry);
    Vector<T, v> piece;
    if (from >= 0 && from < gather.pool.shape[0])
      piece =
          load_part<v, vectors>(gather.pool.at(from, head, row), gather.pool.strides[3], column, gather.pool.shape[3]);
    else
      for (T& element : piece.element) element = static_cast<T>(~T{0});  // a NaN of every floating type
    *reinterpret_cast<Vector<T, v>*>(gather.copy + ((b * heads + head) * gather.nk + key) * gather.pitch + column) =
        piece;
  }
}

/// a b, or the largest number: memory of that size is refused by name, a product that wraps is not.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

template <class Body>
void for_element_size(std::size_t size, Body&& body) {
  size == 2 ? body(Tag<std::uint16_t>{}) : size == 4 ? body(Tag<std::uint32_t>{}) : body(Tag<std::uint64_t>{});
}

}  // namespace

GatheredPages::Copy GatheredPages::copy_of(const TensorView& pool) const {
  const std::int64_t v = 16 / static_cast<std::int64_t>(size_of(pool.dtype));
  Copy copy{pool, ceil_div(pool.shape[3], v) * v, 0};
  copy.view.shape = {inputs_.q.shape[0], pool.shape[1], nk_, pool.shape[3]};
  copy.view.strides[3] = 1;
  copy.view.strides[2] = copy.pitch;
  copy.view.strides[1] = product(nk_, copy.pitch);
  copy.view.strides[0] = product(pool.shape[1], copy.view.strides[1]);
  copy.elements = product(copy.view.shape[0], copy.view.strides[0]);
  return copy;
}

GatheredPages::GatheredPages(const Context& context, const char* operation, const AttentionInputs& inputs)
    : context_(context),
      operation_(operation),
      inputs_(inputs),
      // No length in k_lengths is larger.
      nk_(std::min<std::int64_t>(internal::paged_capacity(inputs), std::numeric_limits<std::int32_t>::max())),
      k_(copy_of(inputs.k)),
      v_(copy_of(inputs.v)),
      k_memory_(context, operation, product(k_.elements, static_cast<std::int64_t>(size_of(inputs.k.dtype)))),
      v_memory_(context, operation, product(v_.elements, static_cast<std::int64_t>(size_of(inputs.v.dtype)))) {
  gather(inputs.k, inputs.page_table, k_, k_memory_.data());
  gather(inputs.v, inputs.page_table, v_, v_memory_.data());
  inputs_.k = k_.view;
  inputs_.v = v_.view;
  inputs_.page_table = {};
}

void GatheredPages::gather(const TensorView& pool, const TensorView& table, Copy& copy, unsigned char* memory) {
  copy.view.data = memory;
  for_element_size(size_of(pool.dtype), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t key_blocks = ceil_div(nk_, gather_keys);
    const Gather<T> arguments{device_view<const T, 4>(pool),
                              device_view<const std::int32_t, 2>(table),
                              device_view<const std::int32_t, 1>(inputs_.k_lengths),
                              reinterpret_cast<T*>(memory),
                              nk_,
                              copy.pitch,
                              key_blocks};
    const auto blocks = static_cast<unsigned>(inputs_.q.shape[0] * key_blocks);
    const auto kernel =
        rows_are_packed(pool, vector_length<T>) ? gather_pages_kernel<T, true> : gather_pages_kernel<T, false>;
    launch(context_, operation_, kernel, blocks, gather_threads, 0, arguments);
  });
}

}  // namespace dsalt::cuda
