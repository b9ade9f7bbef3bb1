// window_sizes       x [B,N,d], d = H D, H windows per token: forward 2 R d H FLOP, backward 4 R d H (R = B N rows)
// energies           a square and a sum for each element of x and v, and as much again with a product backward
// select_landmarks   no FLOP are counted: its limit is reading the energies and writing the lists
//
// bytes: inputs that are needed and outputs, each once.
#include "bench/data.hpp"
#include "bench/workload.hpp"
#include "dsalt/selectors.hpp"

namespace dsalt::benchmark {
namespace {

double as_double(std::int64_t n) { return static_cast<double>(n); }

std::string joined(std::initializer_list<std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}

SelectionInputs selection_inputs(const Tensor& nx, const Tensor& nv, const Tensor& alpha_raw) {
  SelectionInputs inputs;
  inputs.nx = nx;
  inputs.nv = nv;
  inputs.alpha_raw = alpha_raw;
  return inputs;
}

}  // namespace

Workload window_sizes_workload(const Shape& s, DType dtype, Direction direction) {
  const bool backward = direction == Direction::backward;
  const std::int64_t d = s.model_width();
  const double rows = as_double(s.tokens()), heads = as_double(s.heads), width = as_double(d);
  Workload work = start_workload(Operation::window_sizes, direction, s, dtype,
                                 (backward ? 2 : 1) * (rows * width + heads * (width + 1)), 8 * rows * heads);
  work.shape = joined({s.batch, s.queries, d}) + " windows " + std::to_string(s.heads);
  work.prepare = [=, memory = work.memory](Backend& backend, const CountExecuted&) {
    const DType stat = statistics_dtype(dtype);
    const WindowProblem problem{.n_min = 16, .n_max = 256};
    const Tensor x = random_tensor(backend, {s.batch, s.queries, d}, dtype, 1),
                 weight = random_tensor(backend, {s.heads, d}, dtype, 2),
                 bias = random_tensor(backend, {s.heads}, dtype, 3),
                 window = output_tensor(backend, {s.batch, s.heads, s.queries}, stat);
    const double window_bytes = rows * heads * static_cast<double>(size_of(stat));
    Prepared prepared;
    prepared.cost.flop = (backward ? 4 : 2) * rows * heads * width;
    prepared.cost.bytes = memory - 8 * rows * heads + window_bytes;
    if (!backward) {
      prepared.call = [=, &backend] {
        window_sizes_forward(backend, problem, {.x = x, .weight = weight, .bias = bias}, window);
      };
      return prepared;
    }
    const Tensor dwindow = random_tensor(backend, {s.batch, s.heads, s.queries}, stat, 4),
                 dx = output_tensor(backend, {s.batch, s.queries, d}, dtype),
                 dweight = output_tensor(backend, {s.heads, d}, dtype),
                 dbias = output_tensor(backend, {s.heads}, dtype);
    prepared.call = [=, &backend] {
      window_sizes_backward(backend, problem, {.x = x, .weight = weight, .bias = bias}, dwindow,
                            {.dx = dx, .dweight = dweight, .dbias = dbias});
    };
    return prepared;
  };
  return work;
}

Workload energies_workload(const Shape& s, DType dtype, Direction direction) {
  const bool backward = direction == Direction::backward;
  const std::int64_t d = s.model_width();
  const double norms = as_double(s.tokens() * (1 + s.kv_heads));
  const double elements = as_double(s.tokens()) * as_double(d + s.kv_heads * s.width);
  Workload work = start_workload(Operation::energies, direction, s, dtype, (backward ? 2 : 1) * elements, 8 * norms);
  work.shape = joined({s.batch, s.queries, d}) + " v " + joined({s.kv_heads, s.width});
  work.prepare = [=](Backend& backend, const CountExecuted&) {
    const DType stat = statistics_dtype(dtype);
    const std::int64_t x_shape[] = {s.batch, s.queries, d}, v_shape[] = {s.batch, s.kv_heads, s.queries, s.width};
    const std::int64_t nx_shape[] = {s.batch, s.queries}, nv_shape[] = {s.batch, s.kv_heads, s.queries};
    const Tensor x = random_tensor(backend, x_shape, dtype, 1), v = random_tensor(backend, v_shape, dtype, 2);
    const auto element = static_cast<double>(size_of(dtype));
    Prepared prepared;
    prepared.cost.flop = (backward ? 3 : 2) * elements;
    prepared.cost.bytes = (backward ? 2 : 1) * elements * element + norms * static_cast<double>(size_of(stat));
    if (!backward) {
      const Tensor nx = output_tensor(backend, nx_shape, stat), nv = output_tensor(backend, nv_shape, stat);
      prepared.call = [=, &backend] { energies_forward(backend, {.x = x, .v = v}, {.nx = nx, .nv = nv}); };
      return prepared;
    }
    const Tensor dnx = random_tensor(backend, nx_shape, stat, 3), dnv = random_tensor(backend, nv_shape, stat, 4),
                 dx = output_tensor(backend, x_shape, dtype), dv = output_tensor(backend, v_shape, dtype);
    prepared.call = [=, &backend] {
      energies_backward(backend, {.x = x, .v = v}, {.nx = dnx, .nv = dnv}, {.dx = dx, .dv = dv});
    };
    return prepared;
  };
  return work;
}

Workload select_landmarks_workload(const Shape& s, DType dtype, Direction direction, SelectionPolicy policy) {
  const bool backward = direction == Direction::backward;
  SelectionProblem problem;
  problem.policy = policy;
  problem.k = std::max<std::int64_t>(1, s.landmarks);
  if (policy == SelectionPolicy::causal) problem.chunk = s.chunk > 0 ? s.chunk : 128;
  const std::int64_t lists = landmark_list_count(problem, s.queries);
  const double energies = as_double(s.tokens() * (1 + s.kv_heads)),
               slots = as_double(s.batch * s.heads * lists * problem.k);
  Workload work = start_workload(Operation::select_landmarks, direction, s, dtype,
                                 (backward ? 2 : 1) * energies + 3 * slots, 4 * slots);
  work.shape = joined({s.batch, s.queries}) + " heads " + std::to_string(s.heads) +
               (s.kv_heads != s.heads ? "/" + std::to_string(s.kv_heads) : "") + " K " + std::to_string(problem.k) +
               " " + std::string(name_of(policy)) + (problem.chunk ? " chunk " + std::to_string(*problem.chunk) : "");
  if (dtype == DType::bf16 || dtype == DType::f16)
    work.refused = "energies are float32 or float64, whatever the dtype of the model";
  work.prepare = [=](Backend& backend, const CountExecuted&) {
    const std::int64_t list_shape[] = {s.batch, s.heads, lists, problem.k};
    const std::int64_t nx_shape[] = {s.batch, s.queries}, nv_shape[] = {s.batch, s.kv_heads, s.queries};
    const Tensor nx = random_tensor(backend, nx_shape, dtype, 1), nv = random_tensor(backend, nv_shape, dtype, 2),
                 alpha = random_tensor(backend, {s.heads}, dtype, 3),
                 landmarks = output_tensor(backend, list_shape, DType::i32),
                 score = output_tensor(backend, list_shape, dtype), weight = output_tensor(backend, list_shape, dtype);
    const auto element = static_cast<double>(size_of(dtype));
    const auto forward = [=, &backend] {
      select_landmarks_forward(backend, problem, selection_inputs(nx, nv, alpha),
                               {.landmarks = landmarks, .score = score, .landmark_log_weight = weight});
    };
    Prepared prepared;
    prepared.cost.bytes =
        backward ? 2 * energies * element + slots * (4 + element) : energies * element + slots * (4 + 2 * element);
    prepared.call = forward;
    if (!backward) return prepared;
    forward();
    const Tensor dweight = random_tensor(backend, list_shape, dtype, 4), dnx = output_tensor(backend, nx_shape, dtype),
                 dnv = output_tensor(backend, nv_shape, dtype), dalpha = output_tensor(backend, {s.heads}, dtype);
    prepared.call = [=, &backend] {
      select_landmarks_backward(backend, problem, selection_inputs(nx, nv, alpha),
                                {.landmarks = landmarks, .dlandmark_log_weight = dweight},
                                {.dnx = dnx, .dnv = dnv, .dalpha_raw = dalpha});
    };
    return prepared;
  };
  return work;
}

}  // namespace dsalt::benchmark
