// The verification suites: what `dsalt verify` and the tests run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsalt/registry.hpp"
#include "dsalt/verification/compare.hpp"

namespace dsalt::verification {

enum class Status : std::uint8_t { passed, failed, unsupported, skipped };
DSALT_API std::string_view name_of(Status status);

/// One output of one case, compared.
struct OutputResult {
  std::string output;  // "out", "dq", ...
  Comparison comparison;
};

struct Result {
  std::string suite;
  std::string name;     // case name: with it alone the case can be rerun
  std::string backend;  // name() of the backend that really ran
  Status status = Status::failed;
  std::string message;  // failed, unsupported, skipped: why
  std::vector<OutputResult> outputs;
  double seconds = 0;
};

struct SuiteOptions {
  std::string backend = "";  // as for make_backend
  BackendOptions backend_options;
  /// Makes the backend under test instead of the registry: for a backend that the registry does not know. The argument
  /// is backend_options, with another number of threads where the determinism suite asks for one.
  std::function<std::unique_ptr<Backend>(const BackendOptions&)> backend_factory;
  std::vector<std::string> suites;  // empty: all but "text"
  std::string case_glob = "*";      // shell pattern on case names
  std::string text_file;            // suite "text": the file whose bytes are the tokens
  bool quick = false;               // only cases marked quick: what the quick tests run
  /// Called before each case with how many are done and how many there are in all.
  std::function<void(std::string_view suite, std::string_view name, std::size_t done, std::size_t total)> progress;
};

/// The backend under test: backend_factory when given, else make_backend(options.backend). BackendUnavailable.
DSALT_API std::unique_ptr<Backend> make_backend_under_test(const SuiteOptions& options);

struct SuiteInfo {
  std::string name;         // equivalence, gradients, stability, determinism, causality, identities, text
  std::string description;  // one sentence
};
DSALT_API const std::vector<SuiteInfo>& suites();

/// Case names (suite/name) that the options select, in run order, without running anything.
DSALT_API std::vector<std::pair<std::string, std::string>> list_cases(const SuiteOptions& options);

/// Runs the selected suites. Throws InvalidArgument for an unknown suite or too short a text, IoError for an unreadable
/// text file, BackendUnavailable.
DSALT_API std::vector<Result> run_suites(const SuiteOptions& options);

struct Totals {
  std::size_t passed = 0, failed = 0, unsupported = 0, skipped = 0;
  /// Nothing failed and at least one case was executed.
  bool ok() const { return failed == 0 && passed > 0; }
};
DSALT_API Totals count(const std::vector<Result>& results);

}  // namespace dsalt::verification
