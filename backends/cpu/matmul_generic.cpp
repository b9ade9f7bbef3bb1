// matmul.hpp with 16-byte vectors, for any processor.
#include "matmul_kernels.hpp"

namespace dsalt::internal {

const Matmul matmul_generic = {"generic", Tiles<float, 16>::dot<2, 4>, Tiles<double, 16>::dot<2, 4>,
                               Tiles<float, 16>::accumulate<5, 2>};

}  // namespace dsalt::internal
