// attention  forward 2 P (D + Dv) FLOP, backward P (6 D + 4 Dv); here Dv = D.
// bytes      forward  e (D Nq + Dv Nq) Hq + e (D + Dv) R   + 4 Nq Hq (lse)          + windows + lists
//            backward e (2 D + 2 Dv) Nq Hq + 2 e (D + Dv) R + 8 Nq Hq (lse, delta)  + windows + lists
// summed over sequences; R counts the keys of all kv heads that some query admits, e is the size of an element. Pages
// change none of it.
// merge      3 FLOP for each element of the output; three tensors and three lse.
#include <algorithm>

#include "bench/data.hpp"
#include "bench/pairs.hpp"
#include "bench/workload.hpp"
#include "dsalt/attention.hpp"

namespace dsalt::benchmark {
namespace {

double as_double(std::int64_t n) { return static_cast<double>(n); }

std::int64_t list_count(const Shape& shape) {
  return shape.chunk > 0 ? (shape.queries + shape.chunk - 1) / shape.chunk : 1;
}

double estimated_pairs(const Shape& s) {
  double per_query = as_double(s.keys);
  if (s.mask == Mask::causal) per_query = std::max(as_double(s.keys) / 2, as_double(s.keys) - as_double(s.queries) / 2);
  if (s.sparse()) {
    const std::int64_t low = s.windows == Windows::constant ? s.window : s.window_low;
    per_query = std::min(per_query, as_double(low + s.window) / 2 + 1 + as_double(s.landmarks));
  }
  return as_double(s.batch * s.heads * s.queries) * per_query;
}

struct Sizes {
  explicit Sizes(const Shape& s)
      : query_rows(as_double(s.batch * s.heads * s.queries)),
        key_rows(as_double(s.batch * s.kv_heads * s.keys)),
        cache_rows(s.page_size > 0 ? as_double(s.batch * s.kv_heads * s.pages()) * as_double(s.page_size) : key_rows),
        width(as_double(s.width)),
        mask_bytes(!s.sparse() ? 0
                               : 4 * ((s.window < 0 ? 0 : query_rows) +
                                      as_double(s.batch * s.list_heads() * list_count(s) * s.landmarks))) {}
  double query_rows, key_rows, cache_rows, width, mask_bytes;  // cache_rows: the keys, in whole pages
};

Cost cost_of(const Shape& shape, DType dtype, Direction direction, const AdmittedPairs& admitted) {
  const Sizes sizes(shape);
  const bool backward = direction == Direction::backward;
  const auto element = static_cast<double>(size_of(dtype));
  Cost cost;
  cost.pairs = as_double(admitted.pairs);
  cost.flop = *cost.pairs * sizes.width * (backward ? 10 : 4);
  cost.bytes = (backward ? 2 : 1) * element * 2 * sizes.width * (sizes.query_rows + as_double(admitted.keys_read)) +
               (backward ? 8 : 4) * sizes.query_rows + sizes.mask_bytes;
  return cost;
}

/// int32 [B]: every sequence has all keys.
Tensor full_lengths(const Shape& shape) {
  Tensor tensor = Tensor::empty({shape.batch}, DType::i32);
  std::fill_n(tensor.view().at<std::int32_t>(0), shape.batch, static_cast<std::int32_t>(shape.keys));
  return tensor;
}

Prepared prepare(Backend& backend, const CountExecuted& count_executed, const Shape& s, DType dtype,
                 Direction direction) {
  const std::int64_t q_shape[] = {s.batch, s.heads, s.queries, s.width};
  const std::int64_t k_shape[] = {s.batch, s.kv_heads, s.keys, s.width};
  const std::int64_t row_shape[] = {s.batch, s.heads, s.queries};
  const std::int64_t pool_shape[] = {s.page_size > 0 ? s.batch * s.pages() : 0, s.kv_heads, s.page_size, s.width};
  const auto cache_shape = s.page_size > 0 ? std::span(pool_shape) : std::span(k_shape);
  AttentionProblem problem;
  problem.mask = s.mask;
  Tensor windows, lists;
  if (s.sparse()) windows = draw_windows(s);
  if (s.landmarks > 0) lists = draw_landmarks(s);
  if (s.landmarks > 0 && s.chunk > 0) problem.landmark_chunk = s.chunk;

  const Tensor q = random_tensor(backend, q_shape, dtype, 1), k = random_tensor(backend, cache_shape, dtype, 2),
               v = random_tensor(backend, cache_shape, dtype, 3), out = output_tensor(backend, q_shape, dtype),
               lse = output_tensor(backend, row_shape, statistics_dtype(dtype));
  AttentionInputs inputs;
  inputs.q = q;
  // Masks, and what is counted of them, do not depend on where keys are.
  inputs.k = TensorView::of(k.view().data, dtype, k_shape);
  inputs.v = TensorView::of(v.view().data, dtype, k_shape);
  inputs.window = windows;
  inputs.landmarks = lists;
  const AdmittedPairs admitted = count_admitted(problem, inputs);
  Prepared prepared{cost_of(s, dtype, direction, admitted), {}};
  prepared.tensors = {{"q", q}, {"k", k}, {"v", v}, {"out", out}, {"lse", lse}};
  if (const auto executed = count_executed ? count_executed(direction, problem, inputs) : std::nullopt)
    prepared.cost.executed_pairs = as_double(*executed);

  windows = on_device(backend, windows);
  lists = on_device(backend, lists);
  inputs.k = k;
  inputs.v = v;
  inputs.window = windows;
  inputs.landmarks = lists;
  Tensor table, lengths;
  if (s.page_size > 0) {
    table = on_device(backend, draw_page_table(s));
    lengths = on_device(backend, full_lengths(s));
    inputs.page_table = table;
    inputs.k_lengths = lengths;
  }
  const auto forward = [=, &backend] { attention_forward(backend, problem, inputs, {.out = out, .lse = lse}); };
  if (direction == Direction::forward) {
    prepared.call = [=, hold = std::vector<Tensor>{q, k, v, out, lse, windows, lists, table, lengths}] { forward(); };
    return prepared;
  }
  forward();
  const Tensor dout = random_tensor(backend, q_shape, dtype, 4), dq = output_tensor(backend, q_shape, dtype),
               dk = output_tensor(backend, k_shape, dtype), dv = output_tensor(backend, k_shape, dtype);
  prepared.tensors.insert({{"dout", dout}, {"dq", dq}, {"dk", dk}, {"dv", dv}});
  AttentionSaved saved;
  saved.out = out;
  saved.lse = lse;
  saved.dout = dout;
  AttentionGradients gradients;
  gradients.dq = dq;
  gradients.dk = dk;
  gradients.dv = dv;
  prepared.call = [=, &backend, hold = std::vector<Tensor>{q, k, v, out, lse, windows, lists, dout, dq, dk, dv}] {
    attention_backward(backend, problem, inputs, saved, gradients);
  };
  return prepared;
}

}  // namespace

Workload attention_workload(const Shape& shape, DType dtype, Direction direction) {
  const Sizes sizes(shape);
  const bool backward = direction == Direction::backward;
  Workload work = start_workload(Operation::attention, direction, shape, dtype,
                                 (backward ? 4 : 2) * sizes.width * (sizes.query_rows + sizes.cache_rows),
                                 8 * sizes.query_rows + sizes.mask_bytes);
  work.shape = full_name(shape);
  if (backward && shape.page_size > 0) work.refused = "attention of a paged cache has no backward pass";
  work.estimated_flop = estimated_pairs(shape) * sizes.width * (backward ? 10 : 4);
  work.prepare = [shape, dtype, direction](Backend& backend, const CountExecuted& count_executed) {
    return prepare(backend, count_executed, shape, dtype, direction);
  };
  return work;
}

Workload merge_workload(const Shape& shape, DType dtype) {
  const double rows = as_double(shape.batch * shape.heads * shape.queries), elements = rows * as_double(shape.width);
  Workload work = start_workload(Operation::merge, Direction::forward, shape, dtype, 3 * elements, 24 * rows);
  work.shape = std::to_string(shape.batch) + "," + std::to_string(shape.heads) + "," + std::to_string(shape.queries) +
               "," + std::to_string(shape.width);
  work.prepare = [=](Backend& backend, const CountExecuted&) {
    const std::int64_t out_shape[] = {shape.batch, shape.heads, shape.queries, shape.width};
    const std::int64_t row_shape[] = {shape.batch, shape.heads, shape.queries};
    const DType stat = statistics_dtype(dtype);
    const Tensor out1 = random_tensor(backend, out_shape, dtype, 1), lse1 = random_tensor(backend, row_shape, stat, 2),
                 out2 = random_tensor(backend, out_shape, dtype, 3), lse2 = random_tensor(backend, row_shape, stat, 4),
                 out = output_tensor(backend, out_shape, dtype), lse = output_tensor(backend, row_shape, stat);
    Prepared prepared;
    prepared.cost.flop = 3 * elements;
    prepared.cost.bytes =
        3 * (elements * static_cast<double>(size_of(dtype)) + rows * static_cast<double>(size_of(stat)));
    prepared.call = [=, &backend] {
      merge(backend, {.out1 = out1, .lse1 = lse1, .out2 = out2, .lse2 = lse2}, {.out = out, .lse = lse});
    };
    return prepared;
  };
  return work;
}

}  // namespace dsalt::benchmark
