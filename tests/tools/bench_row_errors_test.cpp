// Sampled rows against the definition: small errors where a backend is right, large ones where it is not, on every
// mask.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "../verification/fake_device.hpp"
#include "dsalt/registry.hpp"
#include "gpu_bench/row_errors.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::benchmark;

/// The window of every row is one key short.
struct ShortWindow : verification::ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    for (std::int64_t n = 0; inputs.window.present() && n < inputs.window.size(); ++n)
      --*inputs.window.at<std::int32_t>(n);
    target().attention_forward(problem, inputs, outputs);
    for (std::int64_t n = 0; inputs.window.present() && n < inputs.window.size(); ++n)
      ++*inputs.window.at<std::int32_t>(n);
  }
};

/// One row of the output is NaN.
struct NanRow : verification::ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    for (std::int64_t t = 0; t < outputs.out.shape[3]; ++t)
      *outputs.out.at<float>(t) = std::numeric_limits<float>::quiet_NaN();
  }
};

/// Keys of a paged cache come from the page before, where there is one.
struct WrongPages : verification::ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    AttentionInputs wrong = inputs;
    Tensor table = Tensor::empty({inputs.page_table.shape[0], inputs.page_table.shape[1]}, DType::i32);
    for (std::int64_t n = 0; n < inputs.page_table.size(); ++n)
      *table.view().at<std::int32_t>(n) = std::max(*inputs.page_table.at<std::int32_t>(n) - 1, 0);
    wrong.page_table = table;
    target().attention_forward(problem, wrong, outputs);
  }
};

RowErrors errors_at(Backend& backend, const char* text, DType dtype, Direction direction, std::int64_t page_size = 0) {
  Shape shape = settled(parse_shape(text), "uniform", 32);
  shape.page_size = page_size;
  const Prepared prepared = attention_workload(shape, dtype, direction).prepare(backend, {});
  return sampled_errors(backend, shape, direction, prepared, 40);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bench_row_errors)

BOOST_AUTO_TEST_CASE(are_small_where_the_backend_is_right) {
  fake_device::FakeDevice device(make_backend("cpu"));
  for (const char* shape : {"2,4/2,150,16,full", "1,4,70x200,16,causal", "1,2,50x20,8,causal", "2,4/2,200,16,20,5"})
    for (const Direction direction : {Direction::forward, Direction::backward})
      for (const auto& [dtype, allowed] : {std::pair{DType::f32, 1e-5}, {DType::bf16, 3e-2}}) {
        const RowErrors errors = errors_at(device, shape, dtype, direction);
        BOOST_TEST_CONTEXT(shape << " " << name_of(dtype)) {
          BOOST_TEST(errors.rows == 40);
          BOOST_TEST(errors.magnitude > 0);
          BOOST_TEST(errors.largest > 0);
          BOOST_TEST(errors.largest <= allowed * errors.magnitude * 4);
          BOOST_TEST(errors.rms <= allowed * errors.magnitude);
        }
      }
}

BOOST_AUTO_TEST_CASE(are_small_with_a_paged_cache) {
  fake_device::FakeDevice device(make_backend("cpu"));
  for (const char* shape : {"2,4/2,150,16,full", "1,4,70x200,16,causal", "2,4/2,3x200,16,20,5"})
    for (const std::int64_t page_size : {1, 7, 64, 512}) {
      const RowErrors errors = errors_at(device, shape, DType::f32, Direction::forward, page_size);
      BOOST_TEST_CONTEXT(shape << " pages of " << page_size) {
        BOOST_TEST(errors.largest > 0);
        BOOST_TEST(errors.rms <= 1e-5 * errors.magnitude);
      }
    }
}

BOOST_AUTO_TEST_CASE(are_large_where_it_is_not) {
  fake_device::FakeDevice device(std::make_unique<ShortWindow>(make_backend("cpu")));
  const RowErrors errors = errors_at(device, "2,4/2,200,16,20,5", DType::f32, Direction::forward);
  BOOST_TEST(errors.largest > 0.01 * errors.magnitude);

  fake_device::FakeDevice pages(std::make_unique<WrongPages>(make_backend("cpu")));
  const RowErrors of_pages = errors_at(pages, "2,4/2,8x200,16,20,5", DType::f32, Direction::forward, 7);
  BOOST_TEST(of_pages.largest > 0.01 * of_pages.magnitude);

  fake_device::FakeDevice nan(std::make_unique<NanRow>(make_backend("cpu")));
  const RowErrors unknown = errors_at(nan, "1,1,4,16,full", DType::f32, Direction::forward);
  BOOST_TEST(std::isnan(unknown.largest));
  BOOST_TEST(std::isnan(unknown.rms));
}

BOOST_AUTO_TEST_SUITE_END()
