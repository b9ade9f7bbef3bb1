#include "suites/guarded_backend.hpp"

#include "device_memory.hpp"
#include "suites/guards.hpp"

namespace dsalt::verification {
namespace {

/// Rows that a packed tensor with these sequence starts has written; every row when it is not packed.
std::int64_t written_rows(Backend& backend, const TensorView& cu_seqlens) {
  if (!cu_seqlens.present()) return Guards::all_rows;
  const Tensor last = downloaded(backend, cu_seqlens.select(0, cu_seqlens.shape[0] - 1));
  return *last.view().at<std::int32_t>(0);
}

AttentionInputs guarded(const AttentionInputs& inputs, Guards& guards) {
  AttentionInputs in = inputs;
  guards.input(in.q, "q");
  guards.input(in.k, "k");
  guards.input(in.v, "v");
  guards.input(in.window, "window");
  guards.input(in.landmarks, "landmarks");
  guards.input(in.landmark_log_weight, "landmark_log_weight");
  guards.input(in.cu_seqlens_q, "cu_seqlens_q");
  guards.input(in.cu_seqlens_k, "cu_seqlens_k");
  guards.input(in.k_lengths, "k_lengths");
  guards.input(in.page_table, "page_table");
  return in;
}

}  // namespace

void GuardedBackend::attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                       const AttentionOutputs& outputs) {
  Guards guards(target(), "attention_forward");
  const AttentionInputs in = guarded(inputs, guards);
  AttentionOutputs out = outputs;
  const std::int64_t rows = written_rows(target(), inputs.cu_seqlens_q);
  guards.output(out.out, "out", rows);
  guards.output(out.lse, "lse", rows);
  target().attention_forward(problem, in, out);
  guards.finish();
}

void GuardedBackend::attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                        const AttentionSaved& saved, const AttentionGradients& gradients) {
  Guards guards(target(), "attention_backward");
  const AttentionInputs in = guarded(inputs, guards);
  AttentionSaved kept = saved;
  guards.input(kept.out, "out");
  guards.input(kept.lse, "lse");
  guards.input(kept.dout, "dout");
  guards.input(kept.dlse, "dlse");
  AttentionGradients g = gradients;
  const std::int64_t q_rows = written_rows(target(), inputs.cu_seqlens_q),
                     k_rows = written_rows(target(), inputs.cu_seqlens_k);
  guards.output(g.dq, "dq", q_rows);
  guards.output(g.dk, "dk", k_rows);
  guards.output(g.dv, "dv", k_rows);
  guards.output(g.dwindow, "dwindow", q_rows);
  guards.output(g.dlandmark_log_weight, "dlandmark_log_weight");
  target().attention_backward(problem, in, kept, g);
  guards.finish();
}

void GuardedBackend::merge(const MergeInputs& inputs, const AttentionOutputs& outputs) {
  Guards guards(target(), "merge");
  MergeInputs in = inputs;
  guards.input(in.out1, "out1");
  guards.input(in.lse1, "lse1");
  guards.input(in.out2, "out2");
  guards.input(in.lse2, "lse2");
  AttentionOutputs out = outputs;
  guards.output(out.out, "out");
  guards.output(out.lse, "lse");
  target().merge(in, out);
  guards.finish();
}

void GuardedBackend::window_sizes_forward(const WindowProblem& problem, const WindowInputs& inputs,
                                          const TensorView& window) {
  Guards guards(target(), "window_sizes_forward");
  WindowInputs in = inputs;
  TensorView out = window;
  guards.input(in.x, "x");
  guards.input(in.weight, "weight");
  guards.input(in.bias, "bias");
  guards.output(out, "window");
  target().window_sizes_forward(problem, in, out);
  guards.finish();
}

void GuardedBackend::window_sizes_backward(const WindowProblem& problem, const WindowInputs& inputs,
                                           const TensorView& dwindow, const WindowGradients& gradients) {
  Guards guards(target(), "window_sizes_backward");
  WindowInputs in = inputs;
  TensorView upstream = dwindow;
  WindowGradients g = gradients;
  guards.input(in.x, "x");
  guards.input(in.weight, "weight");
  guards.input(in.bias, "bias");
  guards.input(upstream, "dwindow");
  guards.output(g.dx, "dx");
  guards.output(g.dweight, "dweight");
  guards.output(g.dbias, "dbias");
  target().window_sizes_backward(problem, in, upstream, g);
  guards.finish();
}

void GuardedBackend::energies_forward(const EnergyInputs& inputs, const Energies& energies) {
  Guards guards(target(), "energies_forward");
  EnergyInputs in = inputs;
  Energies out = energies;
  guards.input(in.x, "x");
  guards.input(in.v, "v");
  guards.output(out.nx, "nx");
  guards.output(out.nv, "nv");
  target().energies_forward(in, out);
  guards.finish();
}

void GuardedBackend::energies_backward(const EnergyInputs& inputs, const Energies& energy_gradients,
                                       const EnergyGradients& gradients) {
  Guards guards(target(), "energies_backward");
  EnergyInputs in = inputs;
  Energies upstream = energy_gradients;
  EnergyGradients g = gradients;
  guards.input(in.x, "x");
  guards.input(in.v, "v");
  guards.input(upstream.nx, "dnx");
  guards.input(upstream.nv, "dnv");
  guards.output(g.dx, "dx");
  guards.output(g.dv, "dv");
  target().energies_backward(in, upstream, g);
  guards.finish();
}

void GuardedBackend::select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                              const SelectionOutputs& outputs) {
  Guards guards(target(), "select_landmarks_forward");
  SelectionInputs in = inputs;
  SelectionOutputs out = outputs;
  guards.input(in.nx, "nx");
  guards.input(in.nv, "nv");
  guards.input(in.alpha_raw, "alpha_raw");
  guards.input(in.cu_seqlens, "cu_seqlens");
  guards.output(out.landmarks, "landmarks");
  guards.output(out.score, "score");
  guards.output(out.landmark_log_weight, "landmark_log_weight");
  target().select_landmarks_forward(problem, in, out);
  guards.finish();
}

void GuardedBackend::select_landmarks_backward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                               const SelectionSaved& saved, const SelectionGradients& gradients) {
  Guards guards(target(), "select_landmarks_backward");
  SelectionInputs in = inputs;
  SelectionSaved kept = saved;
  SelectionGradients g = gradients;
  guards.input(in.nx, "nx");
  guards.input(in.nv, "nv");
  guards.input(in.alpha_raw, "alpha_raw");
  guards.input(in.cu_seqlens, "cu_seqlens");
  guards.input(kept.landmarks, "landmarks");
  guards.input(kept.dlandmark_log_weight, "dlandmark_log_weight");
  const std::int64_t rows = written_rows(target(), inputs.cu_seqlens);
  guards.output(g.dnx, "dnx", rows);
  guards.output(g.dnv, "dnv", rows);
  guards.output(g.dalpha_raw, "dalpha_raw");
  target().select_landmarks_backward(problem, in, kept, g);
  guards.finish();
}

void GuardedBackend::rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& y) {
  Guards guards(target(), "rmsnorm_forward");
  RmsNormInputs in = inputs;
  TensorView out = y;
  guards.input(in.x, "x");
  guards.input(in.gamma, "gamma");
  guards.output(out, "y");
  target().rmsnorm_forward(problem, in, out);
  guards.finish();
}

void GuardedBackend::rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& dy,
                                      const RmsNormGradients& gradients) {
  Guards guards(target(), "rmsnorm_backward");
  RmsNormInputs in = inputs;
  TensorView upstream = dy;
  RmsNormGradients g = gradients;
  guards.input(in.x, "x");
  guards.input(in.gamma, "gamma");
  guards.input(upstream, "dy");
  guards.output(g.dx, "dx");
  guards.output(g.dgamma, "dgamma");
  target().rmsnorm_backward(problem, in, upstream, g);
  guards.finish();
}

void GuardedBackend::rope_forward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) {
  Guards guards(target(), "rope_forward");
  RopeInputs in = inputs;
  TensorView out = y;
  guards.input(in.x, "x");
  guards.input(in.positions, "positions");
  guards.input(in.cu_seqlens, "cu_seqlens");
  guards.output(out, "y", written_rows(target(), inputs.cu_seqlens));
  target().rope_forward(problem, in, out);
  guards.finish();
}

void GuardedBackend::rope_backward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& dy,
                                   const TensorView& dx) {
  Guards guards(target(), "rope_backward");
  RopeInputs in = inputs;
  TensorView upstream = dy, out = dx;
  guards.input(in.x, "x");
  guards.input(in.positions, "positions");
  guards.input(in.cu_seqlens, "cu_seqlens");
  guards.input(upstream, "dy");
  guards.output(out, "dx", written_rows(target(), inputs.cu_seqlens));
  target().rope_backward(problem, in, upstream, out);
  guards.finish();
}

void GuardedBackend::swiglu_forward(const SwigluInputs& inputs, const TensorView& y) {
  Guards guards(target(), "swiglu_forward");
  SwigluInputs in = inputs;
  TensorView out = y;
  guards.input(in.gate, "gate");
  guards.input(in.up, "up");
  guards.output(out, "y");
  target().swiglu_forward(in, out);
  guards.finish();
}

void GuardedBackend::swiglu_backward(const SwigluInputs& inputs, const TensorView& dy,
                                     const SwigluGradients& gradients) {
  Guards guards(target(), "swiglu_backward");
  SwigluInputs in = inputs;
  TensorView upstream = dy;
  SwigluGradients g = gradients;
  guards.input(in.gate, "gate");
  guards.input(in.up, "up");
  guards.input(upstream, "dy");
  guards.output(g.dgate, "dgate");
  guards.output(g.dup, "dup");
  target().swiglu_backward(in, upstream, g);
  guards.finish();
}

void GuardedBackend::cross_entropy_forward(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                                           const TensorView& loss) {
  Guards guards(target(), "cross_entropy_forward");
  CrossEntropyInputs in = inputs;
  TensorView out = loss;
  guards.input(in.hidden, "hidden");
  guards.input(in.weight, "weight");
  guards.input(in.labels, "labels");
  guards.output(out, "loss");
  target().cross_entropy_forward(problem, in, out);
  guards.finish();
}

void GuardedBackend::cross_entropy_backward(const CrossEntropyProblem& problem, const CrossEntropyInputs& inputs,
                                            const TensorView& dloss, const CrossEntropyGradients& gradients) {
  Guards guards(target(), "cross_entropy_backward");
  CrossEntropyInputs in = inputs;
  TensorView upstream = dloss;
  CrossEntropyGradients g = gradients;
  guards.input(in.hidden, "hidden");
  guards.input(in.weight, "weight");
  guards.input(in.labels, "labels");
  guards.input(upstream, "dloss");
  guards.output(g.dhidden, "dhidden");
  guards.output(g.dweight, "dweight");
  target().cross_entropy_backward(problem, in, upstream, g);
  guards.finish();
}

void GuardedBackend::adamw_step(const AdamWProblem& problem, const AdamWInputs& inputs, const AdamWOutputs& outputs) {
  Guards guards(target(), "adamw_step");
  AdamWInputs in = inputs;
  AdamWOutputs out = outputs;
  guards.input(in.param, "param");
  guards.input(in.grad, "grad");
  guards.input(in.m, "m");
  guards.input(in.v, "v");
  guards.output(out.param, "param");
  guards.output(out.m, "m");
  guards.output(out.v, "v");
  target().adamw_step(problem, in, out);
  guards.finish();
}

}  // namespace dsalt::verification
