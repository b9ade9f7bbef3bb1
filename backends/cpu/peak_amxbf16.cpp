// peak.hpp for tdpbf16ps: 16 x 16 float32 sums each add 32 products of bfloat16 numbers. Compiled for AMX.
#include <immintrin.h>

#include "peak_kernels.hpp"

namespace dsalt::internal {
namespace {

constexpr int unroll = 8;

/// All eight registers whole.
struct alignas(64) Configuration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr Configuration whole;

float run_amx(std::int64_t rounds, float factor, float term) {
  _tile_loadconfig(&whole);
  const auto high_half = [](float x) { return __builtin_bit_cast(std::uint32_t, x) & 0xffff0000; };
  alignas(64) std::uint32_t left[16 * 16], right[16 * 16];
  for (std::uint32_t& pair : left) pair = high_half(factor);
  for (std::uint32_t& pair : right) pair = high_half(term) | high_half(-term) >> 16;
  asm volatile("" : : "r"(left), "r"(right) : "memory");  // loads of tiles are not seen to read them
  _tile_loadd(4, left, 64);
  _tile_loadd(5, left, 64);
  _tile_loadd(6, right, 64);
  _tile_loadd(7, right, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (int step = 0; step < unroll; ++step) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[4][16 * 16];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  _tile_release();
  float result = 0;
  for (const auto& sum : sums) result += sum[0];
  return result;
}

}  // namespace

const PeakKernel peak_amxbf16 = {run_amx, 2.0 * 16 * 16 * 32 * 4 * unroll};

}  // namespace dsalt::internal
