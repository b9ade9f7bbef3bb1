// Derivatives of a function of one variable by central differences that choose their own step.
#pragma once

#include <functional>

namespace dsalt::verification {

struct Derivative {
  double value = 0;
  double error = 0;  // estimate: how much the last extrapolations disagreed; infinite when they never settled
};

/// f'(0). Halves the step from `step`, extrapolates in h^2 (Richardson), and keeps the entry whose neighbours agree
/// best: large steps lose to truncation, small ones to cancellation, and the tableau shows where neither does.
Derivative central_difference(const std::function<double(double)>& f, double step);

}  // namespace dsalt::verification
