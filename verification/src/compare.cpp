// error / unit element by element, unit = condition + u_out |reference| + tiny; see compare.hpp for what must hold.
//
// An element whose condition and reference are both 0 has no term that could round: it must be exactly 0.
#include "dsalt/verification/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"

namespace dsalt::verification {
namespace {

constexpr std::int64_t sample_size = 4096;

/// Magnitudes from here on round to infinity.
double overflow_threshold(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::numeric_limits<double>::infinity();
    case DType::f32: return 0x1.ffffffp127;
    case DType::bf16: return 0x1.ffp127;
    case DType::f16: return 65520;
    case DType::i32: break;
  }
  throw InvalidArgument("compare: actual is int32; lists are compared by equivalence of selection");
}

std::vector<std::int64_t> index_of(std::int64_t linear, const TensorView& view) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(view.rank));
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    index[static_cast<std::size_t>(dim)] = linear % view.shape[dim];
    linear /= view.shape[dim];
  }
  return index;
}

bool same_shape(const TensorView& a, const TensorView& b) {
  return a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + std::max(a.rank, 0), b.shape.begin());
}

/// How the special values of one element relate: the faults that are looked for before any error is.
enum class Special {
  none,
  matches,
  nan_in_actual,
  nan_missing,
  infinity_wrong,
  unexpected_infinity,
  condition_not_finite
};

Special classify(double actual, double reference, double unit, double bound, double overflow) {
  if (std::isnan(reference)) return std::isnan(actual) ? Special::matches : Special::nan_missing;
  if (std::isnan(actual)) return Special::nan_in_actual;
  if (std::isinf(reference)) return actual == reference ? Special::matches : Special::infinity_wrong;
  if (!std::isfinite(unit)) return Special::condition_not_finite;
  const double magnitude = std::fabs(reference);
  const bool is_that_infinity = std::isinf(actual) && std::signbit(actual) == std::signbit(reference);
  if (magnitude - bound >= overflow) return is_that_infinity ? Special::matches : Special::infinity_wrong;
  if (!std::isinf(actual)) return Special::none;
  return is_that_infinity && magnitude + bound >= overflow ? Special::matches : Special::unexpected_infinity;
}

const char* words(Special fault) {
  switch (fault) {
    case Special::nan_in_actual: return "NaN where the reference is a number";
    case Special::nan_missing: return "a number where the reference is NaN";
    case Special::infinity_wrong: return "not the infinity that the reference has";
    case Special::unexpected_infinity: return "infinite where the reference is finite";
    case Special::condition_not_finite: return "judged by a condition that is not finite";
    case Special::none:
    case Special::matches: break;
  }
  return "";
}

struct Worst {
  std::int64_t element = -1;
  double ratio = -1, actual = 0, reference = 0, bound = 0;
};

struct Faults {
  std::int64_t count = 0;
  Special first = Special::none;
  Worst where;
};

void describe_position_faults(const Faults& faults, Comparison& result) {
  std::ostringstream text;
  text << faults.count << " of " << result.count << (faults.count == 1 ? " element is " : " elements are ")
       << words(faults.first);
  result.message = text.str();
}

void describe_errors(Comparison& result) {
  std::ostringstream text;
  text.precision(4);
  if (!(result.max_ratio <= result.max_factor))
    text << "worst error is " << result.max_ratio << " units, at most " << result.max_factor << " are rounding";
  else
    text << "RMS error is " << result.rms_ratio << " units, at most " << result.rms_factor << " is rounding";
  result.message = text.str();
}

}  // namespace

Comparison compare(const TensorView& actual, const TensorView& reference, const TensorView& condition,
                   const Tolerance& tolerance) {
  Comparison result;
  result.max_factor = tolerance.max_factor;
  result.rms_factor = tolerance.rms_factor;
  if (!actual.present() || !reference.present() || !condition.present()) {
    result.message = actual.present() ? "there is no reference or condition to compare with" : "the output is absent";
    return result;
  }
  const auto shape_of = [](const TensorView& view) {
    return shape_string({view.shape.data(), static_cast<std::size_t>(view.rank)});
  };
  if (!same_shape(actual, reference) || !same_shape(actual, condition)) {
    result.message = "shape is " + shape_of(actual) + ", the reference is " + shape_of(reference) +
                     " and its condition " + shape_of(condition);
    return result;
  }
  result.count = actual.size();
  if (result.count == 0) {
    result.message = "nothing to compare: the output is empty";
    return result;
  }

  const double overflow = overflow_threshold(actual.dtype);
  const std::int64_t stride = (result.count + sample_size - 1) / sample_size;
  Worst worst;
  Faults faults;
  double squares = 0;
  std::int64_t rounded = 0;  // elements that have something to round: the others would only dilute the RMS
  std::int64_t element = 0;
  internal::for_each_element(
      [&](std::int64_t a, std::int64_t r, std::int64_t e) {
        const double x = internal::load_double(actual, a);
        const double y = internal::load_double(reference, r);
        const double absolute_terms = internal::load_double(condition, e);
        const bool exact = absolute_terms == 0 && y == 0;
        const double unit = exact ? 0 : absolute_terms + tolerance.u_out * std::fabs(y) + tolerance.tiny;
        const double bound = tolerance.max_factor * unit;
        const Special special = classify(x, y, unit, bound, overflow);
        if (special == Special::none) {
          const double error = std::fabs(x - y);
          const double ratio = error == 0 ? 0 : error / unit;
          if (ratio > worst.ratio) worst = {element, ratio, x, y, bound};
          squares += ratio * ratio;
          rounded += exact && error == 0 ? 0 : 1;
          if (element % stride == 0) result.ratios.push_back(static_cast<float>(ratio));
        } else if (special != Special::matches && faults.count++ == 0) {
          faults.first = special;
          faults.where = {element, 0, x, y, bound};
        }
        ++element;
      },
      actual, reference, condition);

  // an RMS over few elements is hardly tighter than their maximum
  result.rms_factor =
      std::min(tolerance.max_factor,
               tolerance.rms_factor * (1 + 3 / std::sqrt(static_cast<double>(std::max<std::int64_t>(rounded, 1)))));
  result.max_ratio = std::max(worst.ratio, 0.0);
  result.rms_ratio = rounded > 0 ? std::sqrt(squares / static_cast<double>(rounded)) : 0;
  const Worst& shown = faults.count > 0 ? faults.where : worst;
  if (shown.element >= 0) {
    result.worst_index = index_of(shown.element, actual);
    result.worst_actual = shown.actual;
    result.worst_reference = shown.reference;
    result.worst_bound = shown.bound;
  }
  if (faults.count > 0) {
    result.max_ratio = std::numeric_limits<double>::infinity();
    describe_position_faults(faults, result);
  } else if (!(result.max_ratio <= tolerance.max_factor) || !(result.rms_ratio <= result.rms_factor)) {
    describe_errors(result);
  } else {
    result.passed = true;
  }
  return result;
}

}  // namespace dsalt::verification
