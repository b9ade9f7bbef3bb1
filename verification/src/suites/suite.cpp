#include "suites/suite.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {
namespace {

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.rank == b.rank &&
         std::equal(a.shape.begin(), a.shape.begin() + std::max(a.rank, 0), b.shape.begin());
}

std::vector<std::int64_t> index_of(std::int64_t linear, const TensorView& view) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(view.rank));
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    index[static_cast<std::size_t>(dim)] = linear % view.shape[static_cast<std::size_t>(dim)];
    linear /= view.shape[static_cast<std::size_t>(dim)];
  }
  return index;
}

std::string call_name(Operation op, Direction direction) {
  return std::string(name_of(op)) + (direction == Direction::forward ? " forward" : " backward");
}

double element_at(const TensorView& view, const std::vector<std::int64_t>& index) {
  std::int64_t offset = 0;
  for (std::size_t dim = 0; dim < index.size(); ++dim) offset += index[dim] * view.strides[dim];
  return internal::load_double(view, offset);
}

}  // namespace

Context::Context(const SuiteOptions& options)
    : options_(options), backend_(make_backend_under_test(options)), reference_(make_backend("reference")) {}

std::unique_ptr<Backend> Context::with_threads(int threads) const {
  SuiteOptions options = options_;
  options.backend = std::string(backend_->name());  // "auto" stays what it chose
  options.backend_options.threads = threads;
  return make_backend_under_test(options);
}

bool Context::promises(bool Reproducibility::*promise, Operation op, Direction direction) {
  if (backend_->reproducibility(op, direction).*promise) return true;
  const bool owed = promise == &Reproducibility::run || promise == &Reproducibility::batch;
  if (options_.backend_options.deterministic && owed)
    throw CheckFailure(std::string(backend_->name()) + " is deterministic and does not promise " +
                       (promise == &Reproducibility::run ? "run" : "batch") + " for " + call_name(op, direction));
  return false;
}

void Context::require_promise(bool Reproducibility::*promise, std::string_view called, Operation op,
                              Direction direction) {
  if (promises(promise, op, direction)) return;
  throw Skip(std::string(backend_->name()) + " does not promise reproducibility of kind \"" + std::string(called) +
             "\" for " + call_name(op, direction));
}

std::int64_t count_differences(const TensorView& a, const TensorView& b, std::int64_t* first) {
  if (!same_shape(a, b)) throw CheckFailure("shapes differ: " + to_string(a) + " and " + to_string(b));
  const std::size_t bytes = size_of(a.dtype);
  std::int64_t count = 0, element = 0;
  internal::for_each_element(
      [&](std::int64_t at, std::int64_t other) {
        const auto* left = static_cast<const std::byte*>(a.data) + at * static_cast<std::int64_t>(bytes);
        const auto* right = static_cast<const std::byte*>(b.data) + other * static_cast<std::int64_t>(bytes);
        if (std::memcmp(left, right, bytes) != 0 && count++ == 0 && first) *first = element;
        ++element;
      },
      a, b);
  return count;
}

void Verdict::add(std::string output, Comparison comparison) {
  ++checked_;
  if (!comparison.passed && first_failure_.empty()) first_failure_ = output + ": " + comparison.message;
  result_.outputs.push_back({std::move(output), std::move(comparison)});
}

void Verdict::compare_with(const Yardstick& yardstick, const Case& c, const Tensors& actual, std::string_view label) {
  for (auto& [output, comparison] : compare_outputs(c, actual, yardstick))
    add(label.empty() ? output : std::string(label) + " " + output, std::move(comparison));
}

void Verdict::compare_with_definition(const Case& c, const Tensors& actual, std::string_view label) {
  compare_with(make_yardstick(c), c, actual, label);
}

void Verdict::equal_bits(std::string_view what, const TensorView& actual, const TensorView& expected) {
  Comparison comparison;
  comparison.count = actual.size();
  if (!same_shape(actual, expected)) {
    comparison.message = "got " + to_string(actual) + ", need " + to_string(expected);
    return add(std::string(what), std::move(comparison));
  }
  if (comparison.count == 0) return;
  std::int64_t first = 0;
  const std::int64_t differing = count_differences(actual, expected, &first);
  comparison.passed = differing == 0;
  if (differing > 0) {
    comparison.worst_index = index_of(first, actual);
    comparison.worst_actual = element_at(actual, comparison.worst_index);
    comparison.worst_reference = element_at(expected, comparison.worst_index);
    std::ostringstream text;
    text << differing << " of " << comparison.count << " elements differ in their bits";
    comparison.message = text.str();
  }
  add(std::string(what), std::move(comparison));
}

void Verdict::equal_bits(std::string_view what, const Tensors& actual, const Tensors& expected) {
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end())
      require(false, std::string(what) + " " + name + ": the output is missing");
    else
      equal_bits(std::string(what) + " " + name, found->second, tensor);
  }
}

void Verdict::require(bool holds, std::string_view message) {
  ++checked_;
  if (!holds && first_failure_.empty()) first_failure_ = message;
}

void Verdict::conclude() const {
  result_.status = Status::passed;
  if (!first_failure_.empty()) {
    result_.status = Status::failed;
    result_.message = first_failure_;
  } else if (checked_ == 0) {
    result_.status = Status::failed;
    result_.message = "nothing was checked";
  }
}

}  // namespace dsalt::verification
