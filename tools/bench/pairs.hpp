// How many (query, key) pairs an attention call admits, and how many a backend's tiles execute for them.
//
// Tensors in host memory, padded form without k_lengths, not bidirectional.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "dsalt/attention.hpp"
#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

struct AdmittedPairs {
  std::int64_t pairs = 0;      // P: the sum of |A(i)| over sequences, query heads and queries
  std::int64_t keys_read = 0;  // keys that some query admits, summed over sequences and kv heads
};

/// Exact, in O(B H (N log K + T K log K)): windows are counted as ranges and lists by binary search.
AdmittedPairs count_admitted(const AttentionProblem& problem, const AttentionInputs& inputs);

/// Px: pairs that the cpu backend's tiles execute, by the rule in executed_pairs.cpp.
std::int64_t count_executed_cpu(const AttentionProblem& problem, const AttentionInputs& inputs);

/// What the tiling of the cuda backend's Hopper kernels depends on.
struct HopperDevice {
  int multiprocessors = 0;
  bool deterministic = false;
};
/// From a backend's description; empty where it has no Hopper kernels.
std::optional<HopperDevice> hopper_device(std::string_view description);
/// Px of these kernels, by the rule in executed_pairs_hopper.cpp; empty for calls that other kernels take
/// (portable, few queries, lists of few queries).
std::optional<std::int64_t> count_executed_hopper(const HopperDevice& device, Direction direction,
                                                  const AttentionProblem& problem, const AttentionInputs& inputs);

}  // namespace dsalt::benchmark
