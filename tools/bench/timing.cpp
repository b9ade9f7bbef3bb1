#include "bench/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace dsalt::benchmark {

double quantile(const std::vector<double>& sorted, double p) {
  const double place = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = place - std::floor(place);
  return sorted[below] + share * (sorted[above] - sorted[below]);
}

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
