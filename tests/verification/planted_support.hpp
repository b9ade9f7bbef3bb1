// Backends with one planted fault each, and the question that every test asks: does the suite see it?
#pragma once

#include <boost/test/unit_test.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsalt/registry.hpp"
#include "dsalt/verification/forwarding_backend.hpp"
#include "dsalt/verification/suites.hpp"
#include "internal/elements.hpp"

namespace planted {

using namespace dsalt;
using namespace dsalt::verification;

inline std::unique_ptr<Backend> honest(const BackendOptions& options = {}) { return make_backend("cpu", options); }

/// Results of one suite on the backend that `factory` makes.
inline std::vector<Result> run(const std::function<std::unique_ptr<Backend>(const BackendOptions&)>& factory,
                               const std::string& suite, const std::string& glob) {
  SuiteOptions options;
  options.backend_factory = factory;
  options.suites = {suite};
  options.case_glob = glob;
  options.quick = true;
  return run_suites(options);
}

inline std::string first_failure(const std::vector<Result>& results) {
  for (const Result& result : results)
    if (result.status == Status::failed) return result.name + ": " + result.message;
  return "no failure";
}

/// The suite passes on the honest backend and fails on the faulty one, in a message that contains `words`.
template <class Fault>
void expect_caught(const std::string& suite, const std::string& glob, const std::string& words = "") {
  BOOST_TEST_CONTEXT(suite << " " << glob) {
    const auto good = run(honest, suite, glob);
    BOOST_TEST(count(good).ok(), first_failure(good));
    const auto bad =
        run([](const BackendOptions& options) { return std::make_unique<Fault>(honest(options)); }, suite, glob);
    BOOST_TEST(count(bad).failed > 0u, "the planted fault was not seen");
    BOOST_TEST(first_failure(bad).find(words) != std::string::npos, first_failure(bad));
  }
}

/// The suite passes although the fault is there: it is of another kind.
template <class Fault>
void expect_unseen(const std::string& suite, const std::string& glob) {
  const auto results =
      run([](const BackendOptions& options) { return std::make_unique<Fault>(honest(options)); }, suite, glob);
  BOOST_TEST(count(results).ok(), suite << " " << glob << ": " << first_failure(results));
}

/// Applies `change` to the value of one element, chosen as the first that is not 0.
inline void change_one(const TensorView& view, const std::function<double(double)>& change) {
  bool done = false;
  internal::for_each_element(
      [&](std::int64_t at) {
        const double value = internal::load_double(view, at);
        if (done || value == 0 || value != value) return;
        internal::store_double(view, at, change(value));
        done = true;
      },
      view);
}

inline Tensor copy_of(const TensorView& view) {
  Tensor copy = Tensor::empty({view.shape.data(), static_cast<std::size_t>(view.rank)}, view.dtype);
  copy_elements(view, copy);
  return copy;
}

}  // namespace planted
