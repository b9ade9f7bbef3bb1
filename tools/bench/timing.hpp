// How long a call takes: called until a time is used up, each call timed alone.
#pragma once

#include <cstddef>
#include <functional>

#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

struct Timing {
  std::size_t repetitions = 0;
  double median = 0, p10 = 0, p90 = 0;  // seconds
};

/// At least three calls and at least `seconds` in all. Whoever calls has warmed up.
Timing time_calls(Backend& backend, const std::function<void()>& call, double seconds);

}  // namespace dsalt::benchmark
