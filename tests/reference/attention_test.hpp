// One attention call with everything it reads and everything it writes, for the attention tests.
#pragma once

#include "reference_test.hpp"

namespace dsalt::test {

struct AttentionCall {
  AttentionProblem problem;
  Tensor q, k, v, window, landmarks, lambda, cu_q, cu_k, k_lengths;  // inputs; absent ones stay empty
  Tensor dout, dlse;                                                 // arriving gradients; dout starts as ones
  Tensor out, lse, dq, dk, dv, dwindow, dlambda;                     // results, filled with NaN before each run

  AttentionInputs inputs() const {
    AttentionInputs in;
    in.q = q;
    in.k = k;
    in.v = v;
    in.window = window;
    in.landmarks = landmarks;
    in.landmark_log_weight = lambda;
    in.cu_seqlens_q = cu_q;
    in.cu_seqlens_k = cu_k;
    in.k_lengths = k_lengths;
    return in;
  }

  void forward() {
    Shape shape(q.view().shape.begin(), q.view().shape.begin() + q.view().rank);
    const Shape rows(shape.begin(), shape.end() - 1);
    shape.back() = v.view().shape[static_cast<std::size_t>(v.view().rank - 1)];
    out = filled(shape, quiet_nan, q.view().dtype);
    lse = filled(rows, quiet_nan, statistics_dtype(q.view().dtype));
    attention_forward(reference(), problem, inputs(), {out, lse});
  }

  void backward() {
    forward();
    if (!dout.present()) dout = filled(shape_of(out), 1, out.view().dtype);
    dq = like(q);
    dk = like(k);
    dv = like(v);
    AttentionGradients gradients{dq, dk, dv, {}, {}};
    if (window.present() && window.view().dtype != DType::i32) gradients.dwindow = dwindow = like(window);
    if (lambda.present()) gradients.dlandmark_log_weight = dlambda = like(lambda);
    // The stored out and lse are not looked at: NaN there must change nothing.
    attention_backward(reference(), problem, inputs(), {like(out), like(lse), dout, dlse}, gradients);
  }

  /// <dout, out> + <dlse, lse>, without the rows that see nothing.
  double objective() {
    forward();
    double sum = inner(out, dout);
    if (!dlse.present()) return sum;
    const Values weights = values_of(dlse), values = values_of(lse);
    for (std::size_t n = 0; n < values.size(); ++n)
      if (values[n] != -inf) sum += weights[n] * values[n];
    return sum;
  }

  static Shape shape_of(const TensorView& view) { return Shape(view.shape.begin(), view.shape.begin() + view.rank); }
};

/// B = H = D = Dv = 1: one number per token.
inline AttentionCall line_call(Mask mask, const Values& q, const Values& k, const Values& v, DType dtype = DType::f64) {
  AttentionCall call;
  call.problem.mask = mask;
  call.problem.scale = 1;
  const auto nq = static_cast<std::int64_t>(q.size()), nk = static_cast<std::int64_t>(k.size());
  call.q = tensor({1, 1, nq, 1}, q, dtype);
  call.k = tensor({1, 1, nk, 1}, k, dtype);
  call.v = tensor({1, 1, nk, 1}, v, dtype);
  return call;
}

}  // namespace dsalt::test
