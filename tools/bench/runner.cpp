#include "bench/runner.hpp"

#include <new>

#include "bench/format.hpp"
#include "bench/machine.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::benchmark {
namespace {

constexpr double usable_share = 0.75;  // of free memory: the backend takes some besides, and so do other programs

/// Why this workload is not run; empty when it is.
std::string reason_to_skip(const Backend& backend, const DeviceLimits& limits, const Workload& work,
                           const RunOptions& options) {
  if (!work.refused.empty()) return work.refused;
  if (const Support support = backend.supports(work.kind, work.direction, work.dtype); !support) return support.reason;
  const std::optional<double> free = backend.device().type == DeviceType::cpu ? available_memory() : limits.free_memory;
  if (free && work.memory > *free * usable_share)
    return "needs " + bytes_text(work.memory) + " of memory; " + percent_text(usable_share) + " of the " +
           bytes_text(*free) + " that are free may be used";
  if (limits.expected_rate) {
    const double seconds = work.estimated_flop / *limits.expected_rate;
    if (seconds > options.max_time)
      return "would take about " + seconds_text(seconds) + " a call; --max-time is " + seconds_text(options.max_time);
  }
  return {};
}

/// Whether the row's limit is what memory sets, and none of its bytes could be met in a cache.
bool memory_limits(const DeviceLimits& limits, const Workload& work, const Cost& cost, const RunOptions& options) {
  if (!options.copies || !limits.bandwidth || cost.bytes < options.copied_bytes) return false;
  const double seconds = cost.bytes / *limits.bandwidth;
  const auto limit = limits.seconds(cost.flop, cost.pairs.value_or(0), cost.bytes, work.dtype);
  return limit && seconds >= *limit;
}

/// The most memory that a call takes at once beside what is there already; empty where nobody counts.
std::optional<double> peak_bytes_of(Backend& backend, const std::function<void()>& call) {
  if (backend.device().type == DeviceType::cpu) {
    PeakMemory peak;
    peak.start();
    call();
    return peak.bytes();
  }
  const std::optional<MemoryUse> before = backend.memory_use(true);
  if (!before) return {};
  call();
  return static_cast<double>(backend.memory_use(false).value().most) - static_cast<double>(before->now);
}

}  // namespace

void hold_against(const DeviceLimits& of_device, DType dtype, Row& row) {
  if (!row.measured()) return;
  DeviceLimits limits = of_device;
  if (row.timing.copied) limits.bandwidth = row.timing.copied;
  const double pairs = row.cost.pairs.value_or(0);
  row.limit = limits.seconds(row.cost.flop, pairs, row.cost.bytes, dtype);
  if (const auto efficiency = row.tile_efficiency(); efficiency && *efficiency > 0)
    row.limit_executed = limits.seconds(row.cost.flop / *efficiency, pairs / *efficiency, row.cost.bytes, dtype);
}

Row run_workload(Backend& backend, const DeviceLimits& limits, const Workload& work, const RunOptions& options) {
  Row row;
  row.operation = work.operation;
  row.backend = std::string(backend.name());
  row.isa = limits.isa;
  row.dtype = std::string(name_of(work.dtype));
  row.shape = work.shape;
  row.shape_number = work.shape_number;
  row.skipped = reason_to_skip(backend, limits, work, options);
  if (!row.measured()) return row;
  try {
    const Prepared prepared = work.prepare(backend, limits.count_executed);
    row.cost = prepared.cost;
    const auto call = [&] {
      prepared.call();
      backend.synchronize();
    };
    call();  // warm-up: pages, threads, caches
    row.peak_bytes = peak_bytes_of(backend, call);
    row.timing = time_calls(backend, prepared.call, options.min_time,
                            memory_limits(limits, work, row.cost, options) ? options.copies : nullptr);
    hold_against(limits, work.dtype, row);
  } catch (const Unsupported& error) {
    row.skipped = error.what();
  } catch (const DeviceError& error) {
    row.skipped = error.what();
  } catch (const std::bad_alloc&) {
    row.skipped = "memory ran out";
  }
  return row;
}

}  // namespace dsalt::benchmark
