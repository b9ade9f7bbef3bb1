#include "attention_support.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "internal/admitted.hpp"
#include "internal/dropout.hpp"
#include "internal/elements.hpp"
#include "internal/sequence.hpp"

namespace dsalt::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Tensor filled(std::span<const std::int64_t> shape, DType dtype, double value) {
  Tensor tensor = Tensor::empty(shape, dtype);
  for (std::int64_t n = 0; n < tensor.view().size(); ++n)
    if (dtype == DType::i32)
      tensor.view().at<std::int32_t>(0)[n] = static_cast<std::int32_t>(value);
    else
      internal::store_double(tensor, n, value);
  return tensor;
}

/// Draws a Setup's tensors.
struct Drawing {
  const Setup& setup;
  Call& call;
  std::mt19937_64 generator;

  double normal() { return std::normal_distribution<double>()(generator); }

  /// rows of [heads][tokens][channels], as [B,H,N,C] or [R,H,C].
  TensorView tensor(std::int64_t heads, std::int64_t tokens, std::int64_t channels, double size, bool reversed) {
    const std::int64_t batch = setup.packed() ? 1 : setup.b;
    const std::int64_t row = setup.strided ? channels + 3 : channels;
    const std::int64_t shape[] = {batch, tokens, heads, row};
    Tensor storage = filled(shape, setup.dtype, nan);
    call.storage.push_back(storage);
    TensorView view = storage.view().narrow(3, 0, channels);
    if (!setup.strided && !setup.packed()) {  // contiguous [B,H,N,C]
      const std::int64_t plain[] = {batch, heads, tokens, channels};
      view = TensorView::of(storage.view().data, setup.dtype, plain).transpose(1, 2);
    }
    internal::for_each_element([&](std::int64_t at) { internal::store_double(view, at, size * normal()); }, view);
    if (reversed && channels > 0) {
      view.data = static_cast<char*>(view.data) +
                  static_cast<std::int64_t>(size_of(view.dtype)) * (channels - 1) * view.strides[3];
      view.strides[3] = -view.strides[3];
    }
    return setup.packed() ? view.select(0, 0) : view.transpose(1, 2);
  }

  /// [B,H,N] or [R,H] of the statistics dtype.
  TensorView rows(std::int64_t heads, std::int64_t tokens, DType dtype) {
    const std::int64_t padded[] = {setup.b, heads, tokens}, packed[] = {tokens, heads};
    Tensor storage = Tensor::empty(setup.packed() ? std::span<const std::int64_t>(packed) : padded, dtype);
    call.storage.push_back(storage);
    return storage;
  }

  TensorView offsets(const std::vector<std::int64_t>& lengths) {
    Tensor storage = Tensor::zeros({static_cast<std::int64_t>(lengths.size()) + 1}, DType::i32);
    for (std::size_t n = 0; n < lengths.size(); ++n)
      storage.view().at<std::int32_t>(0)[n + 1] =
          storage.view().at<std::int32_t>(0)[n] + static_cast<std::int32_t>(lengths[n]);
    call.storage.push_back(storage);
    return storage;
  }

  /// Rows [first, tokens) of a [B,H,N,C] or [R,H,C] view become NaN.
  void poison(const TensorView& view, int token_dim, std::int64_t first) {
    const TensorView tail = view.narrow(token_dim, first, view.shape[static_cast<std::size_t>(token_dim)] - first);
    internal::for_each_element([&](std::int64_t at) { internal::store_double(tail, at, nan); }, tail);
  }
};

std::int64_t total(const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t n : lengths) sum += n;
  return sum;
}

}  // namespace

Call draw(const Setup& setup) {
  Call call;
  call.problem = setup.problem;
  Drawing drawing{setup, call, std::mt19937_64(setup.seed)};
  call.q_rows_used = setup.packed() ? total(setup.pack_q) : setup.nq;
  call.k_rows_used = setup.packed() ? total(setup.pack_k) : setup.nk;
  const std::int64_t nq = setup.packed() ? call.q_rows_used + setup.slack : setup.nq;
  const std::int64_t nk = setup.packed() ? call.k_rows_used + setup.slack : setup.nk;
  AttentionInputs& in = call.inputs;
  in.q = drawing.tensor(setup.hq, nq, setup.d, setup.size, false);
  in.k = drawing.tensor(setup.hkv, nk, setup.d, setup.size, setup.strided);
  in.v = drawing.tensor(setup.hkv, nk, setup.dv, 1, false);
  call.arriving.dout = drawing.tensor(setup.hq, nq, setup.dv, 1, false);
  if (setup.dlse) {
    call.arriving.dlse = drawing.rows(setup.hq, nq, DType::f32);
    for (std::int64_t n = 0; n < call.arriving.dlse.size(); ++n)
      call.arriving.dlse.at<float>(0)[n] = static_cast<float>(drawing.normal());
  }
  if (setup.packed()) {
    in.cu_seqlens_q = drawing.offsets(setup.pack_q);
    in.cu_seqlens_k = drawing.offsets(setup.pack_k);
    for (const TensorView* view : {&in.q, &call.arriving.dout}) drawing.poison(*view, 0, call.q_rows_used);
    for (const TensorView* view : {&in.k, &in.v}) drawing.poison(*view, 0, call.k_rows_used);
  }
  if (!setup.k_lengths.empty()) {
    Tensor lengths = Tensor::empty({setup.b}, DType::i32);
    for (std::int64_t b = 0; b < setup.b; ++b) {
      const std::int32_t valid = setup.k_lengths[static_cast<std::size_t>(b)];
      lengths.view().at<std::int32_t>(0)[b] = valid;
      for (const TensorView* view : {&in.k, &in.v}) drawing.poison(view->narrow(0, b, 1), 2, valid);
    }
    call.storage.push_back(lengths);
    in.k_lengths = lengths;
  }
  const std::int64_t batch = setup.packed() ? static_cast<std::int64_t>(setup.pack_q.size()) : setup.b;
  if (setup.window) {
    in.window = drawing.rows(setup.hw, nq, setup.window_dtype);
    for (std::int64_t s = 0; s < batch; ++s) {
      const TensorView rows = internal::attention_sequence(in, s).window;  // [Hw, nq]
      for (std::int64_t h = 0; h < setup.hw; ++h)
        for (std::int64_t i = 0; i < rows.shape[1]; ++i) {
          const std::int64_t at = h * rows.strides[0] + i * rows.strides[1];
          if (setup.window_dtype == DType::i32)
            *rows.at<std::int32_t>(at) = static_cast<std::int32_t>(setup.window(h, i));
          else
            internal::store_double(rows, at, setup.window(h, i));
        }
    }
  }
  if (setup.landmark) {
    std::int64_t longest = setup.nq;
    if (setup.packed()) longest = internal::longest_queries(in);
    const std::int64_t c = setup.problem.landmark_chunk.value_or(0);
    const std::int64_t lists = c ? (longest + setup.problem.landmark_offset + c - 1) / c : 1;
    const std::int64_t shape[] = {batch, setup.hl, lists, setup.slots};
    Tensor landmarks = Tensor::empty(shape, DType::i32), weights = Tensor::empty(shape, DType::f32);
    for (std::int64_t n = 0; n < landmarks.view().size(); ++n) {
      const std::int64_t slot = n % setup.slots, t = n / setup.slots % lists, h = n / setup.slots / lists % setup.hl;
      landmarks.view().at<std::int32_t>(0)[n] = setup.landmark(h, t, slot);
      weights.view().at<float>(0)[n] = static_cast<float>(drawing.normal());
    }
    call.storage.push_back(landmarks);
    call.storage.push_back(weights);
    in.landmarks = landmarks;
    if (setup.weights) in.landmark_log_weight = weights;
  }
  return call;
}

Call to_double(const Call& call) {
  Call wide = call;
  const auto widen = [&](TensorView& view) {
    if (!view.present() || view.dtype == DType::i32) return;
    Tensor copy = Tensor::empty(std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), DType::f64);
    copy_elements(view, copy);
    wide.storage.push_back(copy);
    view = copy;
  };
  for (TensorView* view : {&wide.inputs.q, &wide.inputs.k, &wide.inputs.v, &wide.inputs.window,
                           &wide.inputs.landmark_log_weight, &wide.arriving.dout, &wide.arriving.dlse})
    widen(*view);
  return wide;
}

Results run(Backend& backend, const Call& call, bool backward, float fill) {
  const AttentionInputs& in = call.inputs;
  Results results;
  const auto output = [&](const char* name, const TensorView& like, std::int64_t last, DType dtype) -> TensorView {
    std::vector<std::int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
    if (last == 0) shape.pop_back();
    if (last > 0) shape.back() = last;
    return results[name] = filled(shape, dtype, static_cast<double>(fill));
  };
  const DType dtype = in.q.dtype, statistics = statistics_dtype(dtype);
  const auto rank = static_cast<std::size_t>(in.v.rank);
  AttentionSaved saved = call.arriving;
  saved.out = output("out", in.q, in.v.shape[rank - 1], dtype);
  saved.lse = output("lse", in.q, 0, statistics);
  attention_forward(backend, call.problem, in, {saved.out, saved.lse});
  if (!backward) return results;
  AttentionGradients gradients;
  gradients.dq = output("dq", in.q, -1, dtype);
  gradients.dk = output("dk", in.k, -1, dtype);
  gradients.dv = output("dv", in.v, -1, dtype);
  if (in.window.present() && in.window.dtype != DType::i32)
    gradients.dwindow = output("dwindow", in.window, -1, statistics);
  if (in.landmark_log_weight.present())
    gradients.dlandmark_log_weight = output("dlandmark_log_weight", in.landmark_log_weight, -1, statistics);
  attention_backward(backend, call.problem, in, saved, gradients);
  return results;
}

namespace {

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-24;
  }
}

/// Sum of the absolute terms of every result element times u (2 + size of its row's scores), in float64. `dtype` is
/// what the call is computed in.
Results conditions(const Call& call, DType dtype, const Results& shapes, bool backward) {
  using internal::RowMask;
  const AttentionInputs& in = call.inputs;  // float64
  const internal::AttentionSizes sizes = internal::attention_sizes(in);
  const double scale = std::fabs(call.problem.scale.value_or(1 / std::sqrt(static_cast<double>(sizes.d))));
  const double signed_scale = call.problem.scale.value_or(scale);
  const std::int64_t group = sizes.hq / sizes.hkv;
  Results results;
  for (const auto& [name, tensor] : shapes)
    results[name] =
        filled(std::span(tensor.view().shape.data(), static_cast<std::size_t>(tensor.view().rank)), DType::f64, 0);
  std::vector<internal::AdmittedKey> keys;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const internal::AttentionSequence s = internal::attention_sequence(in, b);
    const RowMask mask{call.problem, s};
    const auto rows = [&](const char* name) { return s.query_rows(results.at(name), sizes.packed); };
    const auto key_rows = [&](const char* name) { return s.key_rows(results.at(name), sizes.packed); };
    const TensorView dout = s.query_rows(call.arriving.dout, sizes.packed);
    const TensorView dlse = s.query_rows(call.arriving.dlse, sizes.packed);
    const auto element = [](const TensorView& view, std::int64_t h, std::int64_t n, std::int64_t c) -> double& {
      return *view.at<double>(h * view.strides[0] + n * view.strides[1] + c * view.strides[2]);
    };
    for (std::int64_t h = 0; h < sizes.hq; ++h) {
      const std::int64_t g = h / group;
      for (std::int64_t i = 0; i < s.nq; ++i) {
        mask.admitted(h, i, keys);
        if (keys.empty()) continue;
        const double w = mask.window(h, i);
        std::vector<double> score, magnitude, dp, keep;
        double highest = -std::numeric_limits<double>::infinity(), size = 0;
        for (const auto& key : keys) {
          double dot = 0, absolute = 0;
          for (std::int64_t c = 0; c < sizes.d; ++c) {
            const double term = element(s.q, h, i, c) * element(s.k, g, key.j, c);
            dot += term;
            absolute += std::fabs(term);
          }
          score.push_back(signed_scale * dot + key.bias);
          highest = std::max(highest, score.back());
          size = std::max(size, scale * absolute + std::fabs(key.bias));
          keep.push_back(
              call.problem.dropout ? internal::dropout_factor(*call.problem.dropout, b * sizes.hq + h, i, key.j) : 1);
        }
        double sum = 0;
        for (const double x : score) sum += std::exp(x - highest);
        const double lse = highest + std::log(sum), unit = 0x1p-24 * (2 + size);
        // P and dS may be rounded to a 16-bit main dtype, and delta comes from an out that was.
        const double rounded = unit + (dtype == DType::f32 ? 0 : unit_roundoff(dtype));
        const TensorView e_out = rows("out"), e_lse = rows("lse");
        *e_lse.at<double>(h * e_lse.strides[0] + i * e_lse.strides[1]) = unit * (1 + std::fabs(lse));
        double delta = dlse.present() ? std::fabs(*dlse.at<double>(h * dlse.strides[0] + i * dlse.strides[1])) : 0;
        for (std::size_t n = 0; n < keys.size(); ++n) {
          const double p = std::exp(score[n] - lse);
          double gradient = 0;
          for (std::int64_t c = 0; c < sizes.dv; ++c) {
            const double value = std::fabs(element(s.v, g, keys[n].j, c));
            element(e_out, h, i, c) += rounded * p * keep[n] * value;
            gradient += value * std::fabs(element(dout, h, i, c));
          }
          dp.push_back(keep[n] * gradient);
          delta += p * dp.back();
        }
        if (!backward) continue;
        const TensorView e_dq = rows("dq"), e_dk = key_rows("dk"), e_dv = key_rows("dv");
        for (std::size_t n = 0; n < keys.size(); ++n) {
          const double p = std::exp(score[n] - lse), ds = rounded * p * (dp[n] + delta);
          for (std::int64_t c = 0; c < sizes.d; ++c) {
            element(e_dq, h, i, c) += ds * scale * std::fabs(element(s.k, g, keys[n].j, c));
            element(e_dk, g, keys[n].j, c) += ds * scale * std::fabs(element(s.q, h, i, c));
          }
          for (std::int64_t c = 0; c < sizes.dv; ++c)
            element(e_dv, g, keys[n].j, c) += rounded * p * keep[n] * std::fabs(element(dout, h, i, c));
          const double e = static_cast<double>(mask.distance(i, keys[n].j));
          if (keys[n].slot < 0 && call.problem.soft_edge && e > w - call.problem.soft_edge->edge) {
            const TensorView e_dw = rows("dwindow");
            const double tau = call.problem.soft_edge->tau;
            *e_dw.at<double>((e_dw.shape[0] == 1 ? 0 : h) * e_dw.strides[0] + i * e_dw.strides[1]) +=
                ds * internal::sigmoid(-(w - e) / tau) / tau;
          }
          if (keys[n].slot >= 0 && in.landmark_log_weight.present()) {
            const TensorView e_dl = results.at("dlandmark_log_weight").view().select(0, b);
            *e_dl.at<double>((e_dl.shape[0] == 1 ? 0 : h) * e_dl.strides[0] + mask.list_of(i) * e_dl.strides[1] +
                             keys[n].slot) += ds;
          }
        }
      }
    }
  }
  return results;
}

/// Weights below 2^-126 keep an absolute precision of 2^-149 only, or are 0 where bfloat16 products flush what is
/// subnormal, and gradients multiply that by values of order 10.
double underflow(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-120;
    case DType::f16: return 0x1p-22;
    default: return 0x1p-143;
  }
}

}  // namespace

double check_against_reference(const Setup& setup, Backend& backend, double factor) {
  const Call call = draw(setup), wide = to_double(call);
  const auto yardstick = make_backend("reference");
  const Results actual = run(backend, call, setup.backward), expected = run(*yardstick, wide, setup.backward);
  const Results condition = conditions(wide, setup.dtype, expected, setup.backward);
  double worst = 0;
  std::size_t compared = 0;
  for (const auto& [name, tensor] : actual) {
    const std::vector<double> values = values_of(tensor), right = values_of(expected.at(name)),
                              bound = values_of(condition.at(name));
    BOOST_REQUIRE_EQUAL(values.size(), right.size());
    compared += values.size();
    const DType dtype = tensor.view().dtype;
    for (std::size_t n = 0; n < values.size(); ++n) {
      if (values[n] == right[n]) continue;  // infinities too
      const double error = std::fabs(values[n] - right[n]);
      const double unit = bound[n] + unit_roundoff(dtype) * std::fabs(right[n]);
      if (!(error <= factor * unit + underflow(dtype))) {
        BOOST_TEST_ERROR(setup.name << ": " << name << "[" << n << "] is " << values[n] << ", reference " << right[n]
                                    << ", error " << error << ", unit " << unit << " (" << error / unit << " units)");
        return error / unit;
      }
      if (unit > 0) worst = std::max(worst, error / unit);
    }
  }
  BOOST_TEST(compared > 0u, setup.name << ": nothing was compared");
  return worst;
}

double noise(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::uint64_t x = static_cast<std::uint64_t>(a * 1000003 + b * 10007 + c * 101 + 12345);
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

double ragged(std::int64_t h, std::int64_t i) {
  const double x = noise(h, i);
  if (i % 17 == 3) return -1;
  if (i % 19 == 5) return nan;
  if (i % 23 == 7) return std::numeric_limits<double>::infinity();
  return x < 0.5 ? x * 10 : x * 200;
}

std::int32_t untidy(std::int64_t h, std::int64_t t, std::int64_t slot, std::int64_t nk) {
  const double x = noise(h + 100, t, slot);
  if (slot % 7 == 2) return -1;
  if (slot % 11 == 5) return static_cast<std::int32_t>(nk + slot);
  if (slot % 5 == 4) return static_cast<std::int32_t>(noise(h + 100, t, slot - 1) * static_cast<double>(nk));
  return static_cast<std::int32_t>(x * static_cast<double>(nk));
}

std::unique_ptr<Backend> cpu_backend(int threads) {
  BackendOptions options;
  options.threads = threads;
  return make_backend("cpu", options);
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.size() == b.size() && a.dtype == b.dtype &&
         std::memcmp(a.data, b.data, static_cast<std::size_t>(a.size()) * size_of(a.dtype)) == 0;
}

void check_same_bytes(const Results& a, const Results& b, const std::string& what) {
  BOOST_TEST_REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) BOOST_TEST(same_bytes(tensor, b.at(name)), what << ": " << name << " differs");
}

std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values;
  internal::for_each_element([&](std::int64_t at) { values.push_back(internal::load_double(view, at)); }, view);
  return values;
}

}  // namespace dsalt::test
