// Every row's share of the limit as a bar: on admitted pairs, and behind it on executed ones, where these are known.
// The numbers are those of the page's table.
#include <algorithm>

#include "bench/format.hpp"
#include "bench/plot.hpp"
#include "bench/results.hpp"

namespace dsalt::benchmark {
namespace {

constexpr double width = 940, names = 500, bars = 300, line = 19, top = 24;  // pixels; names: the room before the bars

std::string rectangle(double y, double height, double share, double full, const char* css_class) {
  return "<rect class=\"" + std::string(css_class) + "\" x=\"" + number_text(names) + "\" y=\"" + number_text(y) +
         "\" width=\"" + number_text(bars * share / full) + "\" height=\"" + number_text(height) + "\"/>";
}

std::string text(double x, double y, const char* anchor, const std::string& content) {
  return "<text x=\"" + number_text(x) + "\" y=\"" + number_text(y) + "\" text-anchor=\"" + anchor + "\">" +
         escaped(content) + "</text>";
}

}  // namespace

std::string shares_svg(const BackendResults& backend, const std::vector<Row>& rows) {
  const auto shown = [&](const Row& row) { return row.backend == backend.name && row.measured() && row.fraction(); };
  double largest = 1;
  std::size_t count = 0;
  for (const Row& row : rows) {
    if (!shown(row)) continue;
    ++count;
    largest = std::max({largest, *row.fraction(), row.fraction_executed().value_or(0)});
  }
  if (count == 0) return {};
  const double height = top + line * static_cast<double>(count) + 4;
  std::string svg = "<svg class=\"plot\" viewBox=\"0 0 " + number_text(width) + " " + number_text(height) +
                    "\" role=\"img\" aria-label=\"" + escaped("Shares of the limit of " + backend.name) + "\">\n";
  for (const double share : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const std::string x = number_text(names + bars * share / largest);
    svg += "<line class=\"grid\" x1=\"" + x + "\" y1=\"" + number_text(top - 6) + "\" x2=\"" + x + "\" y2=\"" +
           number_text(height) + "\"/>" +
           text(names + bars * share / largest, top - 10, "middle", percent_text(share)) + "\n";
  }
  double y = top;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const Row& row = rows[n];
    if (!shown(row)) continue;
    const std::string name = std::to_string(n + 1) + ": " + row.operation + " " + row.shape + ", " + row.dtype;
    std::string share = percent_text(*row.fraction());
    if (const auto executed = row.fraction_executed()) share += ", executed " + percent_text(*executed);
    svg += "<g><title>" + escaped(name + ": " + share + " of the limit") + "</title>" +
           text(names - 8, y + 12, "end", name);
    if (const auto executed = row.fraction_executed()) svg += rectangle(y + 2, 13, *executed, largest, "bar-executed");
    svg += rectangle(y + 5, 7, *row.fraction(), largest, "bar");
    svg += text(names + bars + 8, y + 12, "start", share) + "</g>\n";
    y += line;
  }
  return svg + "</svg>\n";
}

}  // namespace dsalt::benchmark
