// The kernel table of one instruction set: compiled once per set with its own flags (CMakeLists.txt), which define
// DSALT_KERNELS (the table's name) and DSALT_LANES (float32 lanes per vector).
#include "kernels.hpp"

#include "kernels_convert.hpp"
#include "kernels_matrix.hpp"
#include "kernels_softmax.hpp"

namespace dsalt::internal {

const Kernels DSALT_KERNELS = {
#if DSALT_LANES == 16
    .name = "AVX-512",
#elif DSALT_LANES == 8
    .name = "AVX2",
#else
    .name = "scalar",
#endif
    .scores = scores,
    .accumulate = accumulate,
    .transpose = transpose,
    .mask_lanes = mask_lanes,
    .mask_rows = mask_rows,
    .mask_landmarks = mask_landmarks,
    .softmax = softmax,
    .probabilities_lanes = probabilities_lanes,
    .probabilities_rows = probabilities_rows,
    .score_gradients_lanes = score_gradients_lanes,
    .score_gradients_rows = score_gradients_rows,
    .row_sums = row_sums,
    .exp = exp_array,
    .soft_edge = soft_edge,
    .multiply = multiply,
    .widen_bf16 = widen_bf16,
    .widen_f16 = widen_f16,
    .narrow_bf16 = narrow_bf16,
    .narrow_f16 = narrow_f16,
    .scaled = scaled,
    .finish = finish,
};

}  // namespace dsalt::internal
