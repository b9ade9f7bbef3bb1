#include "support.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <random>

namespace dsalt::faults {
namespace {

std::int64_t element_count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

/// What ran where, printed once at the end: "cpu float32: 41 calls".
struct Ledger {
  std::map<std::string, int> ran, not_run;
  ~Ledger() {
    for (const auto& [what, count] : ran) std::cout << "ran on " << what << ": " << count << " times\n";
    for (const auto& [what, count] : not_run) std::cout << "not run on " << what << " (" << count << " times)\n";
  }
};
Ledger& ledger() {
  static Ledger instance;
  return instance;
}

}  // namespace

Tensor tensor(const Shape& shape, const std::vector<double>& values, DType dtype) {
  Tensor exact = Tensor::empty(shape, DType::f64);
  const auto count = static_cast<std::size_t>(element_count(shape));
  BOOST_REQUIRE_MESSAGE(values.size() == count || values.size() == 1, "test tensor: wrong number of values");
  for (std::size_t n = 0; n < count; ++n)
    *exact.view().at<double>(static_cast<std::int64_t>(n)) = values[values.size() == 1 ? 0 : n];
  Tensor rounded = Tensor::empty(shape, dtype);
  copy_elements(exact, rounded);
  return rounded;
}

Tensor filled(const Shape& shape, double value, DType dtype) { return tensor(shape, {value}, dtype); }

Tensor indices(const Shape& shape, const std::vector<std::int32_t>& values) {
  Tensor result = Tensor::empty(shape, DType::i32);
  BOOST_REQUIRE_MESSAGE(static_cast<std::int64_t>(values.size()) == element_count(shape), "test indices: wrong number");
  for (std::size_t n = 0; n < values.size(); ++n)
    *result.view().at<std::int32_t>(static_cast<std::int64_t>(n)) = values[n];
  return result;
}

Tensor random_tensor(const Shape& shape, std::uint64_t seed, DType dtype, double size) {
  std::mt19937_64 bits(seed);
  std::vector<double> values(static_cast<std::size_t>(element_count(shape)));
  for (double& value : values) value = size * (static_cast<double>(bits() >> 11) * 0x1p-52 - 1);
  if (values.empty()) return Tensor::empty(shape, dtype);
  return tensor(shape, values, dtype);
}

std::vector<double> counting(std::int64_t n) {
  std::vector<double> numbers(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  return numbers;
}

std::vector<double> values(const TensorView& view) {
  Tensor exact = Tensor::empty({view.shape.data(), static_cast<std::size_t>(view.rank)}, DType::f64);
  copy_elements(view, exact);
  const double* first = exact.view().at<double>(0);
  return {first, first + view.size()};
}

std::vector<std::int32_t> integers(const TensorView& view) {
  const Tensor copy = contiguous(view);
  const std::int32_t* first = copy.view().at<std::int32_t>(0);
  return {first, first + view.size()};
}

Tensor contiguous(const TensorView& view) {
  Tensor copy = Tensor::empty({view.shape.data(), static_cast<std::size_t>(view.rank)}, view.dtype);
  copy_elements(view, copy);
  return copy;
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  if (a.rank != b.rank || a.dtype != b.dtype) return false;
  if (!a.present()) return true;
  if (!std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin())) return false;
  const std::size_t bytes = static_cast<std::size_t>(a.size()) * size_of(a.dtype);
  const Tensor x = contiguous(a), y = contiguous(b);
  return bytes == 0 || std::memcmp(x.view().data, y.view().data, bytes) == 0;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    case DType::i32: return 0;
  }
  return 0;
}

double weight_slack(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 ? unit_roundoff(dtype) / 0x1p-24 : 0;
}

void check_near(const TensorView& actual, const std::vector<double>& expected, double slack) {
  BOOST_REQUIRE(actual.present());
  const std::vector<double> got = values(actual);
  BOOST_REQUIRE_EQUAL(got.size(), expected.size());
  BOOST_REQUIRE_MESSAGE(!got.empty(), "an empty comparison proves nothing");
  const double u_acc = actual.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  for (std::size_t n = 0; n < got.size(); ++n) {
    const double magnitude = std::fabs(expected[n]);
    const double bound = unit_roundoff(actual.dtype) * magnitude + slack * u_acc * std::max(1.0, magnitude);
    const bool good = std::isinf(expected[n]) ? got[n] == expected[n] : std::fabs(got[n] - expected[n]) <= bound;
    if (!good) {
      std::ostringstream text;
      text.precision(17);
      text << "element " << n << " of " << to_string(actual) << ": got " << got[n] << ", the definition gives "
           << expected[n] << ", allowed difference " << bound;
      BOOST_ERROR(text.str());
      return;
    }
  }
  BOOST_TEST_PASSPOINT();
  BOOST_CHECK(true);
}

void check_all(const TensorView& actual, double value) {
  BOOST_REQUIRE(actual.present());
  const std::vector<double> got = values(actual);
  const auto wrong = std::find_if(got.begin(), got.end(), [&](double x) { return !(x == value); });
  BOOST_CHECK_MESSAGE(wrong == got.end(), to_string(actual) << " element " << (wrong - got.begin()) << ": got "
                                                            << *wrong << ", need exactly " << value);
}

AttentionInputs Call::inputs() const {
  return {q, k, v, window, landmarks, landmark_log_weight, cu_seqlens_q, cu_seqlens_k, k_lengths, {}};
}

Call one_head(Mask mask, std::int64_t nq, const std::vector<double>& v, DType dtype) {
  const auto nk = static_cast<std::int64_t>(v.size());
  Call call;
  call.problem.mask = mask;
  call.problem.scale = 1;
  call.q = filled({1, 1, nq, 1}, 0, dtype);
  call.k = filled({1, 1, nk, 1}, 0, dtype);
  call.v = tensor({1, 1, nk, 1}, nk == 0 ? std::vector<double>{0} : v, dtype);
  call.dout = filled({1, 1, nq, 1}, 1, dtype);
  return call;
}

Result run(Backend& backend, const Call& call, double unwritten) {
  const auto like = [&](const TensorView& view) {
    return filled({view.shape.begin(), view.shape.begin() + view.rank}, unwritten, view.dtype);
  };
  const TensorView &q = call.q, &v = call.v;
  const DType main = q.dtype;
  Shape out_shape(q.shape.begin(), q.shape.begin() + q.rank);
  const Shape row_shape(out_shape.begin(), out_shape.end() - 1);
  out_shape.back() = v.shape[static_cast<std::size_t>(v.rank - 1)];
  Result result;
  result.out = filled(out_shape, unwritten, main);
  result.lse = filled(row_shape, unwritten, statistics_dtype(main));
  attention_forward(backend, call.problem, call.inputs(), {result.out, result.lse});
  if (!call.dout.present() && !call.dlse.present()) return result;

  const Tensor dout = call.dout.present() ? call.dout : filled(out_shape, 0, main);
  result.dq = like(call.q);
  result.dk = like(call.k);
  result.dv = like(call.v);
  if (call.window.present() && is_floating(call.window.view().dtype)) result.dwindow = like(call.window);
  if (call.landmark_log_weight.present()) result.dlandmark_log_weight = like(call.landmark_log_weight);
  attention_backward(backend, call.problem, call.inputs(), {result.out, result.lse, dout, call.dlse},
                     {result.dq, result.dk, result.dv, result.dwindow, result.dlandmark_log_weight});
  return result;
}

std::string differing(const Result& a, const Result& b) {
  std::string names;
  const auto compare = [&](const char* name, const Tensor& x, const Tensor& y) {
    if (!same_bytes(x, y)) names += (names.empty() ? "" : " ") + std::string(name);
  };
  compare("out", a.out, b.out);
  compare("lse", a.lse, b.lse);
  compare("dq", a.dq, b.dq);
  compare("dk", a.dk, b.dk);
  compare("dv", a.dv, b.dv);
  compare("dwindow", a.dwindow, b.dwindow);
  compare("dlandmark_log_weight", a.dlandmark_log_weight, b.dlandmark_log_weight);
  return names;
}

std::vector<std::string> host_backends() {
  std::vector<std::string> names;
  for (const BackendInfo& info : list_backends()) {
    if (!info.available)
      ++ledger().not_run[info.name + ": " + info.detail];
    else if (make_backend(info.name)->device().type != DeviceType::cpu)
      ++ledger().not_run[info.name + ": not a host backend"];
    else
      names.push_back(info.name);
  }
  for (const char* needed : {"reference", "cpu"})
    BOOST_REQUIRE_MESSAGE(std::count(names.begin(), names.end(), needed) == 1, needed << " backend is not available");
  return names;
}

void on_every_backend(Operation operation, const std::vector<DType>& dtypes,
                      const std::function<void(Backend&, DType)>& body) {
  int ran = 0;
  for (const std::string& name : host_backends()) {
    const std::unique_ptr<Backend> backend = make_backend(name);
    for (const DType dtype : dtypes) {
      const std::string what = name + " " + std::string(name_of(dtype));
      const Support forward = backend->supports(operation, Direction::forward, dtype);
      // merge and adamw have no backward pass of their own
      const bool one_way = operation == Operation::merge || operation == Operation::adamw;
      const Support backward = one_way ? forward : backend->supports(operation, Direction::backward, dtype);
      if (!forward || !backward) {
        ++ledger().not_run[what + ": " + (forward ? backward : forward).reason];
        continue;
      }
      ++ran;
      ++ledger().ran[what];
      BOOST_TEST_CONTEXT(what) {
        try {
          body(*backend, dtype);
        } catch (const std::exception& error) {
          BOOST_ERROR(what + " threw: " + error.what());
        }
      }
    }
  }
  BOOST_REQUIRE_MESSAGE(ran > 0, "no backend ran this case");
}

}  // namespace dsalt::faults
