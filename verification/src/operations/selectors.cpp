// Cases of `window_sizes`, `energies` and `select_landmarks`.
#include "dsalt/selectors.hpp"

#include <algorithm>

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"
#include "operations/operation_case.hpp"

namespace dsalt::verification {
namespace {

void run_window_sizes(Backend& backend, const Case& c, CaseMemory& memory) {
  const WindowProblem problem{*find_real(c, "n_min"), *find_real(c, "n_max"), find_boolean(c, "floor")};
  const WindowInputs in{memory.input("x"), memory.input("weight"), memory.input("bias")};
  const std::int64_t heads = in.weight.shape[0];
  const Shape shape = in.x.rank == 2 ? Shape{in.x.shape[0], heads} : Shape{in.x.shape[0], heads, in.x.shape[1]};
  window_sizes_forward(backend, problem, in, memory.output("window", shape, statistics_dtype(in.x.dtype)));
  if (!has_input(c, "dwindow")) return;
  WindowGradients gradients;
  gradients.dx = memory.output_like("dx", "x");
  gradients.dweight = memory.output_like("dweight", "weight");
  gradients.dbias = memory.output_like("dbias", "bias");
  window_sizes_backward(backend, problem, in, memory.input("dwindow"), gradients);
}

void run_energies(Backend& backend, const Case& c, CaseMemory& memory) {
  const EnergyInputs in{memory.input("x"), memory.input("v")};
  const DType statistics = statistics_dtype(in.x.dtype);
  Shape x_rows = shape_of(in.x), v_rows = shape_of(in.v);
  x_rows.pop_back();
  v_rows.pop_back();
  energies_forward(backend, in, {memory.output("nx", x_rows, statistics), memory.output("nv", v_rows, statistics)});
  if (!has_input(c, "dnx") && !has_input(c, "dnv")) return;
  EnergyGradients gradients;
  if (has_input(c, "dnx")) gradients.dx = memory.output_like("dx", "x");
  if (has_input(c, "dnv")) gradients.dv = memory.output_like("dv", "v");
  energies_backward(backend, in, {memory.input("dnx"), memory.input("dnv")}, gradients);
}

std::vector<std::string> energies_outputs(const Case& c) {
  std::vector<std::string> names = {"nx", "nv"};
  if (has_input(c, "dnx")) names.push_back("dx");
  if (has_input(c, "dnv")) names.push_back("dv");
  return names;
}

SelectionProblem selection_problem(const Case& c) {
  SelectionProblem problem;
  const std::string policy = text_attribute(c, "policy");
  if (policy == name_of(SelectionPolicy::global))
    problem.policy = SelectionPolicy::global;
  else if (policy == name_of(SelectionPolicy::causal))
    problem.policy = SelectionPolicy::causal;
  else
    throw InvalidArgument("policy: got \"" + policy + "\", need global or causal");
  problem.k = *find_integer(c, "k");
  problem.tau = *find_real(c, "tau");
  problem.chunk = find_integer(c, "chunk");
  problem.recent = find_integer(c, "recent").value_or(0);
  problem.detach_energies = find_boolean(c, "detach_energies");
  if (problem.k < 0) throw InvalidArgument("k: got " + std::to_string(problem.k) + ", need at least 0");
  return problem;
}

/// The longest sequence. The host tensor is read: the case lives in host memory.
std::int64_t longest_sequence(const Case& c, const TensorView& nx) {
  const auto found = c.inputs.find("cu_seqlens");
  if (found == c.inputs.end()) return nx.shape[static_cast<std::size_t>(nx.rank - 1)];
  const TensorView& cu = found->second;
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s + 1 < cu.shape[0]; ++s)
    longest = std::max<std::int64_t>(longest, std::int64_t{internal::load_i32(cu, s + 1)} - internal::load_i32(cu, s));
  // An impossible cu_seqlens is refused by the operation; until then no more rows than there are.
  return std::min(longest, nx.shape[0]);
}

void run_select_landmarks(Backend& backend, const Case& c, CaseMemory& memory) {
  const SelectionProblem problem = selection_problem(c);
  const SelectionInputs in{memory.input("nx"), memory.input("nv"), memory.input("alpha_raw"),
                           memory.input("cu_seqlens")};
  const bool packed = in.cu_seqlens.present();
  if ((in.nx.rank == 1) != packed)
    throw InvalidArgument("nx: got " + to_string(in.nx) + ", need [B,N], or [R] together with cu_seqlens");
  const std::int64_t batch = packed ? std::max<std::int64_t>(in.cu_seqlens.shape[0] - 1, 0) : in.nx.shape[0];
  const std::int64_t lists = landmark_list_count(problem, longest_sequence(c, in.nx));
  const Shape shape = {batch, in.alpha_raw.shape[0], lists, problem.k};
  SelectionOutputs out;
  out.landmarks = memory.output("landmarks", shape, DType::i32);
  out.score = memory.output("score", shape, in.nx.dtype);
  out.landmark_log_weight = memory.output("landmark_log_weight", shape, in.nx.dtype);
  select_landmarks_forward(backend, problem, in, out);
  if (!has_input(c, "dlandmark_log_weight")) return;
  SelectionGradients gradients;
  gradients.dalpha_raw = memory.output_like("dalpha_raw", "alpha_raw");
  if (!problem.detach_energies) {
    gradients.dnx = memory.output_like("dnx", "nx");
    gradients.dnv = memory.output_like("dnv", "nv");
  }
  select_landmarks_backward(backend, problem, in, {out.landmarks, memory.input("dlandmark_log_weight")}, gradients);
}

std::vector<std::string> select_landmarks_outputs(const Case& c) {
  std::vector<std::string> names = {"landmarks", "score", "landmark_log_weight"};
  if (!has_input(c, "dlandmark_log_weight")) return names;
  names.push_back("dalpha_raw");
  if (!find_boolean(c, "detach_energies")) names.insert(names.end(), {"dnx", "dnv"});
  return names;
}

}  // namespace

const OperationCase& window_sizes_case() {
  using enum AttributeKind;
  static const OperationCase entry = {.main_input = "x",
                                      .attributes = {{"n_min", real, true}, {"n_max", real, true}, {"floor", boolean}},
                                      .inputs = {{"x", TensorKind::floating, "23", true},
                                                 {"weight", TensorKind::main_or_statistics, "2", true},
                                                 {"bias", TensorKind::main_or_statistics, "1", true},
                                                 {"dwindow", TensorKind::statistics, "23"}},
                                      .gradient_inputs = {"dwindow"},
                                      .outputs =
                                          [](const Case& c) {
                                            std::vector<std::string> names = {"window"};
                                            if (has_input(c, "dwindow"))
                                              names.insert(names.end(), {"dx", "dweight", "dbias"});
                                            return names;
                                          },
                                      .run = run_window_sizes};
  return entry;
}

const OperationCase& energies_case() {
  static const OperationCase entry = {.main_input = "x",
                                      .attributes = {},
                                      .inputs = {{"x", TensorKind::floating, "23", true},
                                                 {"v", TensorKind::like_main, "34", true},
                                                 {"dnx", TensorKind::statistics, "12"},
                                                 {"dnv", TensorKind::statistics, "23"}},
                                      .gradient_inputs = {"dnx", "dnv"},
                                      .outputs = energies_outputs,
                                      .run = run_energies};
  return entry;
}

const OperationCase& select_landmarks_case() {
  using enum AttributeKind;
  static const OperationCase entry = {.main_input = "nx",
                                      .attributes = {{"policy", text, true},
                                                     {"k", integer, true},
                                                     {"tau", real, true},
                                                     {"chunk", integer},
                                                     {"recent", integer},
                                                     {"detach_energies", boolean}},
                                      .inputs = {{"nx", TensorKind::statistics_floating, "12", true},
                                                 {"nv", TensorKind::like_main, "23", true},
                                                 {"alpha_raw", TensorKind::like_main, "1", true},
                                                 {"cu_seqlens", TensorKind::index, "1"},
                                                 {"dlandmark_log_weight", TensorKind::like_main, "4"}},
                                      .gradient_inputs = {"dlandmark_log_weight"},
                                      .outputs = select_landmarks_outputs,
                                      .run = run_select_landmarks};
  return entry;
}

}  // namespace dsalt::verification
