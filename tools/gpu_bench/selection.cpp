#include "gpu_bench/selection.hpp"

#include "bench/data.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/selectors.hpp"

namespace dsalt::benchmark {
namespace {

Workload selection_workload(const Shape& s, DType dtype, SelectionPolicy policy) {
  SelectionProblem problem;
  problem.policy = policy;
  problem.k = s.landmarks;
  if (policy == SelectionPolicy::causal) problem.chunk = s.chunk;
  const std::int64_t lists = landmark_list_count(problem, s.queries), d = s.model_width();
  const auto as_double = [](std::int64_t n) { return static_cast<double>(n); };
  const double elements = as_double(s.tokens()) * as_double(d + s.kv_heads * s.width),
               energies = as_double(s.tokens() * (1 + s.kv_heads)),
               slots = as_double(s.batch * s.heads * lists * problem.k),
               of_statistic = as_double(static_cast<std::int64_t>(size_of(statistics_dtype(dtype))));
  Workload work = start_workload(Operation::energies, Direction::forward, s, dtype, elements,
                                 energies * of_statistic + slots * (4 + 2 * of_statistic));
  work.operation = "selection";
  work.shape = full_name(s) + " " + std::string(name_of(policy));
  work.prepare = [=, bytes = work.memory](Backend& backend, const CountExecuted&) {
    const DType stat = statistics_dtype(dtype);
    const std::int64_t list_shape[] = {s.batch, s.heads, lists, problem.k};
    const Tensor x = random_tensor(backend, {s.batch, s.queries, d}, dtype, 1),
                 v = random_tensor(backend, {s.batch, s.kv_heads, s.queries, s.width}, dtype, 2),
                 alpha = random_tensor(backend, {s.heads}, stat, 3),
                 nx = output_tensor(backend, {s.batch, s.queries}, stat),
                 nv = output_tensor(backend, {s.batch, s.kv_heads, s.queries}, stat),
                 landmarks = output_tensor(backend, list_shape, DType::i32),
                 score = output_tensor(backend, list_shape, stat), weight = output_tensor(backend, list_shape, stat);
    Prepared prepared;
    prepared.cost.flop = 2 * elements;
    prepared.cost.bytes = bytes;
    prepared.call = [=, &backend] {
      energies_forward(backend, {.x = x, .v = v}, {.nx = nx, .nv = nv});
      SelectionInputs inputs;
      inputs.nx = nx;
      inputs.nv = nv;
      inputs.alpha_raw = alpha;
      select_landmarks_forward(backend, problem, inputs,
                               {.landmarks = landmarks, .score = score, .landmark_log_weight = weight});
    };
    return prepared;
  };
  return work;
}

}  // namespace

std::vector<SelectionPipeline> selection_pipelines(const Shape& shape, DType dtype) {
  if (!shape.sparse() || shape.landmarks == 0 || shape.queries != shape.keys)
    throw InvalidArgument("--operation selection: got shape " + to_string(shape) +
                          ", need self-attention with a window and landmarks, like 1,16,16384,128,512,64");
  Shape one_list = shape;
  one_list.chunk = 0;
  std::vector<SelectionPipeline> pipelines = {{selection_workload(one_list, dtype, SelectionPolicy::global),
                                               attention_workload(one_list, dtype, Direction::forward)}};
  if (shape.chunk > 0)
    pipelines.push_back({selection_workload(shape, dtype, SelectionPolicy::causal),
                         attention_workload(shape, dtype, Direction::forward)});
  return pipelines;
}

}  // namespace dsalt::benchmark
