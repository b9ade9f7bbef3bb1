// The product kernels that belong to a backend's instruction set.
#include "matmul.hpp"

#include "kernels.hpp"

namespace dsalt::internal {

const Matmul& matmul_for([[maybe_unused]] const Kernels& kernels) {
#if defined(DSALT_MATMUL_X86)
  if (&kernels == &kernels_avx512 || &kernels == &kernels_avx512bf16) return matmul_avx512;
  if (&kernels == &kernels_avx2) return matmul_avx2;
#endif
  return matmul_generic;
}

}  // namespace dsalt::internal
