// Cases of `rmsnorm`, `rope`, `swiglu`, `cross_entropy` and `adamw`.
#include "dsalt/network.hpp"

#include "operations/operation_case.hpp"

namespace dsalt::verification {
namespace {

/// `forward`, then `backward` when the named gradient input is there.
std::vector<std::string> names_with(const Case& c, std::string_view gradient, std::vector<std::string> forward,
                                    const std::vector<std::string>& backward) {
  if (has_input(c, gradient)) forward.insert(forward.end(), backward.begin(), backward.end());
  return forward;
}

void run_rmsnorm(Backend& backend, const Case& c, CaseMemory& memory) {
  RmsNormProblem problem;
  problem.eps = find_real(c, "eps").value_or(problem.eps);
  const RmsNormInputs in{memory.input("x"), memory.input("gamma")};
  rmsnorm_forward(backend, problem, in, memory.output_like("y", "x"));
  if (!has_input(c, "dy")) return;
  const RmsNormGradients gradients{memory.output_like("dx", "x"), memory.output_like("dgamma", "gamma")};
  rmsnorm_backward(backend, problem, in, memory.input("dy"), gradients);
}

void run_rope(Backend& backend, const Case& c, CaseMemory& memory) {
  RopeProblem problem;
  problem.base = find_real(c, "base").value_or(problem.base);
  problem.rope_scale = find_real(c, "rope_scale").value_or(problem.rope_scale);
  problem.position = find_integer(c, "position").value_or(problem.position);
  const RopeInputs in{memory.input("x"), memory.input("positions"), memory.input("cu_seqlens")};
  rope_forward(backend, problem, in, memory.output_like("y", "x"));
  if (!has_input(c, "dy")) return;
  rope_backward(backend, problem, in, memory.input("dy"), memory.output_like("dx", "x"));
}

void run_swiglu(Backend& backend, const Case& c, CaseMemory& memory) {
  const SwigluInputs in{memory.input("gate"), memory.input("up")};
  swiglu_forward(backend, in, memory.output_like("y", "gate"));
  if (!has_input(c, "dy")) return;
  const SwigluGradients gradients{memory.output_like("dgate", "gate"), memory.output_like("dup", "up")};
  swiglu_backward(backend, in, memory.input("dy"), gradients);
}

void run_cross_entropy(Backend& backend, const Case& c, CaseMemory& memory) {
  CrossEntropyProblem problem;
  problem.label_smoothing = find_real(c, "label_smoothing").value_or(problem.label_smoothing);
  problem.ignore_index = find_integer(c, "ignore_index").value_or(problem.ignore_index);
  const CrossEntropyInputs in{memory.input("hidden"), memory.input("weight"), memory.input("labels")};
  cross_entropy_forward(backend, problem, in, memory.output("loss", {}, statistics_dtype(in.hidden.dtype)));
  if (!has_input(c, "dloss")) return;
  const CrossEntropyGradients gradients{memory.output_like("dhidden", "hidden"),
                                        memory.output_like("dweight", "weight")};
  cross_entropy_backward(backend, problem, in, memory.input("dloss"), gradients);
}

void run_adamw(Backend& backend, const Case& c, CaseMemory& memory) {
  AdamWProblem problem;
  problem.lr = *find_real(c, "lr");
  problem.beta1 = *find_real(c, "beta1");
  problem.beta2 = *find_real(c, "beta2");
  problem.eps = *find_real(c, "eps");
  problem.weight_decay = *find_real(c, "weight_decay");
  problem.step = *find_integer(c, "step");
  const AdamWInputs in{memory.input("param"), memory.input("grad"), memory.input("m"), memory.input("v")};
  const AdamWOutputs out{memory.output_like("param", "param"), memory.output_like("m", "m"),
                         memory.output_like("v", "v")};
  adamw_step(backend, problem, in, out);
}

}  // namespace

const OperationCase& rmsnorm_case() {
  static const OperationCase entry = {.main_input = "x",
                                      .attributes = {{"eps", AttributeKind::real}},
                                      .inputs = {{"x", TensorKind::floating, "123456", true},
                                                 {"gamma", TensorKind::main_or_statistics, "1", true},
                                                 {"dy", TensorKind::like_main, "123456"}},
                                      .gradient_inputs = {"dy"},
                                      .outputs =
                                          [](const Case& c) {
                                            return names_with(c, "dy", {"y"}, {"dx", "dgamma"});
                                          },
                                      .run = run_rmsnorm};
  return entry;
}

const OperationCase& rope_case() {
  using enum AttributeKind;
  static const OperationCase entry = {.main_input = "x",
                                      .attributes = {{"base", real}, {"rope_scale", real}, {"position", integer}},
                                      .inputs = {{"x", TensorKind::floating, "34", true},
                                                 {"cu_seqlens", TensorKind::index, "1"},
                                                 {"positions", TensorKind::index, "1"},
                                                 {"dy", TensorKind::like_main, "34"}},
                                      .gradient_inputs = {"dy"},
                                      .outputs = [](const Case& c) { return names_with(c, "dy", {"y"}, {"dx"}); },
                                      .run = run_rope};
  return entry;
}

const OperationCase& swiglu_case() {
  static const OperationCase entry = {.main_input = "gate",
                                      .attributes = {},
                                      .inputs = {{"gate", TensorKind::floating, "", true},
                                                 {"up", TensorKind::like_main, "", true},
                                                 {"dy", TensorKind::like_main, ""}},
                                      .gradient_inputs = {"dy"},
                                      .outputs =
                                          [](const Case& c) {
                                            return names_with(c, "dy", {"y"}, {"dgate", "dup"});
                                          },
                                      .run = run_swiglu};
  return entry;
}

const OperationCase& cross_entropy_case() {
  using enum AttributeKind;
  static const OperationCase entry = {.main_input = "hidden",
                                      .attributes = {{"label_smoothing", real}, {"ignore_index", integer}},
                                      .inputs = {{"hidden", TensorKind::floating, "2", true},
                                                 {"weight", TensorKind::like_main, "2", true},
                                                 {"labels", TensorKind::index, "1", true},
                                                 {"dloss", TensorKind::statistics, "0"}},
                                      .gradient_inputs = {"dloss"},
                                      .outputs =
                                          [](const Case& c) {
                                            return names_with(c, "dloss", {"loss"}, {"dhidden", "dweight"});
                                          },
                                      .run = run_cross_entropy};
  return entry;
}

const OperationCase& adamw_case() {
  using enum AttributeKind;
  static const OperationCase entry = {.main_input = "param",
                                      .attributes = {{"lr", real, true},
                                                     {"beta1", real, true},
                                                     {"beta2", real, true},
                                                     {"eps", real, true},
                                                     {"weight_decay", real, true},
                                                     {"step", integer, true}},
                                      .inputs = {{"param", TensorKind::floating, "", true},
                                                 {"grad", TensorKind::companion, "", true},
                                                 {"m", TensorKind::companion, "", true},
                                                 {"v", TensorKind::companion, "", true}},
                                      .gradient_inputs = {},
                                      .outputs =
                                          [](const Case&) {
                                            return std::vector<std::string>{"param", "m", "v"};
                                          },
                                      .run = run_adamw};
  return entry;
}

}  // namespace dsalt::verification
