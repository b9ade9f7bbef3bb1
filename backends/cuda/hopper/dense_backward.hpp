// Dense attention backward with Hopper's instructions.
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// See takes_dense (dense_call.cuh); all three gradients are asked for, and they, out and dout lie in 16-byte pieces.
bool takes_dense_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                          const AttentionSaved& saved, const AttentionGradients& gradients);

void dense_backward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                    const AttentionSaved& saved, const AttentionGradients& gradients);

}  // namespace dsalt::cuda::hopper
