#include "bench/limits.hpp"

#include <omp.h>

#include <algorithm>

#include "bench/datasheet.hpp"
#include "bench/machine.hpp"
#include "bench/pairs.hpp"
#include "peak.hpp"

namespace dsalt::benchmark {
namespace {

void keep_larger(std::optional<double>& best, std::optional<double> value) {
  if (value && (!best || *value > *best)) best = value;
}

/// Peaks of the instruction set that the backend says it runs on, with its number of threads.
class CpuLimits final : public LimitsProvider {
 public:
  CpuLimits(const Backend& backend, const BackendOptions& options) {
    limits_.name = processor_model();
    limits_.source = "measured in this run";
    limits_.isa = internal::isa_of_description(backend.description());
    limits_.threads = options.threads > 0 ? options.threads : omp_get_max_threads();
    limits_.threads_vary = true;
    limits_.free_memory = available_memory();
    constexpr double smallest_array = 64e6, usual_cache = 32e6;
    const double affordable = limits_.free_memory.value_or(4e9) / 8;
    copied_bytes_ = std::min(std::max(4 * last_level_cache_bytes().value_or(usual_cache), smallest_array), affordable);
    limits_.count_executed = [](Direction, const AttentionProblem& problem, const AttentionInputs& inputs) {
      return count_executed_cpu(problem, inputs);
    };
  }

  void measure() override {
    keep_larger(limits_.peak, internal::measure_peak(limits_.isa, internal::PeakKind::f32, *limits_.threads));
    keep_larger(limits_.peak_bf16, internal::measure_peak(limits_.isa, internal::PeakKind::bf16, *limits_.threads));
    constexpr int passes = 3;
    if (!copies_) copies_ = std::make_shared<internal::ArrayCopies>(array_bytes(), *limits_.threads);
    keep_larger(limits_.bandwidth, copies_->measure(passes * copies_->pieces()));
    constexpr double slow_share = 1.0 / 3;
    if (limits_.peak) limits_.expected_rate = *limits_.peak * slow_share;
  }

  std::function<double()> copies() override {
    constexpr int pieces = 5;
    return [copies = copies_] {
      const double rate = copies->measure(pieces);
      copies->settle();
      return rate;
    };
  }

 private:
  std::size_t array_bytes() const { return static_cast<std::size_t>(copied_bytes()); }
  std::shared_ptr<internal::ArrayCopies> copies_;
};

/// The definition: one thread, double, not meant to be fast. Its times are shown without limits.
class ReferenceLimits final : public LimitsProvider {
 public:
  ReferenceLimits() {
    limits_.name = processor_model();
    limits_.threads = 1;
    limits_.free_memory = available_memory();
    limits_.expected_rate = 3e8;
  }
  void measure() override {}
};

/// Figures of the device that the backend's description names. The interface of a backend has no copy within the
/// device's memory, so nothing is measured.
class DatasheetLimits final : public LimitsProvider {
 public:
  explicit DatasheetLimits(const Backend& backend) {
    limits_.name = device_name(backend.description());
    if (const auto hopper = hopper_device(backend.description()))
      limits_.count_executed = [hopper](Direction direction, const AttentionProblem& problem,
                                        const AttentionInputs& inputs) {
        return count_executed_hopper(*hopper, direction, problem, inputs);
      };
    const std::optional<Datasheet> sheet = datasheet_of(limits_.name);
    if (!sheet) return;
    limits_.source = "from the datasheet of " + limits_.name;
    limits_.peak = sheet->peak_32;
    limits_.peak_bf16 = limits_.peak_f16 = sheet->peak_16;
    limits_.peak_f64 = sheet->peak_64;
    limits_.exponentials = sheet->exponentials;
    limits_.bandwidth = sheet->bandwidth;
    limits_.free_memory = sheet->memory;
  }
  void measure() override {}
};

class NoLimits final : public LimitsProvider {
 public:
  void measure() override {}
};

}  // namespace

std::optional<double> DeviceLimits::peak_of(DType dtype) const {
  const std::optional<double>& own = dtype == DType::bf16  ? peak_bf16
                                     : dtype == DType::f16 ? peak_f16
                                     : dtype == DType::f64 ? peak_f64
                                                           : peak;
  return own ? own : peak;
}

std::optional<double> DeviceLimits::seconds(double flop, double pairs, double bytes, DType dtype) const {
  std::optional<double> limit;
  if (const auto rate = peak_of(dtype)) limit = flop / *rate;
  if (exponentials) limit = std::max(limit.value_or(0), pairs / *exponentials);
  if (bandwidth) limit = std::max(limit.value_or(0), bytes / *bandwidth);
  return limit;
}

std::unique_ptr<LimitsProvider> limits_provider(const Backend& backend, const BackendOptions& options) {
  if (backend.name() == "cpu") return std::make_unique<CpuLimits>(backend, options);
  if (backend.name() == "reference") return std::make_unique<ReferenceLimits>();
  if (backend.device().type != DeviceType::cpu) return std::make_unique<DatasheetLimits>(backend);
  return std::make_unique<NoLimits>();
}

}  // namespace dsalt::benchmark
