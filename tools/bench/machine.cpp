#include "bench/machine.hpp"

#include <malloc.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <string_view>

#include "dsalt_commit.hpp"

namespace dsalt::benchmark {
namespace {

/// What follows "NAME:" in a file of such lines.
std::optional<std::string> value_of(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.find_first_not_of(" \t", name.size()) != colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return {};
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "12345 kB" in bytes.
std::optional<double> size_value(const char* path, std::string_view name) {
  const auto text = value_of(path, name);
  if (!text) return {};
  return 1024 * std::strtod(text->c_str(), nullptr);
}

}  // namespace

std::string processor_model() { return value_of("/proc/cpuinfo", "model name").value_or(""); }

std::optional<double> last_level_cache_bytes() {
  std::map<std::string, double> caches;  // by the processors that share one
  for (int cpu = 0; cpu < 4096; ++cpu) {
    double largest = 0;
    std::string shared;
    for (int index = 0; index < 8; ++index) {
      const std::string folder =
          "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index);
      const std::string size = first_line(folder + "/size");  // "32768K"
      const double bytes = std::strtod(size.c_str(), nullptr) * (size.ends_with('M') ? 1048576 : 1024);
      if (bytes <= largest) continue;
      largest = bytes;
      shared = first_line(folder + "/shared_cpu_list");
    }
    if (largest == 0) break;
    caches[shared] = largest;
  }
  double total = 0;
  for (const auto& [shared, bytes] : caches) total += bytes;
  return total > 0 ? std::optional(total) : std::nullopt;
}

std::optional<double> available_memory() { return size_value("/proc/meminfo", "MemAvailable"); }

std::string current_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

std::string built_commit() { return DSALT_COMMIT; }

void PeakMemory::start() {
  before_.reset();
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5";  // the high-water mark starts again from what is resident now
  reset.close();
  if (reset) before_ = size_value("/proc/self/status", "VmHWM");
}

std::optional<double> PeakMemory::bytes() const {
  const auto now = size_value("/proc/self/status", "VmHWM");
  if (!before_ || !now) return {};
  return *now > *before_ ? *now - *before_ : 0;
}

}  // namespace dsalt::benchmark
