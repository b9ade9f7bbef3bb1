// The row and panel kernels that belong to a backend's instruction set; none of them uses AMX.
#include "kernels.hpp"
#include "panel_kernels.hpp"
#include "row_kernels.hpp"

namespace dsalt::internal {

const RowKernels& row_kernels_for([[maybe_unused]] const Kernels& kernels) {
#if defined(__x86_64__)
  if (&kernels == &kernels_amxbf16 || &kernels == &kernels_avx512bf16) return row_kernels_avx512bf16;
  if (&kernels == &kernels_avx512) return row_kernels_avx512;
  if (&kernels == &kernels_avx2) return row_kernels_avx2;
#endif
  return row_kernels_scalar;
}

const PanelKernels& panel_kernels_for([[maybe_unused]] const Kernels& kernels) {
#if defined(__x86_64__)
  if (&kernels == &kernels_amxbf16 || &kernels == &kernels_avx512bf16) return panel_kernels_avx512bf16;
  if (&kernels == &kernels_avx512) return panel_kernels_avx512;
  if (&kernels == &kernels_avx2) return panel_kernels_avx2;
#endif
  return panel_kernels_scalar;
}

}  // namespace dsalt::internal
