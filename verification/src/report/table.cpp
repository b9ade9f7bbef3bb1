// The report for a terminal: totals per suite, accuracy per operation, then every failure with its worst element and
// the command that runs it again.
#include <algorithm>
#include <array>
#include <sstream>

#include "report/report.hpp"

namespace dsalt::verification {
namespace {

/// Rows of cells, columns aligned: the first to the left, the others to the right.
class Grid {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  void print(std::ostream& out) const {
    std::vector<std::size_t> widths;
    for (const auto& cells : rows_) {
      widths.resize(std::max(widths.size(), cells.size()));
      for (std::size_t n = 0; n < cells.size(); ++n) widths[n] = std::max(widths[n], cells[n].size());
    }
    for (const auto& cells : rows_) {
      std::string line = "  ";
      for (std::size_t n = 0; n < cells.size(); ++n) {
        const std::string padding(widths[n] - cells[n].size(), ' ');
        line += n == 0 ? cells[n] + padding : padding + cells[n];
        if (n + 1 < cells.size()) line += "  ";
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out << line << "\n";
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

void print_totals(std::ostream& out, const std::vector<Result>& results) {
  Grid grid;
  grid.row({"suite", "passed", "failed", "unsupported", "skipped", "time"});
  const auto add = [&](const std::string& name, const Totals& t, double seconds) {
    grid.row({name, std::to_string(t.passed), std::to_string(t.failed), std::to_string(t.unsupported),
              std::to_string(t.skipped), seconds_string(seconds)});
  };
  double seconds = 0;
  const auto list = summarise(results);
  for (const SuiteSummary& s : list) {
    add(s.suite, s.totals, s.seconds);
    seconds += s.seconds;
  }
  if (list.size() != 1) add("total", count(results), seconds);
  grid.print(out);
}

/// Operations down, dtypes across, over all suites; the details are in the other formats.
void print_accuracy(std::ostream& out, const std::vector<Result>& results) {
  const auto list = accuracies(results);
  if (list.empty()) return;
  constexpr std::array<const char*, 5> dtypes = {"f64", "f32", "bf16", "f16", ""};
  std::vector<std::string> operations;
  const Accuracy* worst = &list.front();
  for (const Accuracy& a : list) {
    if (std::find(operations.begin(), operations.end(), a.operation) == operations.end())
      operations.push_back(a.operation);
    if (!(a.worst <= worst->worst)) worst = &a;
  }
  out << "\nWorst error as a share of what is allowed (1 is the bound)\n";
  Grid grid;
  std::vector<std::string> heading = {"operation"};
  for (const char* dtype : dtypes)
    if (std::any_of(list.begin(), list.end(), [&](const Accuracy& a) { return a.dtype == dtype; }))
      heading.push_back(*dtype ? dtype : "mixed");
  grid.row(heading);
  for (const std::string& operation : operations) {
    std::vector<std::string> row = {operation};
    for (std::size_t column = 1; column < heading.size(); ++column) {
      const std::string dtype = heading[column] == "mixed" ? "" : heading[column];
      double share = -1;
      for (const Accuracy& a : list)
        if (a.operation == operation && a.dtype == dtype && !(a.worst <= share)) share = a.worst;
      row.push_back(share < 0 ? "-" : short_number(share));
    }
    grid.row(row);
  }
  grid.print(out);
  out << "  worst of all: " << short_number(worst->worst) << " in " << worst->suite << ", " << worst->worst_case
      << "\n";
}

void print_reasons(std::ostream& out, const std::vector<Result>& results, Status status) {
  const auto list = reasons(results, status);
  if (list.empty()) return;
  out << "\n" << (status == Status::skipped ? "Skipped" : "Unsupported") << "\n";
  for (const auto& [reason, times] : list) out << "  " << times << " x  " << reason << "\n";
}

void print_failures(std::ostream& out, const std::vector<Result>& results, const ReportHeader& header) {
  for (const Result& result : results) {
    if (result.status != Status::failed) continue;
    out << "\nFAILED  " << result.suite << "  " << result.name << "  (ran on " << result.backend << ")\n";
    const auto failed = failed_outputs(result);
    if (failed.empty()) out << "  " << result.message << "\n";
    for (const OutputResult* output : failed) {
      out << "  " << output->output << ": " << output->comparison.message << "\n";
      if (const std::string worst = worst_element(output->comparison); !worst.empty()) out << "    " << worst << "\n";
    }
    out << "  rerun: " << rerun_command(result, header) << "\n";
  }
}

}  // namespace

std::string to_table(const std::vector<Result>& results, const ReportHeader& header) {
  std::ostringstream out;
  out << "Verification of " << header.backend;
  if (!header.description.empty()) out << " (" << header.description << ")";
  out << "\n\n";
  print_totals(out, results);
  print_accuracy(out, results);
  print_reasons(out, results, Status::unsupported);
  print_reasons(out, results, Status::skipped);
  print_failures(out, results, header);
  const Totals totals = count(results);
  out << "\n";
  if (totals.ok())
    out << "OK: " << totals.passed << " cases passed\n";
  else if (totals.failed > 0)
    out << "FAILED: " << totals.failed << " of " << totals.passed + totals.failed << " executed cases\n";
  else
    out << "FAILED: no case was executed\n";
  return out.str();
}

}  // namespace dsalt::verification
