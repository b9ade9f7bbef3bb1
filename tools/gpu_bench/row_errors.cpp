#include "gpu_bench/row_errors.hpp"

#include <algorithm>
#include <cmath>

#include "bench/data.hpp"
#include "bench/mask_view.hpp"
#include "dsalt/registry.hpp"
#include "internal/elements.hpp"

namespace dsalt::benchmark {
namespace {

/// A few rows of sequence b and head h of a tensor of the backend, [B,H,N,D] or with a row of a page table
/// [P,H,page,D], collected as float64 [1,1,rows,D].
class Rows {
 public:
  Rows(Backend& backend, const TensorView& from, std::int64_t b, std::int64_t h, const std::int32_t* pages = nullptr)
      : backend_(backend), from_(from.select(1, h)), b_(b), pages_(pages) {}

  void add(std::int64_t first, std::int64_t count) {
    while (pages_ != nullptr && count > 0) {
      const std::int64_t page = from_.shape[1], row = first % page, here = std::min(page - row, count);
      add(from_.select(0, pages_[first / page]), row, here);
      first += here;
      count -= here;
    }
    if (count > 0) add(from_.select(0, b_), first, count);
  }
  const std::vector<double>& values() const { return values_; }
  TensorView view() const {
    const std::int64_t width = from_.shape[2];
    return TensorView::of(values_.data(), {1, 1, static_cast<std::int64_t>(values_.size()) / width, width});
  }

 private:
  /// Rows of `head` [N,D], which are contiguous.
  void add(const TensorView& head, std::int64_t first, std::int64_t count) {
    const std::int64_t width = head.shape[1];
    const Tensor host = Tensor::empty({count, width}, head.dtype);
    backend_.copy_to_host(host.view().data, head.narrow(0, first, count).data,
                          static_cast<std::size_t>(count * width) * size_of(head.dtype));
    backend_.synchronize();
    for (std::int64_t n = 0; n < count * width; ++n) values_.push_back(internal::load_double(host, n));
  }

  Backend& backend_;
  TensorView from_;  // [B,N,D] or [P,page,D]
  std::int64_t b_;
  const std::int32_t* pages_;
  std::vector<double> values_;
};

/// The row of `out` or `dq` by the definition, in double, from its admitted keys alone.
std::vector<double> by_definition(Backend& reference, Direction direction, const Rows& q, const Rows& k, const Rows& v,
                                  const Rows* dout) {
  const TensorView query = q.view();
  const std::int64_t width = query.shape[3];
  std::vector<double> out(static_cast<std::size_t>(width)), dq = out;
  double lse = 0;
  const TensorView out_view = TensorView::of(out.data(), DType::f64, {1, 1, 1, width}),
                   lse_view = TensorView::of(&lse, DType::f64, {1, 1, 1});
  AttentionProblem full;
  full.mask = Mask::full;
  AttentionInputs inputs;
  inputs.q = query;
  inputs.k = k.view();
  inputs.v = v.view();
  attention_forward(reference, full, inputs, {out_view, lse_view});
  if (direction == Direction::forward) return out;
  AttentionSaved saved;
  saved.out = out_view;
  saved.lse = lse_view;
  saved.dout = dout->view();
  AttentionGradients gradients;
  gradients.dq = TensorView::of(dq.data(), DType::f64, {1, 1, 1, width});
  attention_backward(reference, full, inputs, saved, gradients);
  return dq;
}

}  // namespace

RowErrors sampled_errors(Backend& backend, const Shape& shape, Direction direction, const Prepared& prepared,
                         std::int64_t count) {
  prepared.call();
  backend.synchronize();
  const auto reference = make_backend("reference");
  const bool backward = direction == Direction::backward;
  const auto tensor = [&](const char* name) { return prepared.tensors.at(name).view(); };
  AttentionProblem problem;
  problem.mask = shape.mask;
  if (shape.landmarks > 0 && shape.chunk > 0) problem.landmark_chunk = shape.chunk;
  const Tensor windows = shape.sparse() ? draw_windows(shape) : Tensor(),
               lists = shape.landmarks > 0 ? draw_landmarks(shape) : Tensor();
  AttentionInputs inputs;
  inputs.q = tensor("q");
  const std::int64_t k_shape[] = {shape.batch, shape.kv_heads, shape.keys, shape.width};
  inputs.k = inputs.v = TensorView::of(tensor("k").data, tensor("k").dtype, k_shape);  // for masks: not read
  const Tensor table = shape.page_size > 0 ? draw_page_table(shape) : Tensor();
  inputs.window = windows;
  inputs.landmarks = lists;

  RowErrors errors;
  double square = 0, reference_square = 0;
  std::size_t elements = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    const auto counter = std::uint64_t{19} << 48 | static_cast<std::uint64_t>(3 * n);
    const std::int64_t b = draw(counter, shape.batch), h = draw(counter + 1, shape.heads),
                       i = draw(counter + 2, shape.queries), g = h / (shape.heads / shape.kv_heads);
    const MaskView mask(problem, inputs, b, h);
    const internal::KeyRange range = mask.range(i);
    const std::int32_t* const pages = table.present() ? table.view().at<std::int32_t>(b * shape.pages()) : nullptr;
    Rows q(backend, inputs.q, b, h), k(backend, tensor("k"), b, g, pages), v(backend, tensor("v"), b, g, pages);
    q.add(i, 1);
    const auto admit = [&](std::int64_t first, std::int64_t keys) {
      k.add(first, keys);
      v.add(first, keys);
    };
    admit(range.begin, range.end - range.begin);
    std::vector<std::int64_t> list;
    if (mask.has_lists()) mask.read_list(mask.list_of(i), list);
    for (const std::int64_t l : list)
      if (l <= mask.position(i) && !(l >= range.begin && l < range.end)) admit(l, 1);
    Rows actual(backend, tensor(backward ? "dq" : "out"), b, h);
    actual.add(i, 1);
    std::optional<Rows> dout;
    if (backward) dout.emplace(backend, tensor("dout"), b, h).add(i, 1);
    const std::vector<double> expected = by_definition(*reference, direction, q, k, v, dout ? &*dout : nullptr);
    for (std::size_t t = 0; t < expected.size(); ++t) {
      const double error = std::fabs(actual.values()[t] - expected[t]);
      if (!std::isnan(errors.largest) && !(error <= errors.largest)) errors.largest = error;  // NaN stays
      square += error * error;
      reference_square += expected[t] * expected[t];
    }
    elements += expected.size();
    ++errors.rows;
  }
  if (elements > 0) {
    errors.rms = std::sqrt(square / static_cast<double>(elements));
    errors.magnitude = std::sqrt(reference_square / static_cast<double>(elements));
  }
  return errors;
}

}  // namespace dsalt::benchmark
