// Pieces around attention, for R = B N rows of d = H D columns. FLOP per element of x, every function counted as one:
//
//   rmsnorm  4, backward 9        rope  3, backward 3        swiglu (of [R, 4 d])  5, backward 11
//   cross_entropy  2 R d V, backward 6 R d V (the logits are not stored, so they are computed again), V = 32000 and
//                  R at most 1024 unless more are asked for
//   adamw  14, on the 12 d^2 parameters of a block
//
// bytes: inputs that are needed and outputs, each once.
#include <algorithm>

#include "bench/data.hpp"
#include "bench/workload.hpp"
#include "dsalt/network.hpp"

namespace dsalt::benchmark {
namespace {

double as_double(std::int64_t n) { return static_cast<double>(n); }

Prepared with_cost(double flop, double bytes, std::function<void()> call) {
  Prepared prepared;
  prepared.cost.flop = flop;
  prepared.cost.bytes = bytes;
  prepared.call = std::move(call);
  return prepared;
}

}  // namespace

Workload rmsnorm_workload(const Shape& s, DType dtype, Direction direction) {
  const bool backward = direction == Direction::backward;
  const std::int64_t rows = s.tokens(), d = s.model_width();
  const double elements = as_double(rows) * as_double(d);
  Workload work = start_workload(Operation::rmsnorm, direction, s, dtype,
                                 (backward ? 3 : 2) * elements + (backward ? 2 : 1) * as_double(d), 0);
  work.shape = std::to_string(rows) + "," + std::to_string(d);
  work.prepare = [=, bytes = work.memory](Backend& backend, const CountExecuted&) {
    const Tensor x = random_tensor(backend, {rows, d}, dtype, 1), gamma = random_tensor(backend, {d}, dtype, 2);
    if (!backward) {
      const Tensor y = output_tensor(backend, {rows, d}, dtype);
      return with_cost(4 * elements, bytes,
                       [=, &backend] { rmsnorm_forward(backend, {}, {.x = x, .gamma = gamma}, y); });
    }
    const Tensor dy = random_tensor(backend, {rows, d}, dtype, 3), dx = output_tensor(backend, {rows, d}, dtype),
                 dgamma = output_tensor(backend, {d}, dtype);
    return with_cost(9 * elements, bytes, [=, &backend] {
      rmsnorm_backward(backend, {}, {.x = x, .gamma = gamma}, dy, {.dx = dx, .dgamma = dgamma});
    });
  };
  return work;
}

Workload rope_workload(const Shape& s, DType dtype, Direction direction) {
  const double elements = as_double(s.tokens()) * as_double(s.model_width());
  Workload work = start_workload(Operation::rope, direction, s, dtype, 2 * elements, 0);
  work.shape = std::to_string(s.batch) + "," + std::to_string(s.heads) + "," + std::to_string(s.queries) + "," +
               std::to_string(s.width);
  if (s.width % 2 != 0) work.refused = "rope needs an even head size";
  work.prepare = [=, bytes = work.memory](Backend& backend, const CountExecuted&) {
    const std::int64_t shape[] = {s.batch, s.heads, s.queries, s.width};
    const Tensor x = random_tensor(backend, shape, dtype, 1), y = output_tensor(backend, shape, dtype);
    if (direction == Direction::forward)
      return with_cost(3 * elements, bytes, [=, &backend] {
        RopeInputs inputs;
        inputs.x = x;
        rope_forward(backend, {}, inputs, y);
      });
    return with_cost(3 * elements, bytes, [=, &backend] { rope_backward(backend, {}, {}, x, y); });
  };
  return work;
}

Workload swiglu_workload(const Shape& s, DType dtype, Direction direction) {
  const bool backward = direction == Direction::backward;
  const std::int64_t rows = s.tokens(), d = 4 * s.model_width();
  const double elements = as_double(rows) * as_double(d);
  Workload work = start_workload(Operation::swiglu, direction, s, dtype, (backward ? 5 : 3) * elements, 0);
  work.shape = std::to_string(rows) + "," + std::to_string(d);
  work.prepare = [=, bytes = work.memory](Backend& backend, const CountExecuted&) {
    const Tensor gate = random_tensor(backend, {rows, d}, dtype, 1), up = random_tensor(backend, {rows, d}, dtype, 2);
    if (!backward) {
      const Tensor y = output_tensor(backend, {rows, d}, dtype);
      return with_cost(5 * elements, bytes, [=, &backend] { swiglu_forward(backend, {.gate = gate, .up = up}, y); });
    }
    const Tensor dy = random_tensor(backend, {rows, d}, dtype, 3), dgate = output_tensor(backend, {rows, d}, dtype),
                 dup = output_tensor(backend, {rows, d}, dtype);
    return with_cost(11 * elements, bytes, [=, &backend] {
      swiglu_backward(backend, {.gate = gate, .up = up}, dy, {.dgate = dgate, .dup = dup});
    });
  };
  return work;
}

Workload cross_entropy_workload(const Shape& s, DType dtype, Direction direction, std::int64_t most_rows) {
  constexpr std::int64_t vocabulary = 32000;
  const bool backward = direction == Direction::backward;
  const std::int64_t rows = std::min(s.tokens(), most_rows), d = s.model_width();
  const double elements = as_double(rows + vocabulary) * as_double(d);
  Workload work =
      start_workload(Operation::cross_entropy, direction, s, dtype, (backward ? 2 : 1) * elements, 4 * as_double(rows));
  work.shape = std::to_string(rows) + "," + std::to_string(d) + " V " + std::to_string(vocabulary);
  work.estimated_flop = (backward ? 6 : 2) * as_double(rows) * as_double(d) * as_double(vocabulary);
  work.prepare = [=, bytes = work.memory, flop = work.estimated_flop](Backend& backend, const CountExecuted&) {
    const DType stat = statistics_dtype(dtype);
    const Tensor hidden = random_tensor(backend, {rows, d}, dtype, 1),
                 weight = random_tensor(backend, {vocabulary, d}, dtype, 2),
                 labels = on_device(backend, draw_labels(rows, vocabulary));
    const std::span<const std::int64_t> scalar;
    if (!backward) {
      const Tensor loss = output_tensor(backend, scalar, stat);
      return with_cost(flop, bytes, [=, &backend] {
        cross_entropy_forward(backend, {}, {.hidden = hidden, .weight = weight, .labels = labels}, loss);
      });
    }
    const Tensor dloss = random_tensor(backend, scalar, stat, 3), dhidden = output_tensor(backend, {rows, d}, dtype),
                 dweight = output_tensor(backend, {vocabulary, d}, dtype);
    return with_cost(flop, bytes, [=, &backend] {
      cross_entropy_backward(backend, {}, {.hidden = hidden, .weight = weight, .labels = labels}, dloss,
                             {.dhidden = dhidden, .dweight = dweight});
    });
  };
  return work;
}

Workload adamw_workload(const Shape& s, DType dtype) {
  const std::int64_t d = s.model_width();
  const double elements = 12 * as_double(d) * as_double(d);
  const auto state = static_cast<double>(size_of(statistics_dtype(dtype)));
  Workload work = start_workload(Operation::adamw, Direction::forward, s, dtype, 2 * elements, 2 * state * elements);
  work.shape = "12," + std::to_string(d) + "," + std::to_string(d);
  work.prepare = [=](Backend& backend, const CountExecuted&) {
    const DType stat = statistics_dtype(dtype);
    const std::int64_t shape[] = {12, d, d};
    const Tensor param = random_tensor(backend, shape, dtype, 1), grad = random_tensor(backend, shape, dtype, 2),
                 m = output_tensor(backend, shape, stat), v = output_tensor(backend, shape, stat);
    return with_cost(14 * elements, elements * (3 * static_cast<double>(size_of(dtype)) + 4 * state), [=, &backend] {
      adamw_step(backend, {.lr = 1e-4, .weight_decay = 0.1}, {.param = param, .grad = grad, .m = m, .v = v},
                 {.param = param, .m = m, .v = v});
    });
  };
  return work;
}

}  // namespace dsalt::benchmark
