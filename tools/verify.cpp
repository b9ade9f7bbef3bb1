// dsalt verify: runs verification suites on a backend, prints a table and writes the reports asked for.
#include <algorithm>

#include "commands.hpp"
#include "console.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/verification/report.hpp"
#include "dsalt/verification/suites.hpp"
#include "dsalt/verification/text.hpp"
#include "output_file.hpp"

namespace dsalt::tools {
namespace {

/// --text alone means the text suite; "all" means every other suite.
std::vector<std::string> selected_suites(const VerifyArguments& arguments) {
  std::vector<std::string> selected;
  const auto add = [&](const std::string& name) {
    if (std::find(selected.begin(), selected.end(), name) == selected.end()) selected.push_back(name);
  };
  for (const std::string& name : arguments.suites) {
    if (name != "all") add(name);
    if (name != "all") continue;
    for (const auto& suite : verification::suites())
      if (suite.name != "text") add(suite.name);
  }
  if (!arguments.text.empty()) add("text");
  if (arguments.text.empty() && !arguments.list &&
      std::find(selected.begin(), selected.end(), "text") != selected.end())
    throw InvalidArgument("suite text needs a text: add --text FILE");
  return selected;
}

}  // namespace

int verify(const VerifyArguments& arguments) {
  verification::SuiteOptions options;
  options.suites = selected_suites(arguments);
  options.case_glob = arguments.case_glob;
  options.text_file = arguments.text;
  options.quick = arguments.quick;
  options.backend_options.threads = arguments.threads;
  options.backend_options.deterministic = arguments.deterministic;

  const auto cases = verification::list_cases(options);
  if (cases.empty()) {
    note("no case matches --case '" + arguments.case_glob +
         "' in the suites selected; `dsalt verify --list` shows all");
    return check_failed;
  }
  if (arguments.list) {
    std::string text;
    for (const auto& [suite, name] : cases) text += suite + "  " + name + "\n";
    print(text);
    return success;
  }

  if (!arguments.text.empty()) verification::read_text(arguments.text, 1);
  const OutputFile report(arguments.report), junit(arguments.junit), json(arguments.json);
  const auto backend = open_backend(arguments.backend, options.backend_options);
  options.backend = backend->name();

  ProgressLine progress;
  options.progress = [&](std::string_view suite, std::string_view name, std::size_t done, std::size_t total) {
    progress.update(std::string(suite) + " " + std::string(name), done, total);
  };
  const auto results = verification::run_suites(options);
  progress.finish();

  const verification::ReportHeader header{std::string(backend->name()), backend->description(), arguments.command,
                                          arguments.text, arguments.deterministic};
  if (report.wanted()) report.write(verification::to_html(results, header));
  if (junit.wanted()) junit.write(verification::to_junit(results, header));
  if (json.wanted()) json.write(verification::to_json(results, header));
  print(verification::to_table(results, header));

  const verification::Totals totals = verification::count(results);
  if (totals.failed == 0 && totals.passed == 0)
    note("no case was executed: " + std::to_string(totals.unsupported) + " unsupported, " +
         std::to_string(totals.skipped) + " skipped");
  return totals.ok() ? success : check_failed;
}

}  // namespace dsalt::tools
