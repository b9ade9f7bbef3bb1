// Network pieces around attention: RMSNorm, RoPE, SwiGLU, linear + cross-entropy, AdamW.
// Contract: docs/semantics.md, "Network pieces". "stat" is float64 when the main input is float64, else float32.
#pragma once

#include <cstdint>
#include <optional>

#include "dsalt/export.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt {

class Backend;

/// y = gamma x / sqrt(mean(x^2) + eps) over the last dimension.
struct RmsNormProblem {
  double eps = 1e-6;  // >= 0
};
struct RmsNormInputs {
  TensorView x;      // [..., d], any rank >= 1
  TensorView gamma;  // [d], dtype of x or stat
};
struct RmsNormGradients {  // an absent one is not computed
  TensorView dx, dgamma;
};
DSALT_API void rmsnorm_forward(Backend& backend, const RmsNormProblem& problem, const RmsNormInputs& inputs,
                               const TensorView& y);
DSALT_API void rmsnorm_backward(Backend& backend, const RmsNormProblem& problem, const RmsNormInputs& inputs,
                                const TensorView& dy, const RmsNormGradients& gradients);

/// Rotary position embedding, half-split pairs (t, t + D/2), angle pos * base^(-2t/D) / rope_scale in double; sin and
/// cos are rounded to float32 unless the tensor is float64.
struct RopeProblem {
  double base = 10000;        // > 0
  double rope_scale = 1;      // > 0
  std::int64_t position = 0;  // position of every sequence's first token, -2^53 to 2^53
};
struct RopeInputs {
  TensorView x;           // [B,H,N,D] or packed [R,H,D], D even
  TensorView positions;   // optional int32 [B] (packed: [S]): first position of each sequence, replaces `position`
  TensorView cu_seqlens;  // packed: int32 [S+1]; positions restart per sequence, rows past the last are not written
};
DSALT_API void rope_forward(Backend& backend, const RopeProblem& problem, const RopeInputs& inputs,
                            const TensorView& y);
/// The inverse rotation of dy. inputs.x may be absent here: only the shape of dy is used.
DSALT_API void rope_backward(Backend& backend, const RopeProblem& problem, const RopeInputs& inputs,
                             const TensorView& dy, const TensorView& dx);

/// y = silu(gate) * up, element by element.
struct SwigluInputs {
  TensorView gate, up;  // one shape and dtype, any rank
};
struct SwigluGradients {  // an absent one is not computed
  TensorView dgate, dup;
};
DSALT_API void swiglu_forward(Backend& backend, const SwigluInputs& inputs, const TensorView& y);
DSALT_API void swiglu_backward(Backend& backend, const SwigluInputs& inputs, const TensorView& dy,
                               const SwigluGradients& gradients);

/// Linear layer and loss in one: logits = hidden weight^T are never stored as a whole [R,V] matrix.
struct CrossEntropyProblem {
  double label_smoothing = 0;        // in [0,1]
  std::int64_t ignore_index = -100;  // rows with this label enter no term
};
struct CrossEntropyInputs {
  TensorView hidden;  // [R,d]
  TensorView weight;  // [V,d], dtype of hidden
  TensorView labels;  // int32 [R], each in [0,V) or ignore_index
};
struct CrossEntropyGradients {  // an absent one is not computed
  TensorView dhidden, dweight;
};
/// Mean over rows whose label is not ignored; all ignored: loss 0. loss: rank 0, stat.
DSALT_API void cross_entropy_forward(Backend& backend, const CrossEntropyProblem& problem,
                                     const CrossEntropyInputs& inputs, const TensorView& loss);
/// dloss: rank 0, stat.
DSALT_API void cross_entropy_backward(Backend& backend, const CrossEntropyProblem& problem,
                                      const CrossEntropyInputs& inputs, const TensorView& dloss,
                                      const CrossEntropyGradients& gradients);

/// m, v as usual; p <- p (1 - lr weight_decay) - lr mhat / (sqrt(vhat) + eps); scalars in double.
struct AdamWProblem {
  double lr = 0;                     // >= 0
  double beta1 = 0.9, beta2 = 0.95;  // in [0,1)
  double eps = 1e-8;                 // >= 0
  double weight_decay = 0;           // >= 0
  std::int64_t step = 1;             // first step is 1
};
struct AdamWInputs {
  TensorView param, grad, m, v;  // one shape; floating dtypes, float64 only all together
};
/// May be the input tensors themselves (in place).
struct AdamWOutputs {
  TensorView param, m, v;  // dtypes of the inputs of the same name
};
DSALT_API void adamw_step(Backend& backend, const AdamWProblem& problem, const AdamWInputs& inputs,
                          const AdamWOutputs& outputs);

}  // namespace dsalt
