// The backward pass of cross_entropy with many rows: over several chunks of them, at widths with different chunks,
// where every chunk adds to dweight and each row of dhidden is its own chunk's; and with other tiles where there are
// few.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "calls.hpp"
#include "gpu_support.hpp"
#include "internal/elements.hpp"

using namespace dsalt;
using namespace gpu_test;

namespace {

struct Size {
  std::int64_t rows, d, vocabulary;
  double logits;  // their standard deviation
};

constexpr Size sizes[] = {{2500, 64, 1000, 1}, {5000, 256, 1000, 1}, {9000, 1024, 2056, 1}, {9000, 1024, 2056, 20}};

struct Gradients {
  std::vector<double> dhidden, dweight;
};

std::vector<double> numbers(Backend& backend, const Tensor& tensor) {
  const Tensor host = on_host(backend, tensor);
  std::vector<double> values(static_cast<std::size_t>(host.view().size()));
  for (std::size_t n = 0; n < values.size(); ++n) values[n] = internal::load_double(host, static_cast<std::int64_t>(n));
  return values;
}

/// With an upstream gradient of about the number of rows, so that gradients are of unit size. Rows from `counted` on
/// are ignored.
Gradients backward(Backend& backend, const Size& size, std::int64_t counted, DType dtype) {
  const Tensor labels = Tensor::empty({size.rows}, DType::i32), dloss = Tensor::empty({}, DType::f32);
  for (std::int64_t r = 0; r < size.rows; ++r)
    *labels.view().at<std::int32_t>(r) =
        r >= counted || r % 11 == 3 ? -100 : static_cast<std::int32_t>(r * 7919 % size.vocabulary);
  *dloss.view().at<float>(0) = static_cast<float>(counted);
  const double scale = size.logits / std::sqrt(static_cast<double>(size.d));
  const Tensor hidden = on_device(backend, random_host({size.rows, size.d}, dtype, 1)),
               weight = on_device(backend, random_host({size.vocabulary, size.d}, dtype, 2, scale)),
               device_labels = on_device(backend, labels), device_dloss = on_device(backend, dloss),
               dhidden = on_device(backend, Tensor::zeros({size.rows, size.d}, dtype)),
               dweight = on_device(backend, Tensor::zeros({size.vocabulary, size.d}, dtype));
  cross_entropy_backward(backend, {}, {hidden, weight, device_labels}, device_dloss, {dhidden, dweight});
  return {numbers(backend, dhidden), numbers(backend, dweight)};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cross_entropy)

BOOST_AUTO_TEST_CASE(several_chunks) {
  const auto cpu = make_backend("cpu"), cuda = make_cuda();
  for (const Size& size : sizes)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const Gradients expected = backward(*cpu, size, size.rows, dtype),
                      actual = backward(*cuda, size, size.rows, dtype);
      const double most = dtype == DType::f16 ? allowed(DType::bf16) / 8 : allowed(dtype);  // three more bits
      BOOST_TEST_CONTEXT(size.rows << " x " << size.d << ", logits of " << size.logits << ", " << name_of(dtype)) {
        BOOST_TEST(difference(actual.dhidden, expected.dhidden) <= most);
        BOOST_TEST(difference(actual.dweight, expected.dweight) <= most);
      }
    }
}

/// Where Hopper has other tiles for few rows than for many, in one segment of the vocabulary and in several.
BOOST_AUTO_TEST_CASE(rows_after_ignored_ones) {
  const auto cuda = make_cuda();
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Size& size : {Size{2048, 1024, 2056, 1}, Size{512, 256, 4100, 1}}) {
      Size more = size;
      more.rows *= 4;
      Gradients few = backward(*cuda, size, size.rows, dtype), many = backward(*cuda, more, size.rows, dtype);
      many.dhidden.resize(few.dhidden.size());
      BOOST_TEST_CONTEXT(size.rows << " x " << size.d << ", " << name_of(dtype)) {
        BOOST_TEST((many.dhidden == few.dhidden));
        BOOST_TEST((many.dweight == few.dweight));
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
