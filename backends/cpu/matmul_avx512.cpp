// matmul.hpp with 64-byte vectors and 32 registers; compiled for AVX-512F.
#include "matmul_kernels.hpp"

namespace dsalt::internal {

const Matmul matmul_avx512 = {"avx512", Tiles<float, 64>::dot<4, 4>, Tiles<double, 64>::dot<4, 4>,
                              Tiles<float, 64>::accumulate<6, 4>};

}  // namespace dsalt::internal
