// Three steps. "definition/...": the double definition's gradients against central differences of its own forward pass,
// every element of every differentiable input on small cases, random directions on large ones:
//
//   L(inputs) = sum over outputs of <upstream, output>,     dL/dt of L(input + t direction) = <gradient, direction>
//
// Then the backend's gradients of the same case in each dtype against that definition. "differences/...": where it runs
// float64, also its gradients against differences of its own forward pass, in random directions.
#include <cmath>
#include <sstream>

#include "internal/elements.hpp"
#include "suites/finite_difference.hpp"
#include "suites/gradient_cases.hpp"
#include "suites/suite.hpp"

namespace dsalt::verification {
namespace {

using Direction64 = std::map<std::string, std::vector<double>>;  // per input

double dot(const TensorView& a, const TensorView& b) {
  double sum = 0;
  const auto add = [&](std::int64_t at, std::int64_t other) {
    const double x = internal::load_double(a, at), y = internal::load_double(b, other);
    if (std::isfinite(x) && std::isfinite(y)) sum += x * y;  // lse of an empty row, gradients in an unread tail
  };
  internal::for_each_element(add, a, b);
  return sum;
}

/// The scalar function that is differentiated, of a float64 case.
class Loss {
 public:
  Loss(Backend& backend, const Case& c) : backend_(backend), flow_(flow_of(c.op)), forward_(c) {
    for (const auto& [output, upstream] : flow_.upstream)
      if (const auto found = c.inputs.find(upstream); found != c.inputs.end()) {
        upstream_[output] = found->second;
        forward_.inputs.erase(upstream);
      }
    if (forward_.op == Operation::select_landmarks) lists_ = evaluate(backend_, forward_).at("landmarks");
  }

  /// L at the case with every element of the named inputs moved by t times the direction.
  double at(const Direction64& direction, double t) const {
    Case moved = forward_;
    for (const auto& [name, step] : direction) {
      const TensorView source = forward_.inputs.at(name);
      Tensor copy = Tensor::empty({source.shape.data(), static_cast<std::size_t>(source.rank)}, DType::f64);
      copy_elements(source, copy);
      for (std::size_t n = 0; n < step.size(); ++n) copy.view().at<double>(0)[n] += t * step[n];
      moved.inputs[name] = copy;
    }
    const Tensors outputs = evaluate(backend_, moved);
    if (lists_.present() && count_differences(outputs.at("landmarks"), lists_) > 0)
      throw CheckFailure("a finite step changes the selection, which has no derivative: the case is not smooth");
    double sum = 0;
    for (const auto& [output, upstream] : upstream_) sum += dot(upstream, outputs.at(output));
    return sum;
  }

 private:
  Backend& backend_;
  Flow flow_;
  Case forward_;
  Tensors upstream_;
  Tensor lists_;
};

/// Steps stay within the smooth neighbourhood of the windows (see gradient_cases.cpp) and of the selection.
double step_for(const std::string& input) {
  if (input == "window") return 0x1p-4;
  if (input == "nx" || input == "nv") return 0x1p-6;
  return 0x1p-4;
}

/// One derivative against <gradient, direction>, whose terms have the absolute sum `size`.
struct Difference {
  double worst = 0;  // error / bound
  std::int64_t count = 0;
  std::string failure;

  void judge(const std::string& what, const Derivative& numeric, double analytic, double size) {
    ++count;
    // what the differences themselves leave open, and the cancellation in them: L is a double
    const double bound = 8 * numeric.error + 1e-9 * size;
    const double error = std::fabs(numeric.value - analytic);
    const double ratio = error == 0 ? 0 : error / bound;
    if (!(ratio <= worst)) worst = ratio;
    const bool settled = numeric.error <= 1e-6 * size;
    if ((settled && error <= bound) || !failure.empty()) return;
    std::ostringstream text;
    text.precision(10);
    text << what << ": " << (settled ? "" : "differences do not settle, ") << "analytic " << analytic << ", numeric "
         << numeric.value << " +- " << numeric.error;
    failure = text.str();
  }
};

/// Elements that some step can change: finite ones (tails, unread weights and unused keys are NaN).
std::vector<bool> movable(const TensorView& input) {
  std::vector<bool> finite;
  internal::for_each_element(
      [&](std::int64_t at) { finite.push_back(std::isfinite(internal::load_double(input, at))); }, input);
  return finite;
}

std::vector<double> as_vector(const TensorView& view) {
  std::vector<double> data;
  internal::for_each_element([&](std::int64_t at) { data.push_back(internal::load_double(view, at)); }, view);
  return data;
}

void difference_elements(const Loss& loss, const std::string& input, const std::vector<bool>& moves,
                         const std::vector<double>& gradient, Difference& result) {
  double size = 0;
  for (const double g : gradient) size = std::fmax(size, std::fabs(g));
  for (std::size_t n = 0; n < gradient.size(); ++n) {
    if (!moves[n]) continue;
    Direction64 direction{{input, std::vector<double>(gradient.size(), 0)}};
    direction[input][n] = 1;
    const auto numeric = central_difference([&](double t) { return loss.at(direction, t); }, step_for(input));
    result.judge("element " + std::to_string(n), numeric, gradient[n], size);
  }
}

void difference_directions(const Loss& loss, const Case& c, const std::string& input, const std::vector<bool>& moves,
                           const std::vector<double>& gradient, Difference& result) {
  constexpr int directions = 3;
  for (int which = 0; which < directions; ++which) {
    const RandomValues random(c.name, input + "/direction" + std::to_string(which));
    std::vector<double> step(gradient.size(), 0);
    double along = 0, size = 0;
    for (std::size_t n = 0; n < step.size(); ++n) {
      if (!moves[n]) continue;
      step[n] = 2 * random.uniform(static_cast<std::int64_t>(n)) - 1;
      along += step[n] * gradient[n];
      size += std::fabs(step[n] * gradient[n]);
    }
    const Direction64 direction{{input, step}};
    const auto numeric = central_difference([&](double t) { return loss.at(direction, t); }, step_for(input) / 4);
    result.judge("direction " + std::to_string(which), numeric, along, size);
  }
}

/// Gradients of a backend against differences of its own forward pass.
void check_differences(const GradientCase& which, Backend& backend, bool every_element, Verdict& verdict) {
  const Case c = which.make(DType::f64);
  const Tensors outputs = evaluate(backend, c);
  const Loss loss(backend, c);
  for (const auto& [input, gradient] : flow_of(c.op).gradients) {
    const auto found = outputs.find(gradient);
    if (found == outputs.end()) continue;
    const TensorView view = c.inputs.at(input);
    const std::vector<double> analytic = as_vector(found->second);
    Difference difference;
    if (every_element)
      difference_elements(loss, input, movable(view), analytic, difference);
    else
      difference_directions(loss, c, input, movable(view), analytic, difference);
    Comparison comparison;
    comparison.count = difference.count;
    comparison.passed = difference.count > 0 && difference.failure.empty();
    comparison.message = difference.count == 0 ? "no element could be moved" : difference.failure;
    comparison.max_ratio = difference.worst;
    comparison.max_factor = 1;
    verdict.add(gradient, std::move(comparison));
  }
}

void check_definition(const GradientCase& which, Context& context, Verdict& verdict) {
  verdict.ran_on(context.reference().name());
  check_differences(which, context.reference(), which.small, verdict);
}

void check_backend(const GradientCase& which, DType dtype, Context& context, Verdict& verdict) {
  const Case c = which.make(dtype);
  const Tensors actual = evaluate(context.backend(), c);
  const Flow flow = flow_of(c.op);
  for (auto& [output, comparison] : compare_outputs(c, actual, make_yardstick(c)))
    for (const auto& [input, gradient] : flow.gradients)
      if (gradient == output) verdict.add(output, std::move(comparison));
}

}  // namespace

std::vector<Check> gradient_checks() {
  std::vector<Check> checks;
  for (const GradientCase& which : gradient_cases())
    checks.push_back({"definition/" + which.name_in(DType::f64), true,
                      [&which](Context& context, Verdict& verdict) { check_definition(which, context, verdict); }});
  for (const GradientCase& which : gradient_cases())
    for (const DType dtype : which.op == Operation::select_landmarks ? wide_dtypes : every_dtype)
      checks.push_back({which.name_in(dtype), true, [&which, dtype](Context& context, Verdict& verdict) {
                          check_backend(which, dtype, context, verdict);
                        }});
  for (const GradientCase& which : gradient_cases())
    checks.push_back({"differences/" + which.name_in(DType::f64), true, [&which](Context& context, Verdict& verdict) {
                        check_differences(which, context.backend(), false, verdict);
                      }});
  return checks;
}

}  // namespace dsalt::verification
