// out = (e1 o1 + e2 o2) / (e1 + e2),  lse = m + log(e1 + e2),  e = exp(lse_part - m),  m = max(lse1, lse2)
//                                                                                       (docs/semantics.md, "merge")
// A part with lse = -inf is the exact identity: its out is not read. Weights and sums in double, one rounding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu_backend.hpp"
#include "internal/elements.hpp"
#include "parallel.hpp"
#include "row_io.hpp"

namespace dsalt::internal {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// Offset of row `n` (row-major) over the first `rank` dimensions.
std::int64_t row_offset(const TensorView& view, int rank, std::int64_t n) {
  std::int64_t offset = 0;
  for (int dim = rank - 1; dim >= 0; --dim) {
    offset += n % view.shape[static_cast<std::size_t>(dim)] * view.strides[static_cast<std::size_t>(dim)];
    n /= view.shape[static_cast<std::size_t>(dim)];
  }
  return offset;
}

}  // namespace

void CpuBackend::merge(const MergeInputs& in, const AttentionOutputs& outputs) {
  const int rank = in.lse1.rank;
  const std::int64_t rows = in.lse1.size(), channels = in.out1.shape[static_cast<std::size_t>(rank)];
  const RowIo io(kernels_);
  const auto step = [rank](const TensorView& view) { return view.strides[static_cast<std::size_t>(rank)]; };
  const auto make_scratch = [channels] { return RowBuffers(3, channels); };
  const auto merge_row = [&](RowBuffers& scratch, std::int64_t n) {
    const double lse1 = load_double(in.lse1, row_offset(in.lse1, rank, n));
    const double lse2 = load_double(in.lse2, row_offset(in.lse2, rank, n));
    const bool empty1 = lse1 == minus_infinity, empty2 = lse2 == minus_infinity;
    const bool only1 = empty2 && std::isfinite(lse1), only2 = empty1 && std::isfinite(lse2);
    const double m = std::max(lse1, lse2);
    const double e1 = empty1 ? 0 : std::exp(lse1 - m), e2 = empty2 ? 0 : std::exp(lse2 - m);
    const std::int64_t from1 = row_offset(in.out1, rank, n), from2 = row_offset(in.out2, rank, n);
    const std::int64_t to = row_offset(outputs.out, rank, n);
    const auto part = [&](const TensorView& view, std::int64_t at, std::int64_t place) {
      return io.read(view, at, step(view), channels, scratch[place]);
    };
    float* out = io.target(outputs.out, to, step(outputs.out), channels, scratch[2]);
    if (only1)
      std::copy_n(part(in.out1, from1, 0), channels, out);
    else if (only2)
      std::copy_n(part(in.out2, from2, 1), channels, out);
    else if (empty1 && empty2)
      std::fill_n(out, channels, 0.0f);
    else  // NaN for an lse of NaN or +inf
      io.rows.mix(part(in.out1, from1, 0), part(in.out2, from2, 1), e1, e2, 1 / (e1 + e2), out, channels);
    io.write(outputs.out, to, step(outputs.out), channels, out);
    if (outputs.lse.present()) {
      const double lse = only1 || (empty1 && empty2) ? lse1 : only2 ? lse2 : m + std::log(e1 + e2);
      store_double(outputs.lse, row_offset(outputs.lse, rank, n), lse);
    }
  };
  parallel_for(threads(), rows, 64, make_scratch, merge_row);
}

}  // namespace dsalt::internal
