#include "bench/timing.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/statistics.hpp"

namespace dsalt::benchmark {

Timing time_calls(Backend& backend, const std::function<void()>& call, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t least_repetitions = 3, most_repetitions = 100000;
  std::vector<double> times;
  for (double total = 0; times.size() < most_repetitions && (times.size() < least_repetitions || total < seconds);) {
    const auto start = Clock::now();
    call();
    backend.synchronize();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return {times.size(), quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9)};
}

}  // namespace dsalt::benchmark
