// dsalt golden generate | check | run | show: case files in HDF5 (docs/semantics.md, "Case files").
#include <fnmatch.h>

#include <algorithm>

#include "commands.hpp"
#include "console.hpp"
#include "dsalt/verification/generators.hpp"
#include "dsalt/verification/golden.hpp"
#include "dsalt/verification/report.hpp"
#include "output_file.hpp"

namespace dsalt::tools {
namespace {

std::string counted(std::size_t n) { return std::to_string(n) + (n == 1 ? " case" : " cases"); }

/// Nothing matched: nothing was checked, which must not look like a success.
int no_match(const GoldenArguments& arguments, const std::string& where) {
  note(arguments.case_glob == "*" ? where + " has no cases"
                                  : "no case matches --case '" + arguments.case_glob + "' in " + where);
  return check_failed;
}

verification::Progress shown_by(ProgressLine& progress) {
  return
      [&progress](std::string_view name, std::size_t done, std::size_t total) { progress.update(name, done, total); };
}

std::unique_ptr<Backend> backend_of(const GoldenArguments& arguments) {
  BackendOptions options;
  options.threads = arguments.threads;
  return open_backend(arguments.backend, options);
}

}  // namespace

int golden_generate(const GoldenArguments& arguments) {
  const auto& cases = verification::generated_cases();
  const bool any = std::any_of(cases.begin(), cases.end(), [&](const verification::GeneratedCase& c) {
    return c.golden && fnmatch(arguments.case_glob.c_str(), c.name.c_str(), 0) == 0;
  });
  if (!any) return no_match(arguments, "the golden cases");
  const OutputFile writable(arguments.output);
  ProgressLine progress;
  const std::size_t written = verification::generate_golden(arguments.output, arguments.case_glob, shown_by(progress));
  progress.finish();
  print("wrote " + counted(written) + " to " + arguments.output + ", outputs by the reference\n");
  return success;
}

int golden_check(const GoldenArguments& arguments) {
  const auto backend = backend_of(arguments);
  ProgressLine progress;
  const auto results = verification::check_golden(arguments.input, *backend, arguments.case_glob, shown_by(progress));
  progress.finish();
  if (results.empty()) return no_match(arguments, arguments.input);
  print(verification::to_table(results, {std::string(backend->name()), backend->description(), arguments.command}));
  const verification::Totals totals = verification::count(results);
  if (totals.failed == 0 && totals.passed == 0) note("no case was executed: all of them are unsupported or skipped");
  return totals.ok() ? success : check_failed;
}

int golden_run(const GoldenArguments& arguments) {
  const auto backend = backend_of(arguments);
  const OutputFile writable(arguments.output);
  ProgressLine progress;
  const auto results =
      verification::run_cases(arguments.input, arguments.output, *backend, arguments.case_glob, shown_by(progress));
  progress.finish();
  if (results.empty()) return no_match(arguments, arguments.input);
  std::string text;
  for (const verification::Result& result : results)
    if (result.status != verification::Status::passed)
      text += std::string(name_of(result.status)) + "  " + result.name + ": " + result.message + "\n";
  const std::size_t passed = verification::count(results).passed;
  text += "evaluated " + std::to_string(passed) + " of " + counted(results.size()) + " on " +
          std::string(backend->name()) + ", wrote " + arguments.output + "\n";
  print(text);
  return passed == results.size() ? success : check_failed;
}

int golden_show(const GoldenArguments& arguments) {
  const std::string text = verification::describe_cases(arguments.input, arguments.case_glob);
  if (text.find('\n') + 1 >= text.size()) return no_match(arguments, arguments.input);  // nothing under the headline
  print(text);
  return success;
}

}  // namespace dsalt::tools
