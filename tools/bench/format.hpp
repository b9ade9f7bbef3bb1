// Numbers as people read them.
#pragma once

#include <optional>
#include <string>

namespace dsalt::benchmark {

/// "1.23 ms"
std::string seconds_text(double seconds);
/// "12.3 MB"
std::string bytes_text(double bytes);
/// Three significant digits or a whole number, no exponent between 0.001 and 9999999: "12.3", "148600".
std::string number_text(double value);
/// "12.3 %"
std::string percent_text(double share);

/// The text of a value that may not be known: "-" when it is not.
template <class Format>
std::string or_dash(const std::optional<double>& value, Format&& format) {
  return value ? format(*value) : std::string("-");
}

}  // namespace dsalt::benchmark
