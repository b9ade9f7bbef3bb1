// x -> rmsnorm -> projections -> window, energies, landmarks, rope -> attention: the cases and the forward run.
#include "text_pipeline.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "dsalt/errors.hpp"
#include "text_model.hpp"

namespace dsalt::verification {
namespace {

SelectionProblem selection_problem(const TextShape& shape, SelectionPolicy policy) {
  SelectionProblem problem;
  problem.policy = policy;
  if (policy == SelectionPolicy::causal) problem.chunk = shape.chunk;
  problem.k = policy == SelectionPolicy::causal ? shape.k_causal : shape.k_global;
  return problem;
}

}  // namespace

std::string read_text(const std::string& path, std::int64_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError("text file " + path + ": cannot be opened");
  std::string text(static_cast<std::size_t>(max_bytes), '\0');
  file.read(text.data(), max_bytes);
  if (file.bad() || (file.fail() && !file.eof())) throw IoError("text file " + path + ": cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

Case TextStages::rmsnorm(const Tensor& x) const {
  Case c;
  c.op = Operation::rmsnorm;
  c.inputs["x"] = x;
  c.inputs["gamma"] = seeded_normal("gamma", {d_model()}, statistics_dtype(dtype), 0.1, 1);
  if (backward) c.inputs["dy"] = seeded_normal("rmsnorm/dy", {1, x.view().shape[1], d_model()}, dtype);
  return c;
}

Case TextStages::window_sizes(const Tensor& x) const {
  // x has about sqrt(1 + 1/4 + 1/16 + 1/64) times the embedding's 0.02 as standard deviation
  const double x_std = 0.02 * std::sqrt(85.0 / 64.0);
  const DType stat = statistics_dtype(dtype);
  Case c;
  c.op = Operation::window_sizes;
  c.attributes["n_min"] = shape.n_min;
  c.attributes["n_max"] = shape.n_max;
  c.inputs["x"] = x;
  c.inputs["weight"] = seeded_normal("window/weight", {shape.heads, d_model()}, stat,
                                     1 / (x_std * std::sqrt(static_cast<double>(d_model()))));
  c.inputs["bias"] = seeded_normal("window/bias", {shape.heads}, stat, 0.5);
  if (backward) c.inputs["dwindow"] = seeded_normal("window/dwindow", {1, shape.heads, x.view().shape[1]}, stat);
  return c;
}

Case TextStages::energies(const Tensor& x, const Tensor& v) const {
  const std::int64_t n = x.view().shape[1];
  Case c;
  c.op = Operation::energies;
  c.inputs["x"] = x;
  c.inputs["v"] = v;
  if (backward) {
    c.inputs["dnx"] = seeded_normal("energies/dnx", {1, n}, statistics_dtype(dtype));
    c.inputs["dnv"] = seeded_normal("energies/dnv", {1, shape.kv_heads, n}, statistics_dtype(dtype));
  }
  return c;
}

Case TextStages::select_landmarks(const Tensor& nx, const Tensor& nv, SelectionPolicy policy) const {
  const SelectionProblem problem = selection_problem(shape, policy);
  const DType stat = statistics_dtype(dtype);
  Case c;
  c.op = Operation::select_landmarks;
  c.attributes["policy"] = std::string(name_of(policy));
  c.attributes["k"] = problem.k;
  c.attributes["tau"] = problem.tau;
  if (problem.chunk) c.attributes["chunk"] = *problem.chunk;
  c.inputs["nx"] = nx;
  c.inputs["nv"] = nv;
  c.inputs["alpha_raw"] = seeded_normal("alpha_raw", {shape.heads}, stat, 0.5, 0.405);
  if (backward)
    c.inputs["dlandmark_log_weight"] = seeded_normal(
        "selection/dweight", {1, shape.heads, landmark_list_count(problem, nx.view().shape[1]), problem.k}, stat);
  return c;
}

Case TextStages::rope(std::string_view input, const Tensor& x) const {
  const auto& size = x.view().shape;
  Case c;
  c.op = Operation::rope;
  c.inputs["x"] = x;
  if (backward) c.inputs["dy"] = seeded_normal("rope/d" + std::string(input), {1, size[1], size[2], size[3]}, dtype);
  return c;
}

Case TextStages::attention(const TextActivations& t, SelectionPolicy policy) const {
  Case c;
  c.op = Operation::attention;
  c.attributes["mask"] = std::string(name_of(Mask::sparse));
  c.attributes["soft_edge"] = shape.soft_edge;
  c.attributes["soft_tau"] = shape.soft_tau;
  if (policy == SelectionPolicy::causal) c.attributes["landmark_chunk"] = shape.chunk;
  c.inputs["q"] = t.q;
  c.inputs["k"] = t.k;
  c.inputs["v"] = t.v;
  c.inputs["window"] = t.window;
  c.inputs["landmarks"] = t.landmarks;
  c.inputs["landmark_log_weight"] = t.landmark_log_weight;
  if (backward) c.inputs["dout"] = seeded_normal("dout", {1, shape.heads, t.q.view().shape[2], shape.d}, dtype);
  return c;
}

Case text_attention_case(const TextShape& shape, SelectionPolicy policy, const TextActivations& activations) {
  return TextStages{shape, activations.q.view().dtype, false}.attention(activations, policy);
}

TextActivations run_text(Backend& backend, const TextShape& shape, DType dtype, std::string_view text,
                         SelectionPolicy policy) {
  text = text.substr(0, static_cast<std::size_t>(std::max<std::int64_t>(shape.n, 0)));
  if (text.empty()) throw InvalidArgument("text: got 0 bytes, need at least 1");
  const TextStages stages{shape, dtype, false};
  TextActivations t;
  t.x = embed_text(text, stages.d_model(), dtype);
  const Tensor normed = evaluate(backend, stages.rmsnorm(t.x)).at("y");
  t.v = project("w_v", normed, shape.kv_heads, shape.d);
  t.window = evaluate(backend, stages.window_sizes(t.x)).at("window");
  const Tensors energies = evaluate(backend, stages.energies(t.x, t.v));
  const Tensors selected = evaluate(backend, stages.select_landmarks(energies.at("nx"), energies.at("nv"), policy));
  t.landmarks = selected.at("landmarks");
  t.landmark_log_weight = selected.at("landmark_log_weight");
  t.q = evaluate(backend, stages.rope("q", project("w_q", normed, shape.heads, shape.d))).at("y");
  t.k = evaluate(backend, stages.rope("k", project("w_k", normed, shape.kv_heads, shape.d))).at("y");
  const Tensors attended = evaluate(backend, stages.attention(t, policy));
  t.out = attended.at("out");
  t.lse = attended.at("lse");
  return t;
}

}  // namespace dsalt::verification
