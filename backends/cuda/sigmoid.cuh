// sigma(z) and log sigma(z), stable at both ends; 1 - sigma(z) is sigma(-z).
#pragma once

#include <cmath>

namespace dsalt::cuda {

template <class Real>
__device__ inline Real sigmoid(Real z) {
  const Real e = exp(-fabs(z));
  return (z >= 0 ? Real{1} : e) / (1 + e);
}

template <class Real>
__device__ inline Real log_sigmoid(Real z) {
  return (z < 0 ? z : Real{0}) - log1p(exp(-fabs(z)));
}

}  // namespace dsalt::cuda
