// Private to the suites: what a check is, what it runs on, and how it says what it found.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/verification/case.hpp"
#include "dsalt/verification/condition.hpp"
#include "dsalt/verification/suites.hpp"

namespace dsalt::verification {

/// Thrown by a check that does not apply here, with the reason.
struct Skip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Thrown by a check that cannot go on after what it found.
struct CheckFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The backend under test and the definition.
class Context {
 public:
  explicit Context(const SuiteOptions& options);
  Backend& backend() { return *backend_; }
  Backend& reference() { return *reference_; }
  /// The backend under test once more.
  std::unique_ptr<Backend> another() const { return with_threads(options_.backend_options.threads); }
  /// The backend under test on its own number of threads.
  std::unique_ptr<Backend> with_threads(int threads) const;
  /// Whether the backend under test makes a promise. CheckFailure when it does not, was made in the deterministic mode
  /// and must in that mode: run and batch.
  bool promises(bool Reproducibility::*promise, Operation op, Direction direction);
  /// Skip, unless the backend under test makes the promise for these operations in this direction.
  void require_promise(bool Reproducibility::*promise, std::string_view called, Operation op, Direction direction);

 private:
  const SuiteOptions& options_;
  std::unique_ptr<Backend> backend_, reference_;
};

/// Collects the findings of one check. The result passes when something was checked and nothing failed.
class Verdict {
 public:
  explicit Verdict(Result& result) : result_(result) {}

  void ran_on(std::string_view backend) { result_.backend = backend; }
  /// All outputs against the yardstick; `label` is put before the output's name.
  void compare_with(const Yardstick& yardstick, const Case& c, const Tensors& actual, std::string_view label = "");
  void compare_with_definition(const Case& c, const Tensors& actual, std::string_view label = "");
  void add(std::string output, Comparison comparison);
  /// Same shape, dtype and bits; without elements nothing is checked.
  void equal_bits(std::string_view what, const TensorView& actual, const TensorView& expected);
  void equal_bits(std::string_view what, const Tensors& actual, const Tensors& expected);
  void require(bool holds, std::string_view message);
  /// Status and message of everything collected so far.
  void conclude() const;

 private:
  Result& result_;
  std::size_t checked_ = 0;
  std::string first_failure_;
};

struct Check {
  std::string name;
  bool quick = true;
  std::function<void(Context&, Verdict&)> run;
};

std::vector<Check> equivalence_checks();
std::vector<Check> gradient_checks();
std::vector<Check> stability_checks();
std::vector<Check> determinism_checks();
std::vector<Check> causality_checks();
std::vector<Check> identity_checks();

/// Number of elements whose bits differ; the shapes must be equal. `first` receives the row-major number of the first.
std::int64_t count_differences(const TensorView& a, const TensorView& b, std::int64_t* first = nullptr);

}  // namespace dsalt::verification
