// Dense attention backward with Hopper's instructions.
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// For calls that takes_dense() takes (dense_call.cuh) and that ask for a gradient of q, k or v.
bool takes_dense_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                          const AttentionGradients& gradients);

void dense_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                    const AttentionSaved& saved, const AttentionGradients& gradients);

}  // namespace dsalt::cuda::hopper
