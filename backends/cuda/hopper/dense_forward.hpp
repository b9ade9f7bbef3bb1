// Dense attention forward with Hopper's instructions.
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// See takes_dense (dense_call.cuh); out must be writable in 16-byte pieces.
bool takes_dense_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs);

void dense_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                   const AttentionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
