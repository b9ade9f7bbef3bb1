// Landmark selection, forward, of causal lists of sequences that a block holds at a time: docs/semantics.md, "Landmark
// selection".
#pragma once

#include "../context.hpp"
#include "../select_landmarks.cuh"

namespace dsalt::cuda::hopper {

/// Whether select_prefix_lists() is for this call, whose energies are float32.
bool takes_prefix_lists(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout);

void select_prefix_lists(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout,
                         const SelectionInputs& inputs, const SelectionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
