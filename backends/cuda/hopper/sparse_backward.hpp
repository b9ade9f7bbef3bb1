// Gradients of sparse attention on Hopper's own instructions: docs/semantics.md, "Gradients".
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// Whether sparse_backward() is for this call; any other is for the portable kernels, and so is deterministic mode:
/// sparse_backward() adds in any order.
bool takes_sparse_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);

void sparse_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                     const AttentionSaved& saved, const AttentionGradients& gradients);

}  // namespace dsalt::cuda::hopper
