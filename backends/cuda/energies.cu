// nx = ||x_bj||, nv = ||v_bgj|| over the last dimension:  dx = dnx x / ||x||, 0 where the norm is 0; dv alike.
// docs/semantics.md, "Token energies".
//
// A row belongs to a group of 1 to 32 lanes, each of which takes vectors of 16 bytes; both tensors go in one launch.
// Squares are added in float (double for double) when the sum is far from both ends of its range. Other rows, zeros
// among them, are scaled by a power of two, which rounds nothing, and summed again: they neither overflow nor vanish.
#include <cmath>

#include "cuda_backend.hpp"
#include "elements.cuh"
#include "launch.cuh"
#include "vectors.cuh"

namespace dsalt::cuda {
namespace {

constexpr int threads = 256;

template <class T>
using RowVector = Vector<T, vector_length<T>>;

/// The rows of x or v with their norms (or what arrives at these) and, backward, their gradients. Leading dimensions
/// are filled up with ones.
template <class T>
struct Rows {
  View<T, 4> values, gradients;
  View<accumulator_t<T>, 3> norms;
  std::int64_t count = 0;
  std::int64_t blocks = 0;
  int lanes = 32;              // per row: a power of two
  bool whole_vectors = false;  // every row consists of aligned vectors

  struct Row {
    const T* values;
    T* gradients;
    accumulator_t<T>* norm;
  };
  /// Divides in 32 bits where that is enough: in 64 it takes longer than a short row.
  __device__ Row row(std::int64_t n) const {
    return count >> 32 == 0 ? row_by<std::uint32_t>(static_cast<std::uint32_t>(n)) : row_by<std::int64_t>(n);
  }

 private:
  template <class Index>
  __device__ Row row_by(Index n) const {
    const auto length = static_cast<Index>(values.shape[2]), middle = static_cast<Index>(values.shape[1]);
    const Index outer = n / length, k = n - outer * length, i = outer / middle, j = outer - i * middle;
    return {values.at(i, j, k), gradients.present() ? gradients.at(i, j, k) : nullptr,
            norms.present() ? norms.at(i, j, k) : nullptr};
  }
};

/// Vector number n of a row, which has such a vector; zeros past the row's end.
template <class T>
__device__ RowVector<T> load(const Rows<T>& rows, const T* row, std::int64_t n) {
  if (rows.whole_vectors) return load_vector<vector_length<T>>(row + n * vector_length<T>);
  return load_part<vector_length<T>, false>(row, rows.values.strides[3], n * vector_length<T>, rows.values.shape[3]);
}

template <class T>
__device__ void store(const Rows<T>& rows, const accumulator_t<T> (&values)[vector_length<T>], T* row, std::int64_t n) {
  if (rows.whole_vectors) return store_vector<vector_length<T>>(values, row + n * vector_length<T>);
  store_part<vector_length<T>, false>(values, row, rows.gradients.strides[3], n * vector_length<T>,
                                      rows.values.shape[3]);
}

/// A row as the lanes of its group hold it: the first `kept` vectors of each stay in registers, more are read again.
template <class T, int kept>
class HeldRow {
 public:
  __device__ HeldRow(const Rows<T>& rows, const T* row, int lane)
      : rows_(rows), row_(row), lane_(lane), vectors_(ceil_div(rows.values.shape[3], vector_length<T>)) {
#pragma unroll
    for (int i = 0; i < kept; ++i)
      if (lane + i * rows.lanes < vectors_) held_[i] = load(rows, row, lane + i * rows.lanes);
  }

  /// visit(number, vector) for this lane's vectors.
  template <class Visit>
  __device__ void visit(Visit&& visit) const {
#pragma unroll
    for (int i = 0; i < kept; ++i)
      if (lane_ + i * rows_.lanes < vectors_) visit(lane_ + i * rows_.lanes, held_[i]);
#pragma unroll 4
    for (std::int64_t n = lane_ + kept * rows_.lanes; n < vectors_; n += rows_.lanes) visit(n, load(rows_, row_, n));
  }

  /// The norm of the row, for every lane of the group. All lanes of the warp call it.
  __device__ double norm() const {
    using Real = accumulator_t<T>;
    constexpr Real low = sizeof(Real) == 8 ? Real(0x1p-900) : Real(0x1p-80);
    constexpr Real high = sizeof(Real) == 8 ? Real(0x1p1000) : Real(0x1p120);
    const Real squares = group_sum(sum_of_squares(Real{1}, Real{1}));
    const bool in_range = squares >= low && squares <= high;
    if (__all_sync(0xffffffffu, in_range)) return sqrt(static_cast<double>(squares));

    Real largest = 0;
    visit([&](std::int64_t, const RowVector<T>& vector) {
      for (const T& element : vector.element) largest = fmax(largest, fabs(widen(element)));
    });
    for (int step = rows_.lanes / 2; step > 0; step /= 2)
      largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const int exponent = largest > 0 && std::isfinite(largest) ? ilogb(largest) : 0;
    // In two factors: the power of two that scales the smallest subnormal is no number of the type.
    const int half = exponent / 2;
    const Real scaled = group_sum(
        sum_of_squares(static_cast<Real>(ldexp(Real{1}, -half)), static_cast<Real>(ldexp(Real{1}, half - exponent))));
    return in_range ? sqrt(static_cast<double>(squares)) : ldexp(sqrt(static_cast<double>(scaled)), exponent);
  }

 private:
  template <class Real>
  __device__ Real sum_of_squares(Real factor, Real second_factor) const {
    Real sum = 0;
    visit([&](std::int64_t, const RowVector<T>& vector) {
      for (const T& element : vector.element) {
        const Real scaled = widen(element) * factor * second_factor;
        sum += scaled * scaled;
      }
    });
    return sum;
  }
  template <class Real>
  __device__ Real group_sum(Real value) const {
    for (int step = rows_.lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
  }

  const Rows<T>& rows_;
  const T* row_;
  int lane_;
  std::int64_t vectors_;
  RowVector<T> held_[kept];
};

/// body(exists, row, its values, lane) for the row of each group of lanes. The lanes past the last row stay with it,
/// for the sake of the warp's shuffles, with `exists` false.
template <int kept, class T, class Body>
__device__ void for_row(const Rows<T>& rows, unsigned block, Body&& body) {
  const std::int64_t n = (static_cast<std::int64_t>(block) * threads + threadIdx.x) / rows.lanes;
  const auto row = rows.row(min(n, rows.count - 1));
  const int lane = static_cast<int>(threadIdx.x) % rows.lanes;
  body(n < rows.count, row, HeldRow<T, kept>(rows, row.values, lane), lane);
}

template <class T>
__device__ void write_norms(const Rows<T>& rows, unsigned block) {
  for_row<4>(rows, block, [](bool exists, const auto& row, const auto& held, int lane) {
    const double norm = held.norm();
    if (exists && lane == 0) *row.norm = narrow<accumulator_t<T>>(norm);
  });
}

template <class T>
__device__ void write_gradients(const Rows<T>& rows, unsigned block) {
  using Real = accumulator_t<T>;
  for_row<8>(rows, block, [&rows](bool exists, const auto& row, const auto& held, int) {
    const double norm = held.norm();
    if (!exists) return;
    const bool zero = norm == 0 || row.norm == nullptr;
    const double arriving = zero ? 0 : static_cast<double>(*row.norm), factor = arriving / norm;
    // As a number of the type the factor could overflow, or lose digits, where the gradient does not.
    const bool in_range = sizeof(Real) == 4 && (factor == 0 || (fabs(factor) > 0x1p-100 && fabs(factor) < 0x1p100));
    const auto scale = static_cast<Real>(factor);
    held.visit([&](std::int64_t n, const RowVector<T>& vector) {
      Real result[vector_length<T>];
#pragma unroll
      for (int e = 0; e < vector_length<T>; ++e) {
        const Real value = widen(vector.element[e]);
        if (zero)
          result[e] = 0;
        else
          result[e] = in_range ? value * scale : static_cast<Real>(arriving * (value / norm));
      }
      store(rows, result, row.gradients, n);
    });
  });
}

template <class T>
__global__ __launch_bounds__(threads) void energies_kernel(Rows<T> x, Rows<T> v) {
  if (blockIdx.x < x.blocks)
    write_norms(x, blockIdx.x);
  else
    write_norms(v, blockIdx.x - x.blocks);
}

template <class T>
__global__ __launch_bounds__(threads) void energies_backward_kernel(Rows<T> x, Rows<T> v) {
  if (blockIdx.x < x.blocks)
    write_gradients(x, blockIdx.x);
  else
    write_gradients(v, blockIdx.x - x.blocks);
}

/// `view` with its leading dimensions filled up with ones to the given rank.
template <class T, int rank>
View<T, rank> padded_view(const TensorView& view) {
  if (!view.present()) return {};
  TensorView padded = view;
  for (; padded.rank < rank; ++padded.rank) {
    for (auto dim = static_cast<std::size_t>(padded.rank); dim > 0; --dim) {
      padded.shape[dim] = padded.shape[dim - 1];
      padded.strides[dim] = padded.strides[dim - 1];
    }
    padded.shape[0] = 1;
    padded.strides[0] = 0;
  }
  return device_view<T, rank>(padded);
}

/// No rows where `output`, which is wanted of them, is absent.
template <class T>
Rows<T> rows_of(const TensorView& values, const TensorView& norms, const TensorView& gradients,
                const TensorView& output) {
  Rows<T> rows;
  if (!output.present()) return rows;
  rows.values = padded_view<T, 4>(values);
  rows.gradients = padded_view<T, 4>(gradients);
  rows.norms = padded_view<accumulator_t<T>, 3>(norms);
  rows.whole_vectors = rows_are_packed(values, vector_length<T>) && rows_are_packed(gradients, vector_length<T>);
  rows.count = rows.values.shape[0] * rows.values.shape[1] * rows.values.shape[2];
  // Four vectors for each lane, or more: enough bytes on their way. The order of sums depends on the length alone.
  while (rows.lanes > 1 && rows.lanes * 2 * vector_length<T> >= rows.values.shape[3]) rows.lanes /= 2;
  rows.blocks = ceil_div(rows.count * rows.lanes, threads);
  return rows;
}

}  // namespace

void CudaBackend::energies_forward(const EnergyInputs& in, const Energies& energies) {
  const CurrentDevice current(context_.device);
  for_floating(in.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = rows_of<T>(in.x, energies.nx, {}, energies.nx), v = rows_of<T>(in.v, energies.nv, {}, energies.nv);
    launch(context_, "energies_forward", energies_kernel<T>, x.blocks + v.blocks, dim3(threads), 0, x, v);
  });
}

void CudaBackend::energies_backward(const EnergyInputs& in, const Energies& arriving,
                                    const EnergyGradients& gradients) {
  const CurrentDevice current(context_.device);
  for_floating(in.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto x = rows_of<T>(in.x, arriving.nx, gradients.dx, gradients.dx),
               v = rows_of<T>(in.v, arriving.nv, gradients.dv, gradients.dv);
    launch(context_, "energies_backward", energies_backward_kernel<T>, x.blocks + v.blocks, dim3(threads), 0, x, v);
  });
}

}  // namespace dsalt::cuda
