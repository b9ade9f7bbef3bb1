// Landmark selection, forward, of one list for each sequence and head, by clusters of blocks: docs/semantics.md,
// "Landmark selection".
#pragma once

#include "../context.hpp"
#include "../select_landmarks.cuh"

namespace dsalt::cuda::hopper {

/// Whether select_in_clusters() is for this call, whose energies are float32.
bool takes_list_clusters(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout);

void select_in_clusters(const Context& context, const SelectionProblem& problem, const SelectionLayout& layout,
                        const SelectionInputs& inputs, const SelectionOutputs& outputs);

}  // namespace dsalt::cuda::hopper
