// Uninitialised or zeroed memory of the attention passes.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "internal/huge_pages.hpp"
#include "memory_pool.hpp"

namespace dsalt::internal {

/// Array aligned to 64 bytes, zero-initialised unless made by `raw`. Large ones ask for huge pages.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(std::int64_t n) : Array(raw(n)) {
    std::memset(static_cast<void*>(data_.get()), 0, static_cast<std::size_t>(n) * sizeof(T));
  }
  static Array raw(std::int64_t n) {
    const std::size_t bytes = bytes_of(n);
    Array array;
    array.data_.reset(static_cast<T*>(::operator new[](bytes, std::align_val_t{64})));
    advise_huge_pages(array.data_.get(), bytes);
    return array;
  }
  /// From a pool, which must outlive it.
  static Array raw(std::int64_t n, MemoryPool& pool) {
    const MemoryPool::Block block = pool.take(bytes_of(n));
    Array array;
    array.data_ = {static_cast<T*>(block.data), Free{&pool, block.bytes}};
    return array;
  }
  T* get() const { return data_.get(); }
  T& operator[](std::int64_t n) const { return data_.get()[n]; }

 private:
  static std::size_t bytes_of(std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(T); }
  struct Free {
    MemoryPool* pool = nullptr;
    std::size_t bytes = 0;
    void operator()(T* p) const {
      if (pool)
        pool->give_back({p, bytes});
      else
        ::operator delete[](p, std::align_val_t{64});
    }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace dsalt::internal
