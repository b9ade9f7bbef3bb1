// Angles of rotary positions and the rotation by them, for row_kernels.cpp alone.
//
// sin and cos in double: theta = q pi/2 + r with pi/2 in three parts (the first two have 33 bits, so that q times them
// is exact for |q| < 2^20), |r| <= pi/4, then the minimax polynomials of fdlibm, whose relative error is below 2^-57.
// A theta above 2^20 goes to the C library, element by element.
#pragma once

#include "row_kernels.hpp"
#include "row_kernels_elementwise.hpp"
#include "row_vector.hpp"

namespace dsalt::internal {
namespace {

constexpr double largest_reduced = 0x1p20;

inline void sine_cosine(Dh theta, Dh& sine, Dh& cosine) {
  const Dh magic = broadcast(0x1.8p52);
  const Dh shifted = theta * 6.36619772367581382433e-01 + magic;  // the whole number is in the low bits
  const Dh q = shifted - magic;
  const Lh quadrant = (Lh)shifted;
  const Dh r =
      ((theta - q * 1.57079632673412561417e+00) - q * 6.07710050630396597660e-11) - q * 2.02226624879595063154e-21;
  const Dh z = r * r;
  Dh s = z * 1.58969099521155010221e-10 - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = s * z * r + r;
  Dh c = z * -1.13596475577881948265e-11 + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = c * z * z - 0.5 * z + 1.0;
  const Lh odd = (quadrant & 1) != 0;
  sine = (Dh)((Lh)(odd ? c : s) ^ ((quadrant & 2) << 62));
  cosine = (Dh)((Lh)(odd ? s : c) ^ (((quadrant + 1) & 2) << 62));
}

void angles(double position, const double* frequency, double scale, double direction, float* cos, float* sin,
            std::int64_t n) {
  const Dh turn = broadcast(direction);
  for (std::int64_t t = 0; t < n; t += half_lanes) {
    const std::int64_t count = n - t < half_lanes ? n - t : half_lanes;
    Dh theta = {};
    if (count == half_lanes)
      theta = load_half(frequency + t);
    else
      for (std::int64_t k = 0; k < count; ++k) theta[k] = frequency[t + k];
    theta = theta * position / scale;
    Dh s, c;
    sine_cosine(theta, s, c);
    const Lh reducible = (theta <= largest_reduced) & (theta >= -largest_reduced);
    for (int k = 0; k < count && !all_of(reducible); ++k) {
      if (theta[k] <= largest_reduced && theta[k] >= -largest_reduced) continue;
      s[k] = __builtin_sin(theta[k]);
      c[k] = __builtin_cos(theta[k]);
    }
    const Fh sines = narrow_half(s * turn), cosines = narrow_half(c);
    if (count == half_lanes) {
      *reinterpret_cast<FhMemory*>(sin + t) = (FhMemory)sines;
      *reinterpret_cast<FhMemory*>(cos + t) = (FhMemory)cosines;
      continue;
    }
    for (std::int64_t k = 0; k < count; ++k) {
      sin[t + k] = sines[k];
      cos[t + k] = cosines[k];
    }
  }
}

void rotate(std::int64_t rows, std::int64_t half, const float* x, std::int64_t x_stride, const float* cos,
            const float* sin, std::int64_t table_stride, float* y, std::int64_t y_stride) {
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, cos += table_stride, sin += table_stride, y += y_stride)
    for_steps<lanes, 4, 2>({x, x + half, cos, sin}, {y, y + half}, half, [](auto& in, auto& out) {
      const F a = load(in[0]), b = load(in[1]), c = load(in[2]), s = load(in[3]);
      store(out[0], a * c - b * s);
      store(out[1], b * c + a * s);
    });
}

}  // namespace
}  // namespace dsalt::internal
