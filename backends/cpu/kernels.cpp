// The kernel table of one instruction set: compiled once per set with its own flags (CMakeLists.txt), which define
// DSALT_KERNELS (the table's name) and DSALT_LANES (float32 lanes per vector).
#include "kernels.hpp"

#include "kernels_amx.hpp"
#include "kernels_bf16.hpp"
#include "kernels_convert.hpp"
#include "kernels_dropout.hpp"
#include "kernels_matrix.hpp"
#include "kernels_rows.hpp"
#include "kernels_rows_bf16.hpp"
#include "kernels_softmax.hpp"

namespace dsalt::internal {

const Kernels DSALT_KERNELS = {
#if defined(__AMX_BF16__)
    .name = "AMX-BF16",
#elif defined(__AVX512BF16__)
    .name = "AVX-512-BF16",
#elif DSALT_LANES == 16
    .name = "AVX-512",
#elif DSALT_LANES == 8
    .name = "AVX2",
#else
    .name = "scalar",
#endif
    .scores = scores,
    .row_scores = row_scores,
    .accumulate = accumulate,
    .row_accumulate = row_accumulate,
    .accumulate_compensated = accumulate_compensated,
    .fold = fold,
    .transpose = transpose,
#if defined(__AMX_BF16__)
    .group_pairs = group_pairs,
    .enter = enter,
    .leave = leave,
#else
    .group_pairs = 1,
    .enter = nullptr,
    .leave = nullptr,
#endif
#if defined(__AVX512BF16__)
    .scores_pairs = scores_pairs,
    .row_scores_pairs = row_scores_pairs,
    .accumulate_pairs = accumulate_pairs,
    .accumulate_pairs_compensated = accumulate_pairs_compensated,
    .softmax_pairs = softmax_pairs,
    .row_softmax_pairs = row_softmax_pairs,
    .row_accumulate_pairs = row_accumulate_pairs,
    .pair_rows = pair_rows,
    .pair_lanes = pair_lanes,
    .interleave = interleave,
    .exceptional_row = exceptional_row,
#else
    .scores_pairs = nullptr,
    .row_scores_pairs = nullptr,
    .accumulate_pairs = nullptr,
    .accumulate_pairs_compensated = nullptr,
    .softmax_pairs = nullptr,
    .row_softmax_pairs = nullptr,
    .row_accumulate_pairs = nullptr,
    .pair_rows = nullptr,
    .pair_lanes = nullptr,
    .interleave = nullptr,
    .exceptional_row = nullptr,
#endif
    .mask_lanes = mask_lanes,
    .mask_landmarks = mask_landmarks,
    .softmax = softmax,
    .row_softmax = row_softmax,
    .probabilities = probabilities,
    .score_gradients = score_gradients,
    .row_sums = row_sums,
    .dot = dot,
    .exp = exp_array,
    .soft_edge = soft_edge,
    .dropout_keys = dropout_keys,
    .dropout_landmarks = dropout_landmarks,
    .multiply = multiply,
    .scale_row = scale_row,
    .widen_bf16 = widen_bf16,
    .widen_f16 = widen_f16,
    .narrow_bf16 = narrow_bf16,
    .narrow_f16 = narrow_f16,
    .scaled = scaled,
    .finish = finish,
};

}  // namespace dsalt::internal
