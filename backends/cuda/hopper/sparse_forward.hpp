// Sparse attention, forward, on Hopper's own instructions: docs/semantics.md, "Attention".
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// Whether sparse_forward() is for this call; any other is for the portable kernels.
bool takes_sparse_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);

void sparse_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
