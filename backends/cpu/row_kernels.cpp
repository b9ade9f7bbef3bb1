// The row kernel table of one instruction set: compiled once per set with its own flags (CMakeLists.txt), which define
// DSALT_ROW_KERNELS (the table's name) and DSALT_LANES (float32 lanes per vector).
#include "row_kernels.hpp"

#include "row_kernels_elementwise.hpp"
#include "row_kernels_sums.hpp"
#include "row_kernels_trigonometry.hpp"

namespace dsalt::internal {

const RowKernels DSALT_ROW_KERNELS = {
#if DSALT_LANES == 16
    .name = "AVX-512",
#elif DSALT_LANES == 8
    .name = "AVX2",
#else
    .name = "scalar",
#endif
    .widen_bf16 = widen_bf16_row,
    .squares = squares,
    .rmsnorm_sums = rmsnorm_sums,
    .dots = dots,
    .scaled = scaled,
    .mix = mix,
    .rmsnorm = rmsnorm,
    .rmsnorm_gradients = rmsnorm_gradients,
    .swiglu = swiglu,
    .swiglu_gradients = swiglu_gradients,
    .angles = angles,
    .rotate = rotate,
    .adamw = adamw,
    .scores = scores,
    .block_bounds = block_bounds,
    .first_above = first_above,
};

}  // namespace dsalt::internal
