// Large memory that the next call can use again. An allocator gives pieces of some megabytes back to the system, which
// clears every page before it hands them out again: that took a seventh of the time of attention's backward pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>

#include "internal/huge_pages.hpp"

namespace dsalt::internal {

/// Blocks aligned to 64 bytes whose contents nobody knows. Holds on to at most `most_kept` bytes of those given back.
/// One thread at a time.
class MemoryPool {
 public:
  static constexpr std::size_t most_kept = std::size_t{64} << 20;

  MemoryPool() = default;
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  ~MemoryPool() {
    for (int n = 0; n < count_; ++n) release(kept_[n].data);
  }

  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  /// At least `bytes`; throws std::bad_alloc.
  Block take(std::size_t bytes) {
    int best = -1;  // the smallest that is large enough, and not so large that another may miss it
    for (int n = 0; n < count_; ++n)
      if (kept_[n].bytes >= bytes && kept_[n].bytes / 2 <= bytes && (best < 0 || kept_[n].bytes < kept_[best].bytes))
        best = n;
    if (best >= 0) {
      const Block block = kept_[best];
      remove(best);
      return block;
    }
    const Block block{::operator new[](bytes, std::align_val_t{64}), bytes};
    advise_huge_pages(block.data, bytes);
    return block;
  }

  /// Takes back what `take` gave out; blocks that are there longest make room for it.
  void give_back(Block block) noexcept {
    if (block.bytes > most_kept) return release(block.data);
    while (count_ == most_blocks || bytes_ + block.bytes > most_kept) {
      release(kept_[0].data);
      remove(0);
    }
    kept_[count_++] = block;
    bytes_ += block.bytes;
  }

  /// Bytes that wait to be used again.
  std::size_t kept() const { return bytes_; }

 private:
  static constexpr int most_blocks = 16;
  static void release(void* data) { ::operator delete[](data, std::align_val_t{64}); }
  void remove(int n) {
    bytes_ -= kept_[n].bytes;
    std::move(kept_ + n + 1, kept_ + count_, kept_ + n);
    --count_;
  }

  Block kept_[most_blocks];
  int count_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace dsalt::internal
