// Landmark lists made ready for kernels that take them entry by entry: docs/semantics.md, "The admitted set".
#pragma once

#include <optional>

#include "../attention_call.cuh"

namespace dsalt::cuda::hopper {

/// Of each list the valid indices, each once with the lowest slot that holds it, in the order of these slots (lists of
/// more than 4096 slots: ascending). In `index` the rest of a shorter list is no_key: its length need not be known
/// first.
class UniqueLists {
 public:
  UniqueLists(const Context& context, const char* operation, const AttentionInputs& inputs);
  CleanLists prepare(const AttentionProblem& problem, const AttentionInputs& inputs);

 private:
  const Context& context_;
  const char* operation_;
  std::int64_t lists_, slots_;
  Scratch<std::int32_t> index_, slot_, count_;
  std::optional<LandmarkLists> sorted_;
};

}  // namespace dsalt::cuda::hopper
