// Elementwise kernels on contiguous rows, for kernels.cpp alone: exp, the soft edge, and conversions. The last, shorter
// vector of a row goes through a buffer, so that an element's bits do not depend on its place.
#pragma once

#include "kernels.hpp"
#include "vector.hpp"

namespace dsalt::internal {
namespace {

/// y[n] = body(x[n]) by vectors; X and Y are element types, V and W their vectors. (Copies rather than casts: compilers
/// drop the alignment of a vector type that is a template argument.)
template <class V, class W, class X, class Y, class Body>
inline void map(const X* x, Y* y, std::int64_t count, Body body) {
  std::int64_t n = 0;
  const auto apply = [&](const X* from, Y* to) {
    V v;
    __builtin_memcpy(&v, from, sizeof v);
    const W w = (W)body(v);
    __builtin_memcpy(to, &w, sizeof w);
  };
  for (; n + lanes <= count; n += lanes) apply(x + n, y + n);
  if (n == count) return;
  X in[lanes] = {};
  Y out[lanes];
  for (std::int64_t k = n; k < count; ++k) in[k - n] = x[k];
  apply(in, out);
  for (std::int64_t k = n; k < count; ++k) y[k] = out[k - n];
}

double dot(const float* x, const float* y, std::int64_t n) {
  D sum = {};
  std::int64_t k = 0;
  for (; k + lanes <= n; k += lanes)
    sum += __builtin_convertvector(load(x + k), D) * __builtin_convertvector(load(y + k), D);
  double total = 0;
  for (; k < n; ++k) total += static_cast<double>(x[k]) * static_cast<double>(y[k]);
  for (int lane = 0; lane < lanes; ++lane) total += sum[lane];
  return total;
}

void exp_array(const float* x, float* y, std::int64_t n) {
  map<F, F>(x, y, n, [](F v) { return exponential(v); });
}

void soft_edge(const float* z, float* bias, float* slope, std::int64_t n) {
  map<F, F>(z, bias, n, [](F v) { return -log_one_plus(exponential(-v)); });
  map<F, F>(z, slope, n, [](F v) {
    const F x = exponential(-v);
    return x / (1.0f + x);
  });
}

void multiply(float* s, const float* keep, int count, int lane_begin, int lane_end) {
  for (int r = 0; r < count; ++r)
    for (int lane = lane_begin; lane < lane_end; lane += lanes)
      store(s + r * tile + lane, load(s + r * tile + lane) * load(keep + r * tile + lane));
}

void scale_row(float* row, float factor, std::int64_t n) {
  for (std::int64_t k = 0; k < n; k += lanes) store(row + k, load(row + k) * factor);
}

void widen_bf16(const std::uint16_t* x, float* y, std::int64_t n) {
  map<H, F>(x, y, n, [](H v) { return (F)(__builtin_convertvector((H)v, U) << 16); });
}

void widen_f16(const std::uint16_t* x, float* y, std::int64_t n) {
  map<H, F>(x, y, n, [](H v) {
    const U bits = __builtin_convertvector((H)v, U);
    const U sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    const U finite = (U)((F)magnitude * 0x1p112f);  // moves the exponent; exact, subnormals included
    return (F)(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
  });
}

void narrow_bf16(const float* x, std::uint16_t* y, std::int64_t n) {
  map<F, H>(x, y, n, [](F v) {
    const U bits = (U)v;
    const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const U quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, H);
  });
}

void narrow_f16(const float* x, std::uint16_t* y, std::int64_t n) {
  map<F, H>(x, y, n, [](F v) {
    const U bits = (U)v;
    const U sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    const U normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    // below 2^-14: adding 1/2 leaves multiples of 2^-24, rounded to nearest even, in the low bits
    const U subnormal = (U)((F)magnitude + 0.5f) - 0x3f000000u;
    const U nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    U half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? U{} + 0x7c00u : half;  // 65520 and above
    half = magnitude > 0x7f800000u ? nan : half;
    return __builtin_convertvector(sign | half, H);
  });
}

void scaled(const float* x, double scale, float* y, std::int64_t n) {
  const auto exact = static_cast<float>(scale);
  if (static_cast<double>(exact) == scale) {  // the same bits: the product of two floats is exact in double
    map<F, F>(x, y, n, [exact](F v) { return v * exact; });
    return;
  }
  map<F, F>(x, y, n, [scale](F v) { return __builtin_convertvector(__builtin_convertvector((F)v, D) * scale, F); });
}

}  // namespace
}  // namespace dsalt::internal
