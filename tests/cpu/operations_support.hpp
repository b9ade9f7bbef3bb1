// What the tests of the CPU operations beside attention share: tensors in awkward layouts, the same call on several
// thread counts, and the comparison with the reference in float64.
//
// The reference gets the exact float64 copies of the inputs, so that only the CPU backend's arithmetic and its one
// output rounding are judged: |error| <= 4 (2 u_32 E + u_out |ref|) + smallest subnormal, E being the sum of the
// absolute terms that make up the output (u_32 = 2^-24).
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "dsalt/dsalt.hpp"

namespace dsalt::cpu_test {

using Shape = std::vector<std::int64_t>;
using Values = std::vector<double>;

enum class Layout {
  contiguous,
  strided,   // dimensions in reverse order in memory, gaps everywhere
  backward,  // row-major with a negative innermost stride
};
inline const Layout all_layouts[] = {Layout::contiguous, Layout::strided, Layout::backward};
inline const DType main_dtypes[] = {DType::f32, DType::bf16, DType::f16};

constexpr unsigned char fill = 0xa5;  // bytes of fresh memory and of gaps

/// Fresh tensor, every byte of it and of its gaps `fill`.
inline Tensor fresh(const Shape& shape, DType dtype, Layout layout = Layout::contiguous) {
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  TensorView view = TensorView::of(nullptr, dtype, shape);
  std::int64_t span = view.size();
  std::int64_t first = 0;
  if (layout == Layout::strided && span > 0) {
    std::int64_t stride = 2;
    for (int d = 0; d < view.rank; ++d) {
      view.strides[d] = stride;
      stride = stride * view.shape[d] + 3;
    }
    span = stride;
  }
  if (layout == Layout::backward && view.rank > 0 && span > 0) {
    const int last = view.rank - 1;
    view.strides[last] = -view.strides[last];
    first = view.shape[last] - 1;
  }
  const std::int64_t bytes = span * element + 1;
  std::shared_ptr<unsigned char[]> storage(new unsigned char[bytes]);
  std::memset(storage.get(), fill, bytes);
  view.data = storage.get() + first * element;
  return Tensor(storage, view);
}

/// Calls body(element address) for each element in row-major order.
inline void each_element(const TensorView& view, const std::function<void(unsigned char*)>& body) {
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t count = view.size();
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t rest = n, offset = 0;
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += rest % view.shape[d] * view.strides[d];
      rest /= view.shape[d];
    }
    body(static_cast<unsigned char*>(view.data) + offset * element);
  }
}

inline Values values(const TensorView& view) {
  Values result;
  each_element(view, [&](unsigned char* at) {
    switch (view.dtype) {
      case DType::f64: {
        double x;
        std::memcpy(&x, at, sizeof x);
        return result.push_back(x);
      }
      case DType::f32: {
        float x;
        std::memcpy(&x, at, sizeof x);
        return result.push_back(x);
      }
      case DType::i32: {
        std::int32_t x;
        std::memcpy(&x, at, sizeof x);
        return result.push_back(x);
      }
      default: {
        std::uint16_t bits;
        std::memcpy(&bits, at, sizeof bits);
        return result.push_back(view.dtype == DType::bf16 ? to_float(bfloat16{bits}) : to_float(float16{bits}));
      }
    }
  });
  return result;
}

/// One rounding to the dtype.
inline Tensor tensor(const Shape& shape, const Values& numbers, DType dtype = DType::f32,
                     Layout layout = Layout::contiguous) {
  Tensor result = fresh(shape, dtype, layout);
  BOOST_REQUIRE_EQUAL(static_cast<std::size_t>(result.view().size()), numbers.size());
  if (numbers.empty()) return result;
  if (dtype == DType::i32) {
    std::vector<std::int32_t> whole(numbers.begin(), numbers.end());
    copy_elements(TensorView::of(whole.data(), DType::i32, shape), result);
  } else {
    copy_elements(TensorView::of(const_cast<double*>(numbers.data()), DType::f64, shape), result);
  }
  return result;
}

/// Seeded values in [-size, size].
inline Tensor random(const Shape& shape, std::uint32_t seed, DType dtype = DType::f32, double size = 1,
                     Layout layout = Layout::contiguous) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> draw(-size, size);
  Values numbers(TensorView::of(nullptr, dtype, shape).size());
  for (double& x : numbers) x = draw(engine);
  return tensor(shape, numbers, dtype, layout);
}

/// Exact float64 copy; absent stays absent.
inline Tensor wide(const Tensor& narrow) {
  if (!narrow.present()) return {};
  const TensorView& view = narrow.view();
  Tensor result = fresh(Shape(view.shape.begin(), view.shape.begin() + view.rank), DType::f64);
  copy_elements(narrow, result);
  return result;
}

inline bool same_bytes(const TensorView& a, const TensorView& b) {
  std::vector<unsigned char> left, right;
  const auto collect = [](const TensorView& view, std::vector<unsigned char>& into) {
    each_element(view, [&](unsigned char* at) { into.insert(into.end(), at, at + size_of(view.dtype)); });
  };
  collect(a, left);
  collect(b, right);
  return a.dtype == b.dtype && left == right;
}

/// Whether the gaps of a strided tensor still hold `fill`.
inline bool gaps_untouched(const Tensor& strided) {
  const TensorView& view = strided.view();
  if (view.size() == 0) return true;
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  std::int64_t span = 1;
  for (int d = 0; d < view.rank; ++d) {
    if (view.strides[d] < 0) return true;  // row-major without gaps
    span += (view.shape[d] - 1) * view.strides[d];
  }
  std::vector<bool> used(span * element);
  const auto* base = static_cast<unsigned char*>(view.data);
  each_element(view, [&](unsigned char* at) {
    for (std::int64_t b = 0; b < element; ++b) used[at - base + b] = true;
  });
  for (std::int64_t b = 0; b < span * element; ++b)
    if (!used[b] && base[b] != fill) return false;
  return true;
}

inline std::unique_ptr<Backend> cpu(int threads = 1) {
  BackendOptions options;
  options.threads = threads;
  return make_backend("cpu", options);
}
inline std::unique_ptr<Backend> reference() { return make_backend("reference"); }

/// A call that makes its own output tensors and returns them.
using Call = std::function<std::vector<Tensor>(Backend&)>;

/// Outputs of the call on one thread; two and seven threads, and a repetition, must give the same bytes.
inline std::vector<Tensor> run_on_cpu(const Call& call) {
  const std::vector<Tensor> first = call(*cpu(1));
  for (const int threads : {1, 2, 7}) {
    const std::vector<Tensor> again = call(*cpu(threads));
    for (std::size_t n = 0; n < first.size(); ++n)
      BOOST_TEST(same_bytes(first[n], again[n]), "output " << n << " differs on " << threads << " threads");
  }
  for (std::size_t n = 0; n < first.size(); ++n) BOOST_TEST(gaps_untouched(first[n]), "output " << n);
  return first;
}

inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-9;
    case DType::f16: return 0x1p-12;
    case DType::f64: return 0x1p-53;
    default: return 0x1p-24;
  }
}

/// `terms` is E for each element.
inline void check(const std::string& what, const TensorView& actual, const Values& expected, const Values& terms) {
  const Values found = values(actual);
  BOOST_REQUIRE_EQUAL(found.size(), expected.size());
  BOOST_REQUIRE_EQUAL(found.size(), terms.size());
  const double tiny = actual.dtype == DType::f16 ? 0x1p-24 : actual.dtype == DType::bf16 ? 0x1p-133 : 0x1p-149;
  for (std::size_t n = 0; n < found.size(); ++n) {
    const double allowed = 4 * (0x1p-23 * terms[n] + unit_roundoff(actual.dtype) * std::fabs(expected[n])) + 4 * tiny;
    if (!(std::fabs(found[n] - expected[n]) <= allowed)) {
      BOOST_ERROR(what << "[" << n << "]: got " << found[n] << ", need " << expected[n] << " within " << allowed);
      return;
    }
  }
}
/// Where an output is one product or quotient: E = |ref|.
inline void check(const std::string& what, const TensorView& actual, const Values& expected) {
  Values terms(expected);
  for (double& x : terms) x = std::fabs(x);
  check(what, actual, expected, terms);
}

}  // namespace dsalt::cpu_test
