// Huge pages for large host memory. Rows of a large tensor are met in an order that spreads over many pages; huge ones
// keep address translation, and the first touch of fresh memory, cheap.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dsalt::internal {

/// Asks for huge pages inside memory of some megabytes. Advice: nothing changes without them. (Aligning the memory
/// itself to them would keep the allocator from using freed pieces again: a process of many tensors grows sixfold.)
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;
  if (bytes < 2 * huge_page) return;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (at + huge_page - 1) / huge_page * huge_page, end = (at + bytes) / huge_page * huge_page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace dsalt::internal
