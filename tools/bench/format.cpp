#include "bench/format.hpp"

#include <cmath>
#include <cstdio>

namespace dsalt::benchmark {
namespace {

std::string formatted(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

/// `value` with the largest unit that leaves at least 1.
std::string scaled(double value, const char* const* units, int count, double step) {
  int unit = 0;
  while (unit + 1 < count && value >= 999.5) {
    value /= step;
    ++unit;
  }
  return number_text(value) + " " + units[unit];
}

}  // namespace

std::string number_text(double value) {
  const double size = std::fabs(value);
  if (!std::isfinite(value)) return formatted("%g", value);
  if (size == 0) return "0";
  if (size >= 99.95 && size < 9999999.5) return formatted("%.0f", value);
  if (size >= 9.995 && size < 99.95) return formatted("%.1f", value);
  if (size >= 0.9995 && size < 9.995) return formatted("%.2f", value);
  return formatted("%.3g", value);
}

std::string seconds_text(double seconds) {
  static const char* const units[] = {"ns", "us", "ms", "s"};
  return scaled(seconds * 1e9, units, 4, 1000);
}

std::string bytes_text(double bytes) {
  static const char* const units[] = {"B", "kB", "MB", "GB", "TB"};
  return scaled(bytes, units, 5, 1000);
}

std::string percent_text(double share) {
  const double percent = 100 * share;
  return formatted(percent >= 9.95 ? "%.0f %%" : percent >= 0.095 ? "%.1f %%" : "%.1g %%", percent);
}

}  // namespace dsalt::benchmark
