// Attention written down literally from its definition, in double, for small padded calls: what the tests compare with.
//
//   s_ij = scale <q_i,k_j> + beta_ij,   lse_i = log sum_{A(i)} exp(s_ij),   o_i = sum_{A(i)} exp(s_ij - lse_i) v_j
#pragma once

#include <vector>

#include "support.hpp"

namespace dsalt::faults {

struct Definition {
  std::vector<double> out, lse;  // row-major [B,Hq,Nq,Dv], [B,Hq,Nq]
  std::vector<double> absolute;  // sum_j P_ij |v_j|, shape of out: what rounding errors of out are measured by
  double largest_score = 0;      // largest scale * sum_t |q_t k_t|
};

/// Padded form without k_lengths and dropout.
Definition by_definition(const Call& call);

/// <dout, out> + <dlse, lse> of the call, by the definition.
double objective(const Call& call, const std::vector<double>& dout, const std::vector<double>& dlse);

/// Central differences of `objective` with respect to every element of the float64 tensor `x` of the call.
std::vector<double> finite_differences(const Call& call, const Tensor& x, const std::vector<double>& dout,
                                       const std::vector<double>& dlse, double step = 1e-5);

}  // namespace dsalt::faults
