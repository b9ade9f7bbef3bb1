// Huge pages for large host memory. Rows of a large tensor are met in an order that spreads over many pages; huge ones
// keep address translation, and the first touch of fresh memory, cheap.
#pragma once

#include <cstddef>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dsalt::internal {

inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Asks for huge pages under memory of at least two of them, aligned to one. Advice: nothing changes without them.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  if (bytes >= 2 * huge_page) ::madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace dsalt::internal
