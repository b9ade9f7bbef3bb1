// What the tests of known faults share: tensors from lists of numbers, one call that runs attention both ways, and a
// walk over every backend that can run here.
//
// Results are compared with values computed from the definition in double. Outputs are filled with NaN before each
// call, so an element that an operation forgets to write fails.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "dsalt/dsalt.hpp"

namespace dsalt::faults {

inline constexpr double nan = __builtin_nan("");
inline constexpr double infinity = __builtin_inf();

using Shape = std::vector<std::int64_t>;

/// Contiguous host tensor; every value is rounded once to `dtype`. A single value fills the tensor.
Tensor tensor(const Shape& shape, const std::vector<double>& values, DType dtype = DType::f32);
Tensor filled(const Shape& shape, double value, DType dtype = DType::f32);
Tensor indices(const Shape& shape, const std::vector<std::int32_t>& values);
/// Seeded values in [-size, size].
Tensor random_tensor(const Shape& shape, std::uint64_t seed, DType dtype = DType::f32, double size = 1);
/// 0, 1, ..., n-1.
std::vector<double> counting(std::int64_t n);

/// Row-major elements.
std::vector<double> values(const TensorView& view);
std::vector<std::int32_t> integers(const TensorView& view);
/// A contiguous copy of the same dtype.
Tensor contiguous(const TensorView& view);
/// Equal shape, dtype and bytes, element by element, whatever the strides.
bool same_bytes(const TensorView& a, const TensorView& b);

/// Unit roundoff of one rounding to the dtype: 2^-53, 2^-24, 2^-8, 2^-11.
double unit_roundoff(DType dtype);
/// |actual - expected| <= u_out |expected| + slack u_acc max(1, |expected|) for each element, u_acc being 2^-53 for
/// float64 and 2^-24 otherwise; infinities and lengths must agree, NaN fails. Reports the first element that does not.
void check_near(const TensorView& actual, const std::vector<double>& expected, double slack = 16);
/// The slack of one rounding of the weights to a 16-bit main dtype, which the contract allows before the product that
/// consumes them; for values of order 1.
double weight_slack(DType dtype);
/// Every element equals `value` exactly.
void check_all(const TensorView& actual, double value);

/// Everything an attention call can be given; absent tensors stay absent.
struct Call {
  AttentionProblem problem;
  Tensor q, k, v, window, landmarks, landmark_log_weight, cu_seqlens_q, cu_seqlens_k, k_lengths;
  Tensor dout, dlse;  // dout present: the gradients are computed too; dlse alone counts as dout = 0

  AttentionInputs inputs() const;
};

/// The call with B = H = D = 1: q of length nq and k of length nk all 0, v given, scale 1, dout all 1.
Call one_head(Mask mask, std::int64_t nq, const std::vector<double>& v, DType dtype = DType::f32);

struct Result {
  Tensor out, lse, dq, dk, dv, dwindow, dlandmark_log_weight;
};
/// Forward, and backward when the call has dout or dlse. Output tensors start filled with `unwritten`.
Result run(Backend& backend, const Call& call, double unwritten = nan);
/// Names of the outputs whose bytes differ; empty when all are equal.
std::string differing(const Result& a, const Result& b);

inline const std::vector<DType> all_floating = {DType::f64, DType::f32, DType::bf16, DType::f16};
inline const std::vector<DType> narrow_floating = {DType::bf16, DType::f16};

/// Names of the backends that are available and compute in host memory; fails when "reference" or "cpu" is missing.
std::vector<std::string> host_backends();
/// Calls body(backend, dtype) for every host backend and each dtype that it supports for `operation`, both directions.
/// What ran is counted and printed at the end of the program; nothing having run is a failure.
void on_every_backend(Operation operation, const std::vector<DType>& dtypes,
                      const std::function<void(Backend&, DType)>& body);

}  // namespace dsalt::faults
