// What the emulated driver writes in a CUtensorMap.
#pragma once

#include <cstdint>

#include <cuda.h>

namespace emulator {

struct TensorMap {
  static constexpr std::uint32_t expected_magic = 0x6d61706d;
  std::uint32_t magic, rank, element_bytes;
  const unsigned char* address;
  std::uint64_t sizes[5], strides[5];  // of elements; bytes, [0] of an element
  std::uint32_t box[5];
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

}  // namespace emulator
