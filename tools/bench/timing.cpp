#include "bench/timing.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/statistics.hpp"

namespace dsalt::benchmark {
namespace {

/// Seconds of `calls` calls in a row, from an idle device to an idle device.
double time_sample(Backend& backend, const std::function<void()>& call, std::size_t calls) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (std::size_t n = 0; n < calls; ++n) call();
  backend.synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How many calls a sample of a device needs: the shorter of two tries counts, since another program may have held up
/// the other. The tries also bring the device's clocks up.
std::size_t calls_per_sample(Backend& backend, const std::function<void()>& call) {
  constexpr double shortest_sample = 10e-3, margin = 1.2;
  constexpr std::size_t most_calls = 20000;
  std::size_t calls = 1;
  while (calls < most_calls) {
    const double seconds = std::min(time_sample(backend, call, calls), time_sample(backend, call, calls));
    if (seconds >= shortest_sample) break;
    const double needed = static_cast<double>(calls) * margin * shortest_sample / std::max(seconds, 1e-9);
    calls = std::min(std::max(2 * calls, static_cast<std::size_t>(std::min(needed, 1e6))), most_calls);
  }
  return calls;
}

}  // namespace

Timing time_calls(Backend& backend, const std::function<void()>& call, double seconds,
                  const std::function<double()>& copies) {
  constexpr std::size_t least_repetitions = 3, most_repetitions = 100000;
  const bool device = backend.device().type != DeviceType::cpu;
  const std::size_t calls = device ? calls_per_sample(backend, call) : 1;
  std::vector<double> times, copied_meanwhile;  // bytes that copies would have moved in a sample's time
  double before = copies ? copies() : 0;
  for (double total = 0; times.size() < most_repetitions && (times.size() < least_repetitions || total < seconds);) {
    const double sample = time_sample(backend, call, calls);
    times.push_back(sample / static_cast<double>(calls));
    total += sample;
    if (!copies) continue;
    const double after = copies();
    copied_meanwhile.push_back((before + after) / 2 * times.back());
    before = after;
  }
  std::sort(times.begin(), times.end());
  Timing timing{times.size(), calls, quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9)};
  if (copies) {
    std::sort(copied_meanwhile.begin(), copied_meanwhile.end());
    timing.copied = quantile(copied_meanwhile, 0.5) / timing.median;
  }
  return timing;
}

}  // namespace dsalt::benchmark
