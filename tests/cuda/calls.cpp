#include "calls.hpp"

#include <cmath>
#include <limits>

#include "internal/elements.hpp"

namespace gpu_test {

using namespace dsalt;

namespace {

/// Between -1.7 and 1.7, of unit variance.
double number(std::uint64_t counter) {
  std::uint64_t z = (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1) * 1.732;
}

/// Makes the tensors of one backend and remembers them for the call that is being built.
class Maker {
 public:
  Maker(Backend& backend, DType dtype) : backend_(backend), dtype_(dtype) {}

  DType statistics() const { return statistics_dtype(dtype_); }
  TensorView in(const Shape& shape) { return in(shape, dtype_); }
  TensorView in(const Shape& shape, DType dtype, double scale = 1, double mean = 0) {
    return keep(random_host(shape, dtype, ++seed_, scale, mean));
  }
  TensorView in_i32(const Shape& shape, const std::vector<std::int32_t>& values) {
    const Tensor host = Tensor::empty(shape, DType::i32);
    for (std::size_t n = 0; n < values.size(); ++n) host.view().at<std::int32_t>(0)[n] = values[n];
    return keep(host);
  }
  TensorView out(const Shape& shape) { return out(shape, dtype_); }
  TensorView out(const Shape& shape, DType dtype) {
    const Tensor tensor = on_device(backend_, Tensor::zeros(shape, dtype));
    call_.outputs.push_back(tensor);
    return tensor;
  }
  void done(const char* name, std::function<void(Backend&)> run) {
    call_.name = name;
    call_.run = std::move(run);
    calls.push_back(std::move(call_));
    call_ = {};
  }

  std::vector<Call> calls;

 private:
  TensorView keep(const Tensor& host) {
    call_.inputs.push_back(on_device(backend_, host));
    return call_.inputs.back();
  }

  Backend& backend_;
  DType dtype_;
  std::uint64_t seed_ = 0;
  Call call_;
};

/// Landmarks spread over the tokens before a chunk; -1 where there are none.
std::vector<std::int32_t> lists(std::int64_t heads, std::int64_t count, std::int64_t k, std::int64_t chunk) {
  std::vector<std::int32_t> values;
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t t = 0; t < count; ++t)
      for (std::int64_t slot = 0; slot < k; ++slot)
        values.push_back(t == 0 ? -1 : static_cast<std::int32_t>((slot * 13 + h) % (t * chunk)));
  return values;
}

/// Forward and backward of one attention problem. The backward call computes its own forward first: what it needs is
/// written by the same backend.
void add_attention(Maker& make, const char* forward_name, const char* backward_name, const AttentionProblem& problem,
                   const std::function<AttentionInputs()>& inputs, const Shape& out_shape, const Shape& row_shape) {
  {
    const AttentionInputs in = inputs();
    const AttentionOutputs out{make.out(out_shape), make.out(row_shape, make.statistics())};
    make.done(forward_name, [=](Backend& b) { attention_forward(b, problem, in, out); });
  }
  const AttentionInputs in = inputs();
  const AttentionOutputs out{make.out(out_shape), make.out(row_shape, make.statistics())};
  const AttentionSaved saved{out.out, out.lse, make.in(out_shape), make.in(row_shape, make.statistics())};
  const auto like = [&](const TensorView& view) {
    return view.present() ? make.out(Shape(view.shape.begin(), view.shape.begin() + view.rank), view.dtype) : view;
  };
  AttentionGradients g;
  g.dq = like(in.q);
  g.dk = like(in.k);
  g.dv = like(in.v);
  if (in.window.present() && is_floating(in.window.dtype)) g.dwindow = like(in.window);
  g.dlandmark_log_weight = like(in.landmark_log_weight);
  make.done(backward_name, [=](Backend& b) {
    attention_forward(b, problem, in, out);
    attention_backward(b, problem, in, saved, g);
  });
}

void add_attentions(Maker& make) {
  constexpr std::int64_t n = 150, d = 64, chunk = 32, k = 4, count = (n + chunk - 1) / chunk;
  AttentionProblem causal;
  add_attention(make, "attention_forward (causal)", "attention_backward (causal)", causal,
                [&] {
                  AttentionInputs in;
                  in.q = make.in({2, 4, n, d});
                  in.k = make.in({2, 2, n, d});
                  in.v = make.in({2, 2, n, d});
                  return in;
                },
                {2, 4, n, d}, {2, 4, n});

  AttentionProblem sparse;
  sparse.mask = Mask::sparse;
  sparse.landmark_chunk = chunk;
  sparse.soft_edge = SoftEdge{2, 1};
  add_attention(make, "attention_forward (sparse)", "attention_backward (sparse)", sparse,
                [&] {
                  AttentionInputs in;
                  in.q = make.in({1, 4, n, d});
                  in.k = make.in({1, 2, n, d});
                  in.v = make.in({1, 2, n, d});
                  in.window = make.in({1, 4, n}, make.statistics(), 5, 20);
                  in.landmarks = make.in_i32({1, 4, count, k}, lists(4, count, k, chunk));
                  in.landmark_log_weight = make.in({1, 4, count, k}, make.statistics(), 0.3);
                  return in;
                },
                {1, 4, n, d}, {1, 4, n});

  AttentionProblem packed;
  packed.dropout = Dropout{0.25, 7, 3};
  add_attention(make, "attention_forward (packed, dropout)", "attention_backward (packed, dropout)", packed,
                [&] {
                  AttentionInputs in;
                  in.q = make.in({n, 2, d});
                  in.k = make.in({n, 2, d});
                  in.v = make.in({n, 2, d});
                  in.cu_seqlens_q = make.in_i32({4}, {0, 33, 33, 150});
                  in.cu_seqlens_k = make.in_i32({4}, {0, 33, 40, 150});
                  return in;
                },
                {n, 2, d}, {n, 2});

  AttentionProblem decode;
  const AttentionInputs in = [&] {
    AttentionInputs cache;
    cache.q = make.in({3, 4, 1, d});
    cache.k = make.in({3, 2, 300, d});
    cache.v = make.in({3, 2, 300, d});
    cache.k_lengths = make.in_i32({3}, {300, 17, 0});
    return cache;
  }();
  const AttentionOutputs out{make.out({3, 4, 1, d}), make.out({3, 4, 1}, make.statistics())};
  make.done("attention_forward (decode)", [=](Backend& b) { attention_forward(b, decode, in, out); });

  const AttentionInputs pages = [&] {
    AttentionInputs cache;
    cache.q = make.in({3, 4, 1, d});
    cache.k = make.in({7, 2, 16, d});
    cache.v = make.in({7, 2, 16, d});
    cache.k_lengths = make.in_i32({3}, {48, 17, 0});
    cache.page_table = make.in_i32({3, 3}, {6, 0, 3, 6, 2, 0, 0, 0, 0});
    return cache;
  }();
  const AttentionOutputs paged{make.out({3, 4, 1, d}), make.out({3, 4, 1}, make.statistics())};
  make.done("attention_forward (paged)", [=](Backend& b) { attention_forward(b, decode, pages, paged); });

  const MergeInputs parts{make.in({2, 50, d}), make.in({2, 50}, make.statistics()), make.in({2, 50, d}),
                          make.in({2, 50}, make.statistics())};
  const AttentionOutputs whole{make.out({2, 50, d}), make.out({2, 50}, make.statistics())};
  make.done("merge", [=](Backend& b) { merge(b, parts, whole); });
}

void add_selectors(Maker& make) {
  constexpr std::int64_t n = 120, width = 96;
  const WindowProblem window{2, 40, false};
  const auto window_inputs = [&] {
    return WindowInputs{make.in({2, n, width}), make.in({3, width}, make.statistics(), 0.1),
                        make.in({3}, make.statistics())};
  };
  {
    const WindowInputs in = window_inputs();
    const TensorView out = make.out({2, 3, n}, make.statistics());
    make.done("window_sizes_forward", [=](Backend& b) { window_sizes_forward(b, window, in, out); });
  }
  {
    const WindowInputs in = window_inputs();
    const TensorView upstream = make.in({2, 3, n}, make.statistics());
    const WindowGradients g{make.out({2, n, width}), make.out({3, width}, make.statistics()),
                            make.out({3}, make.statistics())};
    make.done("window_sizes_backward", [=](Backend& b) { window_sizes_backward(b, window, in, upstream, g); });
  }
  const auto energy_inputs = [&] { return EnergyInputs{make.in({2, n, width}), make.in({2, 2, n, 32})}; };
  {
    const EnergyInputs in = energy_inputs();
    const Energies out{make.out({2, n}, make.statistics()), make.out({2, 2, n}, make.statistics())};
    make.done("energies_forward", [=](Backend& b) { energies_forward(b, in, out); });
  }
  {
    const EnergyInputs in = energy_inputs();
    const Energies upstream{make.in({2, n}, make.statistics()), make.in({2, 2, n}, make.statistics())};
    const EnergyGradients g{make.out({2, n, width}), make.out({2, 2, n, 32})};
    make.done("energies_backward", [=](Backend& b) { energies_backward(b, in, upstream, g); });
  }
  SelectionProblem selection;
  selection.k = 6;
  selection.chunk = 16;
  constexpr std::int64_t count = (n + 15) / 16;
  const SelectionInputs in{make.in({2, n}, make.statistics(), 1, 9),
                           make.in({2, 2, n}, make.statistics(), 1, 5),
                           make.in({4}, make.statistics()),
                           {}};
  const Shape list_shape = {2, 4, count, 6};
  const SelectionOutputs out{make.out(list_shape, DType::i32), make.out(list_shape, make.statistics()),
                             make.out(list_shape, make.statistics())};
  const SelectionSaved saved{out.landmarks, make.in(list_shape, make.statistics())};
  const SelectionGradients g{make.out({2, n}, make.statistics()), make.out({2, 2, n}, make.statistics()),
                             make.out({4}, make.statistics())};
  make.done("select_landmarks", [=](Backend& b) {
    select_landmarks_forward(b, selection, in, out);
    select_landmarks_backward(b, selection, in, saved, g);
  });
}

void add_network(Maker& make) {
  {
    const RmsNormInputs in{make.in({70, 200}), make.in({200}, make.statistics())};
    const TensorView y = make.out({70, 200});
    make.done("rmsnorm_forward", [=](Backend& b) { rmsnorm_forward(b, {}, in, y); });
  }
  {
    const RmsNormInputs in{make.in({70, 200}), make.in({200}, make.statistics())};
    const TensorView dy = make.in({70, 200});
    const RmsNormGradients g{make.out({70, 200}), make.out({200}, make.statistics())};
    make.done("rmsnorm_backward", [=](Backend& b) { rmsnorm_backward(b, {}, in, dy, g); });
  }
  {
    RopeInputs in;
    in.x = make.in({2, 3, 50, 64});
    in.positions = make.in_i32({2}, {0, 1000});
    const TensorView y = make.out({2, 3, 50, 64});
    make.done("rope_forward", [=](Backend& b) { rope_forward(b, {}, in, y); });
    const TensorView dy = make.in({2, 3, 50, 64}), dx = make.out({2, 3, 50, 64});
    make.done("rope_backward", [=](Backend& b) { rope_backward(b, {}, {}, dy, dx); });
  }
  {
    const SwigluInputs in{make.in({60, 130}), make.in({60, 130})};
    const TensorView y = make.out({60, 130});
    make.done("swiglu_forward", [=](Backend& b) { swiglu_forward(b, in, y); });
  }
  {
    const SwigluInputs in{make.in({60, 130}), make.in({60, 130})};
    const TensorView dy = make.in({60, 130});
    const SwigluGradients g{make.out({60, 130}), make.out({60, 130})};
    make.done("swiglu_backward", [=](Backend& b) { swiglu_backward(b, in, dy, g); });
  }
  const auto loss_inputs = [&] {
    return CrossEntropyInputs{make.in({40, 64}), make.in({300, 64}), make.in_i32({40}, [] {
                                std::vector<std::int32_t> labels;
                                for (int r = 0; r < 40; ++r) labels.push_back(r == 5 ? -100 : 7 * r);
                                return labels;
                              }())};
  };
  {
    const CrossEntropyInputs in = loss_inputs();
    const TensorView loss = make.out({}, make.statistics());
    make.done("cross_entropy_forward", [=](Backend& b) { cross_entropy_forward(b, {}, in, loss); });
  }
  {
    const CrossEntropyInputs in = loss_inputs();
    const TensorView dloss = make.in({}, make.statistics());
    const CrossEntropyGradients g{make.out({40, 64}), make.out({300, 64})};
    make.done("cross_entropy_backward", [=](Backend& b) { cross_entropy_backward(b, {}, in, dloss, g); });
  }
  const AdamWInputs in{make.in({1000}), make.in({1000}), make.in({1000}, make.statistics()),
                       make.in({1000}, make.statistics(), 0.1, 0.5)};
  const AdamWOutputs out{make.out({1000}), make.out({1000}, make.statistics()), make.out({1000}, make.statistics())};
  make.done("adamw_step", [=](Backend& b) { adamw_step(b, {.lr = 0.1, .weight_decay = 0.1}, in, out); });
}

}  // namespace

Tensor random_host(const Shape& shape, DType dtype, std::uint64_t seed, double scale, double mean) {
  const Tensor host = Tensor::empty(shape, dtype);
  for (std::int64_t n = 0; n < host.view().size(); ++n)
    dsalt::internal::store_double(host, n, mean + scale * number(seed << 40 | static_cast<std::uint64_t>(n)));
  return host;
}

Tensor on_device(Backend& backend, const Tensor& host) {
  const TensorView& view = host;
  const Tensor copy = empty(backend, {view.shape.data(), static_cast<std::size_t>(view.rank)}, view.dtype);
  backend.copy_from_host(copy.view().data, view.data, static_cast<std::size_t>(view.size()) * size_of(view.dtype));
  backend.synchronize();
  return copy;
}

Tensor on_host(Backend& backend, const TensorView& view) {
  const Tensor host = Tensor::empty({view.shape.data(), static_cast<std::size_t>(view.rank)}, view.dtype);
  backend.copy_to_host(host.view().data, view.data, static_cast<std::size_t>(view.size()) * size_of(view.dtype));
  backend.synchronize();
  return host;
}

std::vector<Call> every_call(Backend& backend, DType dtype) {
  Maker make(backend, dtype);
  add_attentions(make);
  add_selectors(make);
  add_network(make);
  return std::move(make.calls);
}

std::vector<double> outputs_of(Backend& backend, const Call& call) {
  std::vector<double> all;
  for (const Tensor& tensor : call.outputs) {
    const Tensor host = on_host(backend, tensor);
    for (std::int64_t n = 0; n < host.view().size(); ++n) all.push_back(dsalt::internal::load_double(host, n));
  }
  return all;
}

void clear_outputs(Backend& backend, const Call& call) {
  for (const Tensor& tensor : call.outputs) {
    const TensorView& view = tensor;
    const Tensor zeros = Tensor::zeros({view.shape.data(), static_cast<std::size_t>(view.rank)}, view.dtype);
    backend.copy_from_host(view.data, zeros.view().data, static_cast<std::size_t>(view.size()) * size_of(view.dtype));
    backend.synchronize();
  }
}

double difference(const std::vector<double>& actual, const std::vector<double>& expected) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return infinity;
  double worst = 0, largest = 0;
  for (std::size_t n = 0; n < actual.size(); ++n) {
    if (actual[n] == expected[n] || (std::isnan(actual[n]) && std::isnan(expected[n]))) continue;  // lse -inf is equal
    const double error = std::fabs(actual[n] - expected[n]);
    if (!(error < infinity)) return infinity;
    worst = std::fmax(worst, error);
  }
  for (const double value : expected)
    if (std::isfinite(value)) largest = std::fmax(largest, std::fabs(value));
  return worst == 0 ? 0 : worst / largest;
}

}  // namespace gpu_test
