// matmul.hpp with 32-byte vectors and 16 registers; compiled for AVX2 and FMA.
#include "matmul_kernels.hpp"

namespace dsalt::internal {

const Matmul matmul_avx2 = {"avx2", Tiles<float, 32>::dot<3, 4>, Tiles<double, 32>::dot<3, 4>,
                            Tiles<float, 32>::accumulate<6, 2>};

}  // namespace dsalt::internal
