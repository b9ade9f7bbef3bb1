// Dense attention forward with Hopper's instructions.
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// For calls that takes_dense() takes (dense_call.cuh).
void dense_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                   const AttentionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
