// How long a call takes: called until a time is used up. On the host each call is timed alone. On a device a sample is
// many calls in a row and one wait at its end, so that starting work from the host is hidden behind the work before it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

struct Timing {
  std::size_t repetitions = 0;          // samples
  std::size_t calls = 1;                // in a sample
  double median = 0, p10 = 0, p90 = 0;  // seconds
  /// Bytes per second of copies between the samples: the rate against which the median time has the share of its limit
  /// that is the median of the samples' shares, each against the mean of the copies right before and after it.
  std::optional<double> copied{};
};

/// At least three samples and at least `seconds` in all; a sample of a device lasts at least ten milliseconds. Whoever
/// calls has warmed up.
/// `copies`, if there is one, runs before the first sample and after each, and returns bytes per second.
Timing time_calls(Backend& backend, const std::function<void()>& call, double seconds,
                  const std::function<double()>& copies = {});

}  // namespace dsalt::benchmark
