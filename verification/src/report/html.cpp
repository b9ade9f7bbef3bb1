// One self-contained page: totals, failures with their worst elements and rerun commands, error histograms per suite,
// operation and dtype, reasons of what did not run, and every case. No script, no external resource; light and dark.
#include <algorithm>
#include <cstdio>

#include "report/histogram.hpp"
#include "report/report.hpp"
#include "report/xml.hpp"

namespace dsalt::verification {
namespace {

constexpr std::string_view style = R"css(
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1d2125; --soft: #5f6872; --line: #dfe2e6;
  --good: #1a7f4b; --bad: #c4321c; --none: #8a6d00; --bar: #4a7fb5; --exact: #93a1ad; --over: #c4321c14; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2024; --ink: #e6e8ea; --soft: #9aa4ae;
  --line: #31373d; --good: #4cc38a; --bad: #ff7a66; --none: #e0b93f; --bar: #6ea8de; --exact: #6b7680; --over: #ff7a6622; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 32px 20px 64px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 40px 0 4px; } h3 { font-size: 14px; margin: 16px 0 4px; }
p { margin: 4px 0; } .soft { color: var(--soft); } code, pre, .mono { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre { margin: 8px 0 0; padding: 8px 10px; background: var(--page); border: 1px solid var(--line); border-radius: 6px;
  overflow-x: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0 8px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 18px; min-width: 120px; }
.tile b { display: block; font-size: 26px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.passed { color: var(--good); } .failed { color: var(--bad); } .unsupported, .skipped { color: var(--none); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } th:first-child, td:first-child, td.left, th.left { text-align: left; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; margin: 12px 0; }
.fault { border-left: 4px solid var(--bad); } .name { overflow-wrap: anywhere; font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, 252px); gap: 12px; } figure { margin: 0;
  background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 10px 6px; }
figure.first { grid-column: 1; } .histogram { width: 100%; height: auto; } .worst { fill: var(--ink); }
td { white-space: nowrap; } td.left { white-space: normal; }
figure.over-bound { border-color: var(--bad); } figcaption { font-size: 12px; color: var(--soft); }
figcaption b { color: var(--ink); } svg text { font: 9px system-ui, sans-serif; fill: var(--soft); }
.bar { fill: var(--bar); } .exact { fill: var(--exact); } .bad { fill: var(--bad); } .over { fill: var(--over); }
.axis { stroke: var(--line); } .bound { stroke: var(--bad); stroke-width: 1.5; } svg text.boundtext { fill: var(--bad); }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); } .scroll { overflow-x: auto; }
)css";

std::string tag(std::string_view name, std::string_view content, std::string_view css_class = "") {
  std::string html = "<" + std::string(name);
  if (!css_class.empty()) html += " class=\"" + std::string(css_class) + "\"";
  return html + ">" + std::string(content) + "</" + std::string(name) + ">";
}

std::string with_count_class(std::size_t n, std::string_view css_class) {
  return tag("td", std::to_string(n), n > 0 ? css_class : "soft");
}

std::string header_section(const std::vector<Result>& results, const ReportHeader& header) {
  const Totals totals = count(results);
  std::string html = "<header>" + tag("h1", "Verification of " + xml_escaped(header.backend)) +
                     tag("p", xml_escaped(header.description), "soft");
  if (!header.command.empty()) html += tag("pre", xml_escaped(header.command));
  html += "<div class=\"tiles\">";
  const auto tile = [&](std::string_view name, std::size_t n) {
    html += "<div class=\"tile\"><b class=\"" + std::string(n > 0 ? name : "soft") + "\">" + std::to_string(n) +
            "</b>" + std::string(name) + "</div>";
  };
  tile("passed", totals.passed);
  tile("failed", totals.failed);
  tile("unsupported", totals.unsupported);
  tile("skipped", totals.skipped);
  html += "</div>";
  if (totals.passed + totals.failed == 0)
    html += tag("p", "No case was executed: this run verifies nothing.", "failed");
  return html + "</header>\n";
}

std::string totals_section(const std::vector<Result>& results) {
  std::string html =
      tag("h2", "Suites") +
      "<div class=\"scroll card\"><table><tr><th>suite</th><th class=\"left\">what it shows</th><th>passed</th>"
      "<th>failed</th><th>unsupported</th><th>skipped</th><th>time</th></tr>";
  for (const SuiteSummary& s : summarise(results)) {
    std::string description;
    for (const SuiteInfo& info : suites())
      if (info.name == s.suite) description = info.description;
    html += "<tr>" + tag("td", xml_escaped(s.suite)) + tag("td", xml_escaped(description), "left soft") +
            with_count_class(s.totals.passed, "passed") + with_count_class(s.totals.failed, "failed") +
            with_count_class(s.totals.unsupported, "unsupported") + with_count_class(s.totals.skipped, "skipped") +
            tag("td", seconds_string(s.seconds)) + "</tr>";
  }
  return html + "</table></div>\n";
}

std::string failure_card(const Result& result, const ReportHeader& header) {
  std::string html = "<div class=\"card fault\">" +
                     tag("div", xml_escaped(result.suite + " · " + result.name), "name") +
                     tag("p", "ran on " + xml_escaped(result.backend), "soft");
  const auto failed = failed_outputs(result);
  if (failed.empty()) html += tag("p", xml_escaped(result.message));
  if (!failed.empty()) {
    html +=
        "<div class=\"scroll\"><table><tr><th>output</th><th class=\"left\">finding</th><th>worst "
        "element</th><th>got</th>"
        "<th>definition</th><th>allowed error</th></tr>";
    for (const OutputResult* output : failed) {
      const Comparison& c = output->comparison;
      const bool has_worst = !worst_element(c).empty();
      html += "<tr>" + tag("td", xml_escaped(output->output), "mono") + tag("td", xml_escaped(c.message), "left") +
              tag("td", has_worst ? index_string(c.worst_index) : "", "mono") +
              tag("td", has_worst ? exact_number(c.worst_actual) : "", "mono") +
              tag("td", has_worst ? exact_number(c.worst_reference) : "", "mono") +
              tag("td", has_worst && c.worst_bound > 0 ? short_number(c.worst_bound) : "", "mono") + "</tr>";
    }
    html += "</table></div>";
  }
  return html + tag("pre", xml_escaped(rerun_command(result, header))) + "</div>\n";
}

std::string failures_section(const std::vector<Result>& results, const ReportHeader& header) {
  std::string html;
  for (const Result& result : results)
    if (result.status == Status::failed) html += failure_card(result, header);
  return html.empty() ? html : tag("h2", "Failures") + html;
}

std::string two_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

/// "1 521 643", with thin spaces.
std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, "\u2009");
  return digits;
}

/// `first` of its operation: starts a new row.
std::string figure(const Accuracy& a, bool first) {
  const bool over = !(a.worst <= 1);
  std::string html = std::string("<figure class=\"") + (first ? "first" : "") + (over ? " over-bound" : "") + "\">";
  html += "<figcaption><b>" + xml_escaped(a.operation + (a.dtype.empty() ? "" : " · " + a.dtype)) +
          "</b></figcaption>" + histogram_svg(a);
  html += "<figcaption title=\"" + xml_escaped(a.worst_case) + "\">worst " + two_digits(a.worst) +
          " of the bound, RMS " + two_digits(a.worst_rms) + "<br>" + grouped(a.elements) + " elements</figcaption>";
  return html + "</figure>";
}

std::string accuracy_section(const std::vector<Result>& results) {
  const auto list = accuracies(results);
  std::string html, suite, operation;
  for (const Accuracy& a : list) {
    if (a.sample.empty()) continue;
    if (a.suite != suite) {
      if (!suite.empty()) html += "</div>\n";
      suite = a.suite;
      operation.clear();
      html += tag("h3", xml_escaped(suite)) + "<div class=\"figures\">";
    }
    html += figure(a, a.operation != operation);
    operation = a.operation;
  }
  if (html.empty()) return html;
  return tag("h2", "Errors") +
         tag("p",
             "Error of each sampled element as a share of its own bound, on a logarithmic axis. Grey: exact. Red line: "
             "the bound. Triangle: the worst of all elements.",
             "soft") +
         html + "</div>\n";
}

std::string reasons_section(const std::vector<Result>& results) {
  std::string rows;
  for (const Status status : {Status::unsupported, Status::skipped})
    for (const auto& [reason, times] : reasons(results, status))
      rows += "<tr>" + tag("td", std::string(name_of(status)), std::string(name_of(status))) +
              tag("td", xml_escaped(reason), "left") + tag("td", std::to_string(times)) + "</tr>";
  if (rows.empty()) return rows;
  return tag("h2", "Not executed") +
         "<div class=\"card scroll\"><table><tr><th>status</th><th class=\"left\">reason</th><th>cases</th></tr>" +
         rows + "</table></div>\n";
}

/// Largest error / bound over the outputs of a case that have one.
std::string worst_share(const Result& result) {
  double worst = -1;
  for (const OutputResult& output : result.outputs)
    if (output.comparison.max_factor > 0)
      worst = std::max(worst, output.comparison.max_ratio / output.comparison.max_factor);
  return worst < 0 ? "" : short_number(worst);
}

std::string cases_section(const std::vector<Result>& results) {
  std::string html = tag("h2", "All cases");
  for (const SuiteSummary& suite : summarise(results)) {
    html += "<details><summary>" + xml_escaped(suite.suite) +
            "</summary><div class=\"scroll card\"><table><tr><th>case</th>"
            "<th class=\"left\">backend</th><th class=\"left\">status</th><th>worst / bound</th><th>time</th></tr>";
    for (const Result& result : results) {
      if (result.suite != suite.suite) continue;
      html += "<tr>" + tag("td", xml_escaped(result.name)) + tag("td", xml_escaped(result.backend), "left") +
              tag("td", std::string(name_of(result.status)), "left " + std::string(name_of(result.status))) +
              tag("td", worst_share(result)) + tag("td", seconds_string(result.seconds)) + "</tr>\n";
    }
    html += "</table></div></details>\n";
  }
  return html;
}

}  // namespace

std::string to_html(const std::vector<Result>& results, const ReportHeader& header) {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Verification of " +
         xml_escaped(header.backend) + "</title><style>" + std::string(style) + "</style></head><body>\n" +
         header_section(results, header) + failures_section(results, header) + totals_section(results) +
         accuracy_section(results) + reasons_section(results) + cases_section(results) + "</body></html>\n";
}

}  // namespace dsalt::verification
