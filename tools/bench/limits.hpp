// What a device can do at most, measured in this run or from its datasheet: what the times of its backend are held
// against.
//
// There is one provider per kind of backend, in limits.cpp. A backend without one is measured all the same; the columns
// that need a limit are then empty.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bench/workload.hpp"
#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

struct DeviceLimits {
  std::string name;  // of the device: "AMD EPYC ..."; empty: not known
  std::string isa;   // instruction set that the backend runs on; empty: none of these
  std::optional<int> threads;
  bool threads_vary = false;              // BackendOptions::threads means something
  std::string source;                     // of the numbers: "measured in this run"
  std::optional<double> peak, peak_bf16;  // FLOP/s: of float32 multiply-adds, and of bfloat16 products where there are
  std::optional<double> peak_f16, peak_f64;  // where they differ from float32
  std::optional<double> exponentials;        // exp2/s: attention needs one for each admitted pair
  std::optional<double> bandwidth;           // bytes/s, read and written
  std::optional<double> free_memory;         // bytes
  std::optional<double> expected_rate;       // FLOP/s that a run can count on, to leave out what would take too long
  CountExecuted count_executed;              // empty: the backend's tiles are not known

  /// The peak that counts for a call on this dtype.
  std::optional<double> peak_of(DType dtype) const;
  /// max(flop / peak, pairs / exponentials, bytes / bandwidth), of what is known; `pairs` is 0 beside attention.
  std::optional<double> seconds(double flop, double pairs, double bytes, DType dtype) const;
};

class LimitsProvider {
 public:
  virtual ~LimitsProvider() = default;
  /// Takes about a second. Measuring again keeps the better of both: other programs can only make it slower.
  virtual void measure() = 0;
  const DeviceLimits& limits() const { return limits_; }
  /// Copies within the device's memory for a few milliseconds and returns their bytes per second; empty where it
  /// cannot. Nothing of `copied_bytes` or more stays in a cache meanwhile.
  virtual std::function<double()> copies() { return {}; }
  double copied_bytes() const { return copied_bytes_; }

 protected:
  DeviceLimits limits_;
  double copied_bytes_ = 0;
};

/// For the backend that was made with `options`; never null.
std::unique_ptr<LimitsProvider> limits_provider(const Backend& backend, const BackendOptions& options);

}  // namespace dsalt::benchmark
