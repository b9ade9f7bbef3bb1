// How long a call takes: called until a time is used up, each call timed alone.
#pragma once

#include <functional>
#include <vector>

#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

struct Timing {
  std::size_t repetitions = 0;
  double median = 0, p10 = 0, p90 = 0;  // seconds
};

/// The p-th part of the values lies below: linear between neighbours. `sorted` is not empty.
double quantile(const std::vector<double>& sorted, double p);

/// At least `least_repetitions` calls and at least `seconds` in all. Whoever calls has warmed up.
Timing time_calls(Backend& backend, const std::function<void()>& call, double seconds);

}  // namespace dsalt::benchmark
