// Verification of a backend whose memory the host cannot touch: everything must pass through allocate and copy_*,
// values are checked before they leave the host, and guards see the same faults as on the host.
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "dsalt/verification/case.hpp"
#include "dsalt/verification/generators.hpp"
#include "dsalt/verification/report.hpp"
#include "fake_device.hpp"
#include "planted_support.hpp"

namespace {

using namespace planted;
using fake_device::FakeDevice;

/// The definition runs float64 and needs no promise about threads; the cpu backend is fast.
std::unique_ptr<Backend> device_over(const char* host, const BackendOptions& options = {}) {
  return std::make_unique<FakeDevice>(make_backend(host, options));
}

std::vector<Result> verify(const char* host, const std::string& suite, const std::string& glob) {
  return run([host](const BackendOptions& options) { return device_over(host, options); }, suite, glob);
}

void expect_pass(const char* host, const std::string& suite, const std::string& glob) {
  const auto results = verify(host, suite, glob);
  BOOST_TEST(count(results).ok(), host << " " << suite << " " << glob << ": " << first_failure(results));
  for (const Result& result : results) BOOST_TEST((result.backend == "cuda:0" || result.backend == "reference"));
}

/// As planted::expect_caught, with the fault inside the device.
template <class Fault>
void expect_caught_on_device(const std::string& suite, const std::string& glob, const std::string& words) {
  expect_pass("cpu", suite, glob);
  const auto results = run(
      [](const BackendOptions& options) {
        return std::make_unique<FakeDevice>(std::make_unique<Fault>(honest(options)));
      },
      suite, glob);
  BOOST_TEST(count(results).failed > 0u, "the planted fault was not seen");
  BOOST_TEST(first_failure(results).find(words) != std::string::npos, first_failure(results));
}

struct WritesInput : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& y) override {
    target().rmsnorm_forward(problem, inputs, y);
    change_one(inputs.x, [](double x) { return 2 * x; });
  }
};

struct WritesBehindTheEnd : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void rope_forward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) override {
    target().rope_forward(problem, inputs, y);
    if (y.size() > 0 && y.contiguous()) internal::store_double(y, y.size(), 1.0);
  }
};

struct WritesTail : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (!inputs.cu_seqlens_q.present()) return;
    const std::int64_t end = internal::load_i32(inputs.cu_seqlens_q, inputs.cu_seqlens_q.shape[0] - 1);
    const TensorView tail = outputs.out.narrow(0, end, outputs.out.shape[0] - end);
    internal::for_each_element([&](std::int64_t at) { internal::store_double(tail, at, 0); }, tail);
  }
};

struct LeavesGradientUnwritten : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void swiglu_backward(const SwigluInputs& inputs, const TensorView& dy, const SwigluGradients& gradients) override {
    target().swiglu_backward(inputs, dy, {gradients.dgate, {}});
  }
};

struct ScaledGradient : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& dy,
                        const RmsNormGradients& gradients) override {
    target().rmsnorm_backward(problem, inputs, dy, gradients);
    const TensorView dgamma = gradients.dgamma;
    internal::for_each_element(
        [&](std::int64_t at) { internal::store_double(dgamma, at, (1 + 1e-4) * internal::load_double(dgamma, at)); },
        dgamma);
  }
};

/// Reads what lies behind the last key, as a tile that is loaded whole and masked by a product with 0.
struct ReadsPadding : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& y) override {
    target().rmsnorm_forward(problem, inputs, y);
    if (y.size() == 0 || !inputs.x.contiguous()) return;
    const double behind = internal::load_double(inputs.x, inputs.x.size());
    change_one(y, [&](double value) { return value + 0 * behind; });
  }
};

/// What a kernel with atomics keeps: forward results, not the order of sums in the backward pass.
struct PromisesLittle : FakeDevice {
  explicit PromisesLittle(const BackendOptions& options) : FakeDevice(honest(options)) {}
  Reproducibility reproducibility(Operation, Direction direction) const override {
    const bool forward = direction == Direction::forward;
    return {forward, forward, forward, forward};
  }
};

/// Another bit in every second backward pass, over all instances.
struct MovesGradients : PromisesLittle {
  using PromisesLittle::PromisesLittle;
  void swiglu_backward(const SwigluInputs& inputs, const TensorView& dy, const SwigluGradients& gradients) override {
    static int calls = 0;
    if (++calls % 2 == 0)
      FakeDevice::swiglu_backward({inputs.up, inputs.gate}, dy, gradients);
    else
      FakeDevice::swiglu_backward(inputs, dy, gradients);
  }
};

Case generated(const char* name) { return generate_case(name); }

Tensor edited(const Tensor& tensor, std::int64_t at, std::int32_t value) {
  const Tensor copy = planted::copy_of(tensor);
  copy.view().at<std::int32_t>(0)[at] = value;
  return copy;
}

/// The device refuses the case in the words of the host backend, before anything reaches it.
void expect_refused(const Case& c, const std::string& words) {
  FakeDevice device(honest());
  const auto host = honest();
  std::string expected;
  try {
    evaluate(*host, c);
  } catch (const InvalidArgument& error) {
    expected = error.what();
  }
  BOOST_TEST(expected.find(words) != std::string::npos, "the host said: " << expected);
  BOOST_CHECK_EXCEPTION(evaluate(device, c), InvalidArgument, [&](const InvalidArgument& error) {
    BOOST_TEST(error.what() == expected);
    return true;
  });
  BOOST_TEST(device.calls() == 0);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_backends)

BOOST_AUTO_TEST_CASE(the_stand_in_is_no_host_memory) {
  FakeDevice device(honest());
  const Tensor tensor = empty(device, std::vector<std::int64_t>{4}, DType::f32);
  int ends[2];
  BOOST_REQUIRE(pipe(ends) == 0);
  BOOST_TEST(write(ends[1], tensor.view().data, 4) == -1);
  BOOST_TEST(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);

  float value[4] = {1, 2, 3, 4}, back[4] = {};
  device.copy_from_host(tensor.view().data, value, sizeof value);
  device.copy_to_host(back, tensor.view().data, sizeof back);
  BOOST_TEST(back[3] == 0);  // only queued
  device.synchronize();
  BOOST_TEST(back[3] == 4);
  const TensorView host = TensorView::of(value, DType::f32, {4});
  BOOST_CHECK_THROW(swiglu_forward(device, {host, host}, host), InvalidArgument);
  {
    const Tensor gone = empty(device, std::vector<std::int64_t>{4}, DType::f32);
    device.copy_from_host(gone.view().data, value, sizeof value);
  }
  BOOST_CHECK_THROW(device.synchronize(), DeviceError);
}

BOOST_AUTO_TEST_CASE(every_suite_passes) {
  for (const SuiteInfo& suite : suites())
    if (suite.name != "text") expect_pass("cpu", suite.name, "*");
}

BOOST_AUTO_TEST_CASE(double_precision_runs_on_the_device) {
  expect_pass("reference", "gradients", "differences/*_f64");
  expect_pass("reference", "gradients", "[a-z]*/[a-z]*_f64");
  expect_pass("reference", "equivalence", "*_f64");
  expect_pass("reference", "determinism", "repeats/*_f64");
  const auto wrong = run(
      [](const BackendOptions&) {
        return std::make_unique<FakeDevice>(std::make_unique<ScaledGradient>(make_backend("reference")));
      },
      "gradients", "differences/rmsnorm*");
  BOOST_TEST(first_failure(wrong).find("dgamma") != std::string::npos, first_failure(wrong));
  // without it the differences are unsupported, not passed
  const Totals on_cpu = count(verify("cpu", "gradients", "differences/*"));
  BOOST_TEST(on_cpu.unsupported > 0u);
  BOOST_TEST(on_cpu.passed == 0u);
}

BOOST_AUTO_TEST_CASE(guards_see_faults_inside_the_device) {
  expect_caught_on_device<WritesInput>("equivalence", "rmsnorm/shapes/*_f32", "an input was written to");
  expect_caught_on_device<WritesBehindTheEnd>("equivalence", "rope/positions/*_f32", "bytes outside the output");
  expect_caught_on_device<WritesTail>("equivalence", "attention/packed/tail_*_f32", "past the last sequence");
  expect_caught_on_device<LeavesGradientUnwritten>("equivalence", "swiglu/shapes/*_f32", "never written");
  expect_caught_on_device<ReadsPadding>("equivalence", "rmsnorm/shapes/*_f32", "NaN");
}

BOOST_AUTO_TEST_CASE(strides_arrive_on_the_device) {
  struct Strides : FakeDevice {
    explicit Strides() : FakeDevice(honest()) {}
    void attention_forward(const AttentionProblem& p, const AttentionInputs& i, const AttentionOutputs& o) override {
      q = i.q;
      FakeDevice::attention_forward(p, i, o);
    }
    TensorView q;
  };
  std::size_t strided = 0;
  for (const GeneratedCase& known : generated_cases()) {
    if (known.name.find("attention/strided_views/") != 0 || known.name.find("_f32") == std::string::npos) continue;
    const Case c = generate_case(known.name);
    Strides device;
    evaluate(device, c);
    const TensorView& q = c.inputs.at("q");
    BOOST_TEST((device.q.strides == q.strides), known.name);
    strided += !q.contiguous();
  }
  BOOST_TEST(strided > 3u);
}

BOOST_AUTO_TEST_CASE(values_are_checked_before_they_leave_the_host) {
  Case packed = generated("attention/packed/tail_sparse_f32");
  const Tensor starts = packed.inputs.at("cu_seqlens_q");
  packed.inputs["cu_seqlens_q"] = edited(starts, 1, 1 << 30);
  expect_refused(packed, "cu_seqlens_q");
  packed.inputs["cu_seqlens_q"] = edited(starts, 0, 1);
  expect_refused(packed, "cu_seqlens_q");

  Case lengths;
  lengths.op = Operation::attention;
  lengths.attributes["mask"] = std::string("full");
  for (const char* name : {"q", "k", "v"}) lengths.inputs[name] = Tensor::zeros({1, 1, 3, 2}, DType::f32);
  lengths.inputs["k_lengths"] = edited(Tensor::zeros({1}, DType::i32), 0, 4);
  expect_refused(lengths, "k_lengths");

  Case pages = lengths;
  pages.inputs["k_lengths"] = edited(Tensor::zeros({1}, DType::i32), 0, 4);
  pages.inputs["page_table"] = Tensor::zeros({1, 1}, DType::i32);  // one page of three rows
  expect_refused(pages, "k_lengths");
  pages.inputs["k_lengths"] = edited(Tensor::zeros({1}, DType::i32), 0, 3);
  for (const std::int32_t entry : {-1, 1, 1 << 30}) {
    pages.inputs["page_table"] = edited(Tensor::zeros({1, 1}, DType::i32), 0, entry);
    expect_refused(pages, "page_table");
  }

  Case weights = lengths;
  weights.inputs.erase("k_lengths");
  weights.attributes["mask"] = std::string("sparse");
  weights.inputs["landmarks"] = Tensor::zeros({1, 1, 1, 2}, DType::i32);
  weights.inputs["landmark_log_weight"] = Tensor::zeros({1, 1, 1, 2}, DType::f32);
  weights.inputs["landmark_log_weight"].view().at<float>(0)[1] = std::numeric_limits<float>::infinity();
  expect_refused(weights, "landmark_log_weight");

  Case loss;
  loss.op = Operation::cross_entropy;
  loss.inputs["hidden"] = Tensor::zeros({2, 3}, DType::f32);
  loss.inputs["weight"] = Tensor::zeros({5, 3}, DType::f32);
  loss.inputs["labels"] = edited(Tensor::zeros({2}, DType::i32), 1, 5);
  expect_refused(loss, "labels");

  Case selection;
  selection.op = Operation::select_landmarks;
  selection.attributes = {{"policy", std::string("global")}, {"k", std::int64_t{1}}, {"tau", 1.0}};
  selection.inputs["nx"] = Tensor::zeros({4}, DType::f32);
  selection.inputs["nv"] = Tensor::zeros({4, 1}, DType::f32);
  selection.inputs["alpha_raw"] = Tensor::zeros({1}, DType::f32);
  selection.inputs["cu_seqlens"] = edited(Tensor::zeros({2}, DType::i32), 1, 5);
  expect_refused(selection, "cu_seqlens");
}

BOOST_AUTO_TEST_CASE(promises_are_checked_in_both_modes) {
  SuiteOptions options;
  options.backend_factory = [](const BackendOptions& o) { return std::make_unique<PromisesLittle>(o); };
  options.suites = {"determinism"};
  options.case_glob = "*swiglu*_f32";
  const auto usual = run_suites(options);
  BOOST_TEST(count(usual).ok(), first_failure(usual));
  BOOST_TEST(count(usual).skipped > 0u);  // what it does not promise

  options.backend_options.deterministic = true;
  const auto strict = run_suites(options);
  BOOST_TEST(count(strict).failed > 0u);
  BOOST_TEST(first_failure(strict).find("is deterministic and does not promise") != std::string::npos,
             first_failure(strict));

  // gradients that move are no fault until they are promised
  options.backend_options.deterministic = false;
  options.backend_factory = [](const BackendOptions& o) { return std::make_unique<MovesGradients>(o); };
  const auto moving = run_suites(options);
  BOOST_TEST(count(moving).ok(), first_failure(moving));
}

BOOST_AUTO_TEST_CASE(a_rerun_is_in_the_same_mode) {
  Result result;
  result.suite = "determinism";
  result.name = "repeats/x_f32";
  result.message = "moved";
  const ReportHeader header{"cuda:0", "", "", "", true};
  BOOST_TEST(to_table({result}, header).find("--backend cuda:0 --suite determinism --deterministic --case") !=
             std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
