// Vectors of consecutive elements, moved in accesses of up to 16 bytes where a layout allows it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "elements.cuh"

namespace dsalt::cuda {

template <class T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Vector {
  T element[n];
};

/// Elements of a 16-byte access.
template <class T>
inline constexpr int vector_length = 16 / static_cast<int>(sizeof(T));

/// The words that a vector is moved in. Left to itself the compiler splits vectors of 16-bit elements here and there.
template <class T, int n>
struct Words {
  static constexpr std::size_t bytes = sizeof(T) * n;
  using Word = std::conditional_t<bytes % 16 == 0, uint4, std::conditional_t<bytes == 8, uint2, T>>;
  Word word[bytes / sizeof(Word)];
};

template <int n, class T>
__device__ inline Vector<T, n> load_vector(const T* from) {
  Words<T, n> words;
  int next = 0;
  for (auto& word : words.word) word = reinterpret_cast<const typename Words<T, n>::Word*>(from)[next++];
  return std::bit_cast<Vector<T, n>>(words);
}

/// A vector of 16 bytes that is read once, or zeros (no branch, so that many loads are under way at a time). It is the
/// first to leave the cache, like what store_streamed() leaves there: with different ranks, reads and writes of tensors
/// larger than the cache are slower.
template <int n, class T>
__device__ inline Words<T, n> load_streamed(const T* from, bool some) {
  static_assert(sizeof(Words<T, n>) == 16);
#ifdef DSALT_EMULATED
  return some ? std::bit_cast<Words<T, n>>(load_vector<n>(from)) : Words<T, n>{};
#else
  uint4 word{};
  asm volatile(
      "{.reg .pred some; setp.ne.u32 some, %5, 0;\n"
      "@some ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
      : "l"(__cvta_generic_to_global(from)), "r"(static_cast<std::uint32_t>(some)));
  return {word};
#endif
}

template <int n, class T, class Real>
__device__ inline void widen_vector(const Vector<T, n>& from, Real (&to)[n]) {
#pragma unroll
  for (int e = 0; e < n; ++e) to[e] = widen(from.element[e]);
}

template <class Word>
__device__ inline void store_word(Word* to, const Word& word) {
  *to = word;
}
#ifndef DSALT_EMULATED
/// By name, since the compiler takes such stores apart and does not always find the pieces again. It may move other
/// accesses across: nothing that a kernel stores this way is read again by the same kernel.
__device__ inline void store_word(uint4* to, const uint4& word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y),
               "r"(word.z), "r"(word.w));
}
#endif

/// Two elements, rounded once each, in memory order.
template <class T>
__device__ inline std::uint32_t narrow_pair(float first, float second) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(first, second);
    std::memcpy(&pair, &rounded, sizeof pair);
  } else {
    const __half2 rounded = __floats2half2_rn(first, second);
    std::memcpy(&pair, &rounded, sizeof pair);
  }
  return pair;
}

/// Takes bfloat16 from where it lies in the words: elements of a Vector of it that is kept get a register each.
template <class T, int n, class Real>
__device__ inline void widen_words(const Words<T, n>& from, Real (&to)[n]) {
  if constexpr (std::is_same_v<T, bf16>) {
    const auto pairs = std::bit_cast<Vector<std::uint32_t, n / 2>>(from);
#pragma unroll
    for (int pair = 0; pair < n / 2; ++pair) {
      to[2 * pair] = std::bit_cast<float>(pairs.element[pair] << 16);
      to[2 * pair + 1] = std::bit_cast<float>(pairs.element[pair] & 0xffff0000u);
    }
  } else {
    widen_vector(std::bit_cast<Vector<T, n>>(from), to);
  }
}

/// Rounded once each.
template <class T, int n, class Real>
__device__ inline Words<T, n> narrow_vector(const Real (&from)[n]) {
  if constexpr (is_16_bit<T> && n % 2 == 0) {
    Vector<std::uint32_t, n / 2> pairs;
#pragma unroll
    for (int pair = 0; pair < n / 2; ++pair) pairs.element[pair] = narrow_pair<T>(from[2 * pair], from[2 * pair + 1]);
    return std::bit_cast<Words<T, n>>(pairs);
  } else {
    Vector<T, n> rounded;
#pragma unroll
    for (int e = 0; e < n; ++e) rounded.element[e] = narrow<T>(from[e]);
    return std::bit_cast<Words<T, n>>(rounded);
  }
}

/// To global memory.
template <int n, class T, class Real>
__device__ inline void store_vector(const Real (&from)[n], T* to) {
  const auto words = narrow_vector<T>(from);
  int next = 0;
  for (const auto& word : words.word) store_word(reinterpret_cast<typename Words<T, n>::Word*>(to) + next++, word);
}

/// The same of 16 bytes that are the first to leave the cache: for tensors that it would not hold anyway.
template <int n, class T, class Real>
__device__ inline void store_streamed(const Real (&from)[n], T* to) {
  static_assert(sizeof(Words<T, n>) == 16);
#ifdef DSALT_EMULATED
  store_vector<n>(from, to);
#else
  const uint4 word = narrow_vector<T>(from).word[0];
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x),
               "r"(word.y), "r"(word.z), "r"(word.w));
#endif
}

/// The last dimension of a tensor, seen from the start of a row.
template <class T>
struct Row {
  T* data = nullptr;
  std::int64_t step = 1;  // stride of the last dimension
};

template <class T>
Row<T> row_of(const TensorView& view) {
  if (!view.present()) return {};
  return {static_cast<T*>(view.data), view.strides[static_cast<std::size_t>(view.rank - 1)]};
}

/// Elements first .. first+n-1 of a row of `length`; what lies beyond its end is 0. `packed`: in one access.
template <int n, bool packed, class T>
__device__ inline Vector<T, n> load_part(const T* row, std::int64_t step, std::int64_t first, std::int64_t length) {
  if constexpr (packed) {
    if (first < length) return load_vector<n>(row + first);
    return {};
  } else {
    Vector<T, n> part{};
#pragma unroll
    for (int e = 0; e < n; ++e)
      if (first + e < length) part.element[e] = row[(first + e) * step];
    return part;
  }
}

template <int n, bool packed, class T, class Real>
__device__ inline void store_part(const Real (&from)[n], T* row, std::int64_t step, std::int64_t first,
                                  std::int64_t length) {
  if constexpr (packed) {
    if (first < length) store_vector<n>(from, row + first);
  } else {
#pragma unroll
    for (int e = 0; e < n; ++e)
      if (first + e < length) row[(first + e) * step] = narrow<T>(from[e]);
  }
}

/// Whether vectors of `n` elements can start at the views' first elements.
template <class... Views>
bool aligned(int n, const Views&... views) {
  const auto fits = [n](const TensorView& view) {
    const std::size_t access = std::min<std::size_t>(static_cast<std::size_t>(n) * size_of(view.dtype), 16);
    return reinterpret_cast<std::uintptr_t>(view.data) % access == 0;
  };
  return (fits(views) && ...);
}

/// Whether every row along the last dimension consists of whole vectors of `n` that can be moved in one access each.
inline bool rows_are_packed(const TensorView& view, int n) {
  if (!view.present()) return true;
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.strides[last] != 1 || view.shape[last] % n != 0) return false;
  for (std::size_t dim = 0; dim < last; ++dim)
    if (view.shape[dim] > 1 && view.strides[dim] % n != 0) return false;
  return aligned(n, view);
}

}  // namespace dsalt::cuda
