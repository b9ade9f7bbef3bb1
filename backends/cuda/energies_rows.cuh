// The rows of x or v as `energies` holds them: in the registers of the lanes that share a row.
//
// A row belongs to a group of 8 to 32 lanes, and a group has 1 to 8 rows, so that each lane has eight vectors of 16
// bytes on their way at a time. Squares are added in float (double for double) when the sum is far from both ends of
// its range. Other rows, zeros among them, are scaled by a power of two, which rounds nothing, and summed again: they
// neither overflow nor vanish.
#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

#include "elements.cuh"
#include "launch.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {

constexpr int energy_threads = 128;  // of a block
constexpr int energy_vectors = 8;    // of a thread

/// The rows of x or v with their norms (or what arrives at these) and, backward, their gradients. Leading dimensions
/// are filled up with ones.
template <class T>
struct EnergyRows {
  View<T, 4> values, gradients;
  View<accumulator_t<T>, 3> norms;
  std::int64_t count = 0, vectors = 0;  // vectors of a row
  std::int64_t blocks = 0;
  int lanes = 32;              // per row: a power of two
  int together = 1;            // rows of a group: 1, 2, 4 or 8
  bool whole_vectors = false;  // every row consists of aligned vectors

  struct Row {
    const T* values;
    T* gradients;
    accumulator_t<T>* norm;
  };
  __device__ Row row(std::int64_t n) const {
    if (values.shape[2] == count) return at(0, 0, n);
    // In 32 bits where that is enough: dividing in 64 takes longer than a short row.
    return count >> 32 == 0 ? row_by<std::uint32_t>(static_cast<std::uint32_t>(n)) : row_by<std::int64_t>(n);
  }

 private:
  template <class Index>
  __device__ Row row_by(Index n) const {
    const auto length = static_cast<Index>(values.shape[2]), middle = static_cast<Index>(values.shape[1]);
    const Index outer = n / length, k = n - outer * length, i = outer / middle, j = outer - i * middle;
    return at(i, j, k);
  }
  __device__ Row at(std::int64_t i, std::int64_t j, std::int64_t k) const {
    return {values.at(i, j, k), gradients.present() ? gradients.at(i, j, k) : nullptr,
            norms.present() ? norms.at(i, j, k) : nullptr};
  }
};

/// The sum over the lanes of a row.
template <class Real>
__device__ Real group_sum(Real value, int lanes) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (step < lanes) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

/// The norm of a row whose sum of squares may overflow or vanish, by the lanes that share it: lane m has vectors m, m +
/// `lanes`, ... All lanes of the warp call it.
template <class T>
__device__ double scaled_norm(const T* row, std::int64_t step, std::int64_t length, int lanes) {
  using Real = accumulator_t<T>;
  constexpr int n = vector_length<T>;
  const auto visit = [&](auto&& use) {
    for (std::int64_t first = static_cast<int>(threadIdx.x) % lanes * n; first < length; first += lanes * n)
      for (std::int64_t e = first; e < min(first + n, length); ++e) use(widen(row[e * step]));
  };
  Real largest = 0;
  visit([&largest](Real value) { largest = fmax(largest, fabs(value)); });
  for (int bit = lanes / 2; bit > 0; bit /= 2) largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, bit));
  const int exponent = largest > 0 && std::isfinite(largest) ? ilogb(largest) : 0;
  // In two factors: the power of two that scales the smallest subnormal is no number of the type.
  const int half = exponent / 2;
  const Real factor = static_cast<Real>(ldexp(Real{1}, -half)),
             second_factor = static_cast<Real>(ldexp(Real{1}, half - exponent));
  Real squares = 0;
  visit([&](Real value) {
    const Real scaled = value * factor * second_factor;
    squares = fma(scaled, scaled, squares);
  });
  return ldexp(sqrt(static_cast<double>(group_sum(squares, lanes))), exponent);
}

/// `together` rows of a group of lanes. The first vectors of a row are in registers, eight of all rows; the further
/// ones of a long row are read when they are visited. Lanes past the last row stay with it, for the sake of shuffles.
template <class T, int together, int further>
class HeldRows {
 public:
  using Real = accumulator_t<T>;
  static constexpr int n = vector_length<T>, per_row = energy_vectors / together;

  __device__ HeldRows(const EnergyRows<T>& rows, unsigned block)
      : rows_(rows), lane_(static_cast<int>(threadIdx.x) & (rows.lanes - 1)) {
    const int groups = 32 / rows.lanes;  // of a warp, with one row after the other
    const std::int64_t warp = (static_cast<std::int64_t>(block) * energy_threads + threadIdx.x) / 32;
    step_ = groups;
    first_ = warp * groups * together + static_cast<int>(threadIdx.x) % 32 / rows.lanes;
#pragma unroll
    for (int r = 0; r < together; ++r) from_[r] = row(r).values;
#pragma unroll
    for (int r = 0; r < together; ++r)
#pragma unroll
      for (int i = 0; i < per_row; ++i) held_[r][i] = load(r, lane_ + i * rows.lanes);
  }

  __device__ int lane() const { return lane_; }
  __device__ bool exists(int r) const { return first_ + r * step_ < rows_.count; }
  __device__ typename EnergyRows<T>::Row row(int r) const {
    return rows_.row(min(first_ + r * step_, rows_.count - 1));
  }
  /// The row that this lane takes care of: each of the group's rows has such a lane.
  __device__ int own_row() const { return lane_ & (together - 1); }

  /// visit(number, its values) for this lane's vectors of row r.
  template <class Visit>
  __device__ void visit(int r, Visit&& visit) const {
    Real values[n];
#pragma unroll
    for (int i = 0; i < per_row; ++i) {
      widen_words(held_[r][i], values);
      visit(lane_ + i * rows_.lanes, values);
    }
    if constexpr (together == 1) {
      for (std::int64_t first = lane_ + energy_vectors * rows_.lanes; first < rows_.vectors;
           first += further * rows_.lanes) {
        Words<T, n> more[further];
#pragma unroll
        for (int i = 0; i < further; ++i) more[i] = load(r, first + i * rows_.lanes);
#pragma unroll
        for (int i = 0; i < further; ++i) {
          widen_words(more[i], values);
          visit(first + i * rows_.lanes, values);
        }
      }
    }
  }

  /// The norm of the lane's own row. All lanes of the warp call it.
  __device__ double norm() const {
    constexpr Real low = sizeof(Real) == 8 ? Real(0x1p-900) : Real(0x1p-80);
    constexpr Real high = sizeof(Real) == 8 ? Real(0x1p1000) : Real(0x1p120);
    Real squares = 0;
#pragma unroll
    for (int r = 0; r < together; ++r) {
      Real sum = 0;
      visit(r, [&sum](std::int64_t, const Real(&values)[n]) {
#pragma unroll
        for (int e = 0; e < n; ++e) sum = fma(values[e], values[e], sum);
      });
      sum = group_sum(sum, rows_.lanes);
      if (r == own_row()) squares = sum;
    }
    double norm = sqrt(static_cast<double>(squares));
    const bool in_range = squares >= low && squares <= high;
    if (__all_sync(0xffffffffu, in_range)) return norm;
#pragma unroll 1
    for (int r = 0; r < together; ++r) {
      const double scaled = scaled_norm(row(r).values, rows_.values.strides[3], rows_.values.shape[3], rows_.lanes);
      if (r == own_row() && !in_range) norm = scaled;
    }
    return norm;
  }

 private:
  /// Vector number m of row r; zeros past the row's end.
  __device__ Words<T, n> load(int r, std::int64_t m) const {
    const bool some = m < rows_.vectors && exists(r);
    if (rows_.whole_vectors) return load_streamed<n>(from_[r] + m * n, some);
    return std::bit_cast<Words<T, n>>(
        load_part<n, false>(from_[r], rows_.values.strides[3], m * n, some ? rows_.values.shape[3] : 0));
  }

  const EnergyRows<T>& rows_;
  int lane_;
  std::int64_t first_, step_;
  const T* from_[together];
  Words<T, n> held_[together][per_row];
};

/// body(constant of `together`)
template <class T, class Body>
__device__ void for_layout(const EnergyRows<T>& rows, Body&& body) {
  if (rows.together == 1)
    body(std::integral_constant<int, 1>{});
  else if (rows.together == 2)
    body(std::integral_constant<int, 2>{});
  else if (rows.together == 4)
    body(std::integral_constant<int, 4>{});
  else
    body(std::integral_constant<int, 8>{});
}

}  // namespace dsalt::cuda
