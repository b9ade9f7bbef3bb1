// How many (query, key) pairs an attention call admits, and how many a backend's tiles execute for them.
//
// Tensors in host memory, padded form without k_lengths, not bidirectional.
#pragma once

#include <cstdint>

#include "dsalt/attention.hpp"

namespace dsalt::benchmark {

struct AdmittedPairs {
  std::int64_t pairs = 0;      // P: the sum of |A(i)| over sequences, query heads and queries
  std::int64_t keys_read = 0;  // keys that some query admits, summed over sequences and kv heads
};

/// Exact, in O(B H (N log K + T K log K)): windows are counted as ranges and lists by binary search.
AdmittedPairs count_admitted(const AttentionProblem& problem, const AttentionInputs& inputs);

/// Px: pairs that the cpu backend's tiles execute, by the rule in executed_pairs.cpp.
std::int64_t count_executed_cpu(const AttentionProblem& problem, const AttentionInputs& inputs);

}  // namespace dsalt::benchmark
