// One self-contained page: limits, rooflines, scaling and every row. No script, no external resource; light and dark.
#include "bench/format.hpp"
#include "bench/plot.hpp"
#include "bench/results.hpp"

namespace dsalt::benchmark {
namespace {

constexpr std::string_view style = R"css(
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1d2125; --soft: #5f6872; --line: #dfe2e6;
  --roof: #1d2125; --fill: #4a7fb5; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e6e8ea; --soft: #9aa4ae;
  --line: #31373d; --roof: #e6e8ea; --fill: #3f6f9f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 32px 20px 64px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 4px; } p { margin: 4px 0; }
.soft { color: var(--soft); } pre { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; margin: 8px 0 0;
  padding: 8px 10px; background: var(--card); border: 1px solid var(--line); border-radius: 6px; white-space: pre-wrap; }
table { border-collapse: collapse; width: 100%; font-size: 12.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 7px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--soft); } .left { text-align: left; } td.reason { text-align: left;
  white-space: normal; color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; margin: 12px 0;
  overflow-x: auto; }
.share { display: inline-block; width: 44px; height: 8px; margin-left: 6px; background: var(--line); border-radius: 2px; }
.share i { display: block; height: 8px; background: var(--fill); border-radius: 2px; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px; }
.plots .card { margin: 0; } .plot { width: 100%; max-width: 940px; height: auto; display: block; margin: 0 auto; }
.plot text { font: 11px system-ui, sans-serif; fill: var(--soft); } .plot text.title { font-size: 12px; }
.plot text.rooftext { fill: var(--roof); } .grid { stroke: var(--line); }
.bar { fill: var(--fill); } .bar-executed { fill: none; stroke: var(--fill); }
.roof { stroke: var(--roof); stroke-width: 1.6; } polyline { stroke-width: 2; }
.legend span { display: inline-block; margin-right: 14px; font-size: 13px; } .key { width: 11px; height: 11px;
  margin-right: 5px; }
.c0 { fill: #2f6fb3; stroke: #2f6fb3; } .c1 { fill: #d9772b; stroke: #d9772b; } .c2 { fill: #2f9e6e; stroke: #2f9e6e; }
.c3 { fill: #c2447f; stroke: #c2447f; } .c4 { fill: #8064c9; stroke: #8064c9; } .c5 { fill: #a58a12; stroke: #a58a12; }
.c6 { fill: #1a9bb0; stroke: #1a9bb0; } .c7 { fill: #8a6b5a; stroke: #8a6b5a; } .c8 { fill: #6b7f2a; stroke: #6b7f2a; }
.c9 { fill: #7a8794; stroke: #7a8794; } svg.plot polyline { fill: none; }
)css";

std::string cell(std::string_view content, std::string_view css_class = "") {
  return (css_class.empty() ? "<td>" : "<td class=\"" + std::string(css_class) + "\">") + escaped(content) + "</td>";
}

/// A percentage with a bar.
std::string share_cell(const std::optional<double>& share) {
  if (!share) return cell("-");
  const double filled = *share < 0 ? 0 : *share > 1 ? 100 : 100 * *share;
  return "<td>" + percent_text(*share) + "<span class=\"share\"><i style=\"width:" + number_text(filled) +
         "%\"></i></span></td>";
}

std::string giga(const std::optional<double>& value) {
  return or_dash(value, [](double v) { return number_text(v * 1e-9); });
}

std::string header_section(const Results& results) {
  std::string html = "<h1>Benchmark of dsalt " + escaped(results.version) + "</h1><p class=\"soft\">" +
                     escaped((results.commit.empty() ? "" : "commit " + results.commit + ", ") + results.date) + "</p>";
  html += "<pre>" + escaped(results.command) +
          "</pre>\n<div class=\"card\"><table><tr><th class=\"left\">backend</th>"
          "<th class=\"left\">runs</th><th class=\"left\">on</th><th class=\"left\">isa</th><th>threads</th>"
          "<th>peak float32, GFLOP/s</th><th>bfloat16</th><th>memory, GB/s</th><th class=\"left\">limits</th></tr>\n";
  for (const BackendResults& backend : results.backends) {
    const DeviceLimits& limits = backend.limits;
    html += "<tr>" + cell(backend.name, "left") + cell(backend.description, "left") +
            cell(limits.name.empty() ? "-" : limits.name, "left") +
            cell(limits.isa.empty() ? "-" : limits.isa, "left") +
            cell(limits.threads ? std::to_string(*limits.threads) : "-") + cell(giga(limits.peak)) +
            cell(giga(limits.peak_bf16)) + cell(giga(limits.bandwidth)) +
            cell(limits.source.empty() ? "not known" : limits.source, "left") + "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string roofline_section(const Results& results) {
  std::string html;
  for (const BackendResults& backend : results.backends) {
    const std::string svg = roofline_svg(backend, results.rows), shares = shares_svg(backend, results.rows);
    if (!svg.empty())
      html += "<h2>Roofline: " + escaped(backend.name) +
              "</h2><p class=\"soft\">Numbers are those of the rows below. A dot counts admitted pairs, the ring "
              "joined to it the pairs that the tiles execute, where they are known. "
              "Data that stays in a cache may rise above the slanted line.</p><div class=\"card\">" +
              svg + "</div>\n";
    if (!shares.empty())
      html += "<h2>Share of the limit: " + escaped(backend.name) +
              "</h2><p class=\"soft\">Filled: on admitted pairs. Outlined: on executed pairs, where they are "
              "known.</p><div class=\"card\">" +
              shares + "</div>\n";
  }
  return html;
}

std::string scaling_section(const Results& results) {
  if (results.scaling.empty()) return {};
  std::string html = "<h2>Scaling</h2><div class=\"plots\">";
  for (const char* variable : {"N", "threads"}) {
    const std::string svg = scaling_svg(results.scaling, variable);
    if (!svg.empty()) html += "<div class=\"card\">" + svg + "</div>\n";
  }
  return html + "</div>\n";
}

std::string row_html(const Row& row, std::size_t number) {
  std::string html = "<tr>" + cell(std::to_string(number)) + cell(row.operation, "left") +
                     cell((row.shape_number ? std::to_string(row.shape_number) + ": " : "") + row.shape, "left") +
                     cell(row.dtype, "left") + cell(row.backend, "left");
  if (!row.measured())
    return html + "<td class=\"reason\" colspan=\"8\">skipped: " + escaped(row.skipped) + "</td></tr>\n";
  return html + cell(seconds_text(row.timing.median)) +
         cell(seconds_text(row.timing.p10) + " to " + seconds_text(row.timing.p90)) +
         cell(row.cost.flop > 0 ? number_text(row.gflops()) : "-") + cell(number_text(row.gbps())) +
         share_cell(row.fraction()) + cell(or_dash(row.fraction_executed(), percent_text)) +
         cell(or_dash(row.tile_efficiency(), percent_text)) + cell(or_dash(row.peak_bytes, bytes_text)) + "</tr>\n";
}

std::string rows_section(const Results& results) {
  if (results.rows.empty()) return {};
  std::string html =
      "<h2>Rows</h2><p class=\"soft\">Limit: the largest of FLOP over peak, exponentials over their rate (devices) "
      "and bytes over bandwidth. Executed: the same "
      "with the pairs that the tiles execute. Tiles: admitted pairs over executed ones. Memory: beside the tensors.</p>"
      "<div class=\"card\"><table><tr><th>#</th><th class=\"left\">operation</th><th class=\"left\">shape</th>"
      "<th class=\"left\">dtype</th><th class=\"left\">backend</th><th>median</th><th>p10 to p90</th><th>GFLOP/s</th>"
      "<th>GB/s</th><th>of limit</th><th>executed</th><th>tiles</th><th>memory</th></tr>\n";
  for (std::size_t n = 0; n < results.rows.size(); ++n) html += row_html(results.rows[n], n + 1);
  return html + "</table></div>\n";
}

}  // namespace

std::string to_html(const Results& results) {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>Benchmark of dsalt " +
         escaped(results.version) + "</title><style>" + std::string(style) + "</style></head><body>\n" +
         header_section(results) + roofline_section(results) + scaling_section(results) + rows_section(results) +
         "</body></html>\n";
}

}  // namespace dsalt::benchmark
