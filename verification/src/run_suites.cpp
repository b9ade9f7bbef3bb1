// The table of suites, the selection of their cases, and the loop that runs them.
//
// A case passes when it ran, checked something and found nothing wrong. A backend that refuses a case (Unsupported) and
// a check that does not apply (Skip) are counted apart; any other exception is a failure that carries its words.
#include <fnmatch.h>

#include <algorithm>
#include <chrono>

#include "dsalt/errors.hpp"
#include "dsalt/verification/suites.hpp"
#include "dsalt/verification/text.hpp"
#include "suites/suite.hpp"

namespace dsalt::verification {
namespace {

struct SuiteEntry {
  SuiteInfo info;
  std::vector<Check> (*checks)();  // null: "text", which needs a file
};

const std::vector<SuiteEntry>& table() {
  static const std::vector<SuiteEntry> entries = {
      {{"equivalence", "every generated case on the backend, judged by the double definition"}, equivalence_checks},
      {{"gradients", "central differences of the definition in double, and the backend's gradients against it"},
       gradient_checks},
      {{"stability", "extreme logits, constant rows, poisoned padding, subnormal and very large numbers"},
       stability_checks},
      {{"determinism", "promised equal bytes: repeats, thread counts, batch, pack and padding, decode and prefill"},
       determinism_checks},
      {{"causality", "future tokens never change earlier rows under the causal policy, and do under the global one"},
       causality_checks},
      {{"identities", "equations between operations: windows, landmarks, merge, packs, heads, offsets, scales"},
       identity_checks},
      {{"text", "the whole pipeline on real text: windows, energies, landmarks, RoPE, attention, both policies"},
       nullptr},
  };
  return entries;
}

void require_known(const std::string& name) {
  std::string known;
  for (const SuiteEntry& entry : table()) {
    if (entry.info.name == name) return;
    known += (known.empty() ? "" : ", ") + entry.info.name;
  }
  throw InvalidArgument("suite: got \"" + name + "\", need one of " + known);
}

bool selected(const SuiteEntry& entry, const SuiteOptions& options) {
  if (!options.suites.empty())
    return std::find(options.suites.begin(), options.suites.end(), entry.info.name) != options.suites.end();
  return entry.checks != nullptr || !options.text_file.empty();
}

bool matches(const std::string& name, const SuiteOptions& options) {
  return fnmatch(options.case_glob.c_str(), name.c_str(), 0) == 0;
}

/// The checks that the options select, suite by suite.
struct Plan {
  struct Part {
    const SuiteEntry* suite;
    std::vector<Check> checks;            // empty for "text"
    std::vector<std::string> text_cases;  // names, for "text" only
    std::size_t size() const { return checks.size() + text_cases.size(); }
  };
  std::vector<Part> parts;

  std::size_t size() const {
    std::size_t total = 0;
    for (const Part& part : parts) total += part.size();
    return total;
  }
};

Plan make_plan(const SuiteOptions& options) {
  for (const std::string& name : options.suites) require_known(name);
  Plan plan;
  for (const SuiteEntry& entry : table()) {
    if (!selected(entry, options)) continue;
    Plan::Part part{&entry, {}, {}};
    if (entry.checks) {
      for (Check& check : entry.checks())
        if ((check.quick || !options.quick) && matches(check.name, options)) part.checks.push_back(std::move(check));
    } else {
      for (std::string& name : text_suite_cases(options.quick))
        if (matches(name, options)) part.text_cases.push_back(std::move(name));
    }
    plan.parts.push_back(std::move(part));
  }
  return plan;
}

Result run_check(const std::string& suite, const Check& check, Context& context) {
  Result result;
  result.suite = suite;
  result.name = check.name;
  result.backend = std::string(context.backend().name());
  Verdict verdict(result);
  const auto start = std::chrono::steady_clock::now();
  const auto end_with = [&](Status status, const char* why) {
    result.status = status;
    result.message = why;
  };
  try {
    check.run(context, verdict);
    verdict.conclude();
  } catch (const Skip& reason) {
    end_with(Status::skipped, reason.what());
  } catch (const Unsupported& reason) {
    end_with(Status::unsupported, reason.what());
  } catch (const BackendUnavailable&) {
    throw;
  } catch (const std::exception& error) {
    end_with(Status::failed, error.what());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace

std::string_view name_of(Status status) {
  switch (status) {
    case Status::passed: return "passed";
    case Status::failed: return "failed";
    case Status::unsupported: return "unsupported";
    case Status::skipped: return "skipped";
  }
  return "unknown";
}

std::unique_ptr<Backend> make_backend_under_test(const SuiteOptions& options) {
  if (options.backend_factory) return options.backend_factory(options.backend_options);
  return make_backend(options.backend, options.backend_options);
}

const std::vector<SuiteInfo>& suites() {
  static const std::vector<SuiteInfo> list = [] {
    std::vector<SuiteInfo> made;
    for (const SuiteEntry& entry : table()) made.push_back(entry.info);
    return made;
  }();
  return list;
}

std::vector<std::pair<std::string, std::string>> list_cases(const SuiteOptions& options) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Plan::Part& part : make_plan(options).parts) {
    for (const Check& check : part.checks) names.emplace_back(part.suite->info.name, check.name);
    for (const std::string& name : part.text_cases) names.emplace_back(part.suite->info.name, name);
  }
  return names;
}

std::vector<Result> run_suites(const SuiteOptions& options) {
  const Plan plan = make_plan(options);
  const std::size_t total = plan.size();
  Context context(options);
  std::vector<Result> results;
  for (const Plan::Part& part : plan.parts) {
    const std::string& suite = part.suite->info.name;
    for (const Check& check : part.checks) {
      if (options.progress) options.progress(suite, check.name, results.size(), total);
      results.push_back(run_check(suite, check, context));
    }
    if (part.suite->checks != nullptr) continue;
    SuiteOptions of_text = options;
    if (options.progress)
      of_text.progress = [&, before = results.size()](std::string_view name, std::string_view which, std::size_t done,
                                                      std::size_t) {
        options.progress(name, which, before + done, total);
      };
    std::vector<Result> of_file = run_text_suite(of_text);
    std::move(of_file.begin(), of_file.end(), std::back_inserter(results));
  }
  return results;
}

Totals count(const std::vector<Result>& results) {
  Totals totals;
  for (const Result& result : results) switch (result.status) {
      case Status::passed: ++totals.passed; break;
      case Status::failed: ++totals.failed; break;
      case Status::unsupported: ++totals.unsupported; break;
      case Status::skipped: ++totals.skipped; break;
    }
  return totals;
}

}  // namespace dsalt::verification
