// Element-by-element kernels, for row_kernels.cpp alone. The last, shorter vector of a row goes through buffers, so
// that an element's bits do not depend on its place.
#pragma once

#include "row_kernels.hpp"
#include "row_vector.hpp"

namespace dsalt::internal {
namespace {

/// body(in + i ..., out + i ...) for steps of `step` elements; pointers to the inputs come first.
template <int step, int inputs, int outputs, class Body>
inline void for_steps(const float* const (&in)[inputs], float* const (&out)[outputs], std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + step <= n; i += step) {
    const float* from[inputs];
    float* to[outputs];
#pragma GCC unroll 8
    for (int a = 0; a < inputs; ++a) from[a] = in[a] + i;
#pragma GCC unroll 8
    for (int a = 0; a < outputs; ++a) to[a] = out[a] + i;
    body(from, to);
  }
  if (i == n) return;
  float tail[inputs][step] = {}, results[outputs][step];
  const float* from[inputs];
  float* to[outputs];
  for (int a = 0; a < inputs; ++a) {
    for (std::int64_t k = i; k < n; ++k) tail[a][k - i] = in[a][k];
    from[a] = tail[a];
  }
  for (int a = 0; a < outputs; ++a) to[a] = results[a];
  body(from, to);
  for (int a = 0; a < outputs; ++a)
    for (std::int64_t k = i; k < n; ++k) out[a][k] = results[a][k - i];
}

void widen_bf16_row(const std::uint16_t* x, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
#if defined(__AVX512F__) && DSALT_LANES == 16
    const U bits = (U)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)));
#elif defined(__AVX2__) && DSALT_LANES == 8
    const U bits = (U)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
#else
    const U bits = __builtin_convertvector((H) * reinterpret_cast<const HMemory*>(x + i), U);
#endif
    store(y + i, (F)(bits << 16));
  }
  for (; i < n; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(x[i]) << 16;
    __builtin_memcpy(y + i, &bits, sizeof bits);
  }
}

void scaled(const float* x, double scale, float* y, std::int64_t n) {
  for_steps<half_lanes, 1, 1>({x}, {y}, n, [=](auto& in, auto& out) { store_half(out[0], load_half(in[0]) * scale); });
}

void mix(const float* a, const float* b, double wa, double wb, double scale, float* y, std::int64_t n) {
  for_steps<half_lanes, 2, 1>({a, b}, {y}, n, [=](auto& in, auto& out) {
    store_half(out[0], multiply_add(load_half(in[0]), broadcast(wa), load_half(in[1]) * wb) * scale);
  });
}

void rmsnorm(const float* x, const float* gamma, double r, float* y, std::int64_t n) {
  for_steps<half_lanes, 2, 1>(
      {x, gamma}, {y}, n, [=](auto& in, auto& out) { store_half(out[0], load_half(in[0]) * r * load_half(in[1])); });
}

template <bool wants_dx, bool wants_sum>
inline void rmsnorm_gradients_of(const float* x, const float* dy, const float* gamma, double r, double along, float* dx,
                                 double* sum, std::int64_t n) {
  const auto step = [=](const float* x_at, const float* dy_at, const float* gamma_at, float* dx_at, double* sum_at) {
    const Dh v = load_half(x_at), g = load_half(dy_at);
    if (wants_dx) store_half(dx_at, multiply_add(g * load_half(gamma_at), broadcast(r), v * -along));
    if (wants_sum) store_half(sum_at, multiply_add(g, v * r, load_half(sum_at)));
  };
  std::int64_t i = 0;
  for (; i + half_lanes <= n; i += half_lanes)
    step(x + i, dy + i, gamma + i, wants_dx ? dx + i : nullptr, wants_sum ? sum + i : nullptr);
  if (i == n) return;
  float x_tail[half_lanes] = {}, dy_tail[half_lanes] = {}, gamma_tail[half_lanes] = {}, dx_tail[half_lanes];
  double sum_tail[half_lanes] = {};
  for (std::int64_t k = i; k < n; ++k) {
    x_tail[k - i] = x[k];
    dy_tail[k - i] = dy[k];
    gamma_tail[k - i] = gamma[k];
    if (wants_sum) sum_tail[k - i] = sum[k];
  }
  step(x_tail, dy_tail, gamma_tail, dx_tail, sum_tail);
  for (std::int64_t k = i; k < n; ++k) {
    if (wants_dx) dx[k] = dx_tail[k - i];
    if (wants_sum) sum[k] = sum_tail[k - i];
  }
}

void rmsnorm_gradients(const float* x, const float* dy, const float* gamma, double r, double along, float* dx,
                       double* sum, std::int64_t n) {
  if (dx && sum)
    rmsnorm_gradients_of<true, true>(x, dy, gamma, r, along, dx, sum, n);
  else if (dx)
    rmsnorm_gradients_of<true, false>(x, dy, gamma, r, along, dx, sum, n);
  else if (sum)
    rmsnorm_gradients_of<false, true>(x, dy, gamma, r, along, dx, sum, n);
}

/// sigma(x) = 1 / (1 + exp(-x)) and its complement sigma(-x), neither of which cancels, at either end. Below exp(-700)
/// they stay there, which no product with float32 numbers can bring back above 0.
struct Sigmas {
  Dh value, complement;
};
/// exp(-|x|) = p 2^n.
inline Sigmas sigmas(Fh x, Fh p, Fh n) {
  const Dh exponential = times_power(widen_half(p), n);
  const Dh larger = 1.0 / (1.0 + exponential), smaller = exponential * larger;
  const Lh positive = widen_half(x) >= Dh{};
  return {positive ? larger : smaller, positive ? smaller : larger};
}

struct SigmaPair {
  Sigmas low, high;
};
inline SigmaPair sigmas(F x) {
  const F size = (F)((U)x | 0x80000000u);  // -|x|
  const F clamped = size < -700.0f ? broadcast(-700.0f) : size;
  const F magic = broadcast(0x1.8p23f);
  const F n = (clamped * 0x1.715476p+0f + magic) - magic;
  F r = multiply_add(n, broadcast(-0x1.62e4p-1f), clamped);  // 15 bits of ln 2: n times it is exact
  r = multiply_add(n, broadcast(-0x1.7f7d1cp-20f), r);
  F p = multiply_add(broadcast(0x1.a01a02p-13f), r, broadcast(0x1.6c16c2p-10f));  // exp(r) to r^7
  p = multiply_add(p, r, broadcast(0x1.111112p-7f));
  p = multiply_add(p, r, broadcast(0x1.555556p-5f));
  p = multiply_add(p, r, broadcast(0x1.555556p-3f));
  p = multiply_add(p, r, broadcast(0.5f));
  p = multiply_add(p * r, r, r) + 1.0f;
  return {sigmas(low_half(x), low_half(p), low_half(n)), sigmas(high_half(x), high_half(p), high_half(n))};
}

void swiglu(const float* gate, const float* up, float* y, std::int64_t n) {
  for_steps<lanes, 2, 1>({gate, up}, {y}, n, [](auto& in, auto& out) {
    const SigmaPair s = sigmas(load(in[0]));
    const Fh low = narrow_half(load_half(in[0]) * s.low.value * load_half(in[1]));
    const Fh high = narrow_half(load_half(in[0] + half_lanes) * s.high.value * load_half(in[1] + half_lanes));
    store(out[0], join(low, high));
  });
}

void swiglu_gradients(const float* gate, const float* up, const float* dy, float* dgate, float* dup, std::int64_t n) {
  for_steps<lanes, 3, 2>({gate, up, dy}, {dgate, dup}, n, [](auto& in, auto& out) {
    const SigmaPair s = sigmas(load(in[0]));
    Fh gates[2], ups[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Sigmas& sigma = half ? s.high : s.low;
      const Dh g = load_half(in[0] + half * half_lanes), u = load_half(in[1] + half * half_lanes);
      const Dh d = load_half(in[2] + half * half_lanes);
      gates[half] = narrow_half(multiply_add(g, sigma.complement, broadcast(1.0)) * sigma.value * d * u);
      ups[half] = narrow_half(g * sigma.value * d);
    }
    store(out[0], join(gates[0], gates[1]));
    store(out[1], join(ups[0], ups[1]));
  });
}

void adamw(const AdamWStep& step, const float* param, const float* grad, const float* m, const float* v,
           float* new_param, float* new_m, float* new_v, std::int64_t n) {
  const double beta1 = step.beta1, rest1 = 1 - beta1, beta2 = step.beta2, rest2 = 1 - beta2;
  for_steps<half_lanes, 4, 3>({param, grad, m, v}, {new_param, new_m, new_v}, n, [=](auto& in, auto& out) {
    const Dh g = load_half(in[1]);
    const Dh mean = multiply_add(load_half(in[2]), broadcast(beta1), g * rest1);
    const Dh square = multiply_add(load_half(in[3]), broadcast(beta2), (g * g) * rest2);
    const Dh denominator = square_root(square * step.inverse_correction2) + step.eps;
    const Dh updated = multiply_add(load_half(in[0]), broadcast(step.decay), mean * -step.rate / denominator);
    store_half(out[0], updated);
    store_half(out[1], mean);
    store_half(out[2], square);
  });
}

}  // namespace
}  // namespace dsalt::internal
