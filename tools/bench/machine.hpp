// What the operating system knows of this machine and process. Nothing here is needed: what cannot be had is empty.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace dsalt::benchmark {

std::string processor_model();
/// All caches of the last level together.
std::optional<double> last_level_cache_bytes();
/// Memory that programs may still take without swapping.
std::optional<double> available_memory();
/// "2026-02-28 13:45 UTC".
std::string current_date();
/// Of the source tree when this program was built, "+" when it had changes; empty when not known.
std::string built_commit();

/// The most memory that the process had at once since `start`, beyond what it had then.
class PeakMemory {
 public:
  /// Gives free memory back to the system and starts counting anew.
  void start();
  std::optional<double> bytes() const;

 private:
  std::optional<double> before_;
};

}  // namespace dsalt::benchmark
