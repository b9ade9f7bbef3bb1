// Sparse attention, forward, with landmark lists that few queries read: docs/semantics.md, "Attention".
#pragma once

#include "../context.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::cuda::hopper {

/// Whether list_forward() is for this call.
bool takes_list_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs);

void list_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                  const AttentionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
