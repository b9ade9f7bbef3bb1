// Attention forward for few queries of each sequence, as in decoding: decode_forward.cuh.
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// Any mask: what takes_attention() (dense_call.cuh) asks, few queries, few landmarks, and an instance that is not
/// deterministic. By shapes alone, but that the pools of a paged cache must be whole aligned vectors: the
/// caller copies others, to the same bits.
bool takes_decode_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);
void decode_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
