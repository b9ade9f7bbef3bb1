// The real-text pipeline: it runs on any text, repeats, and fails when it should.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "dsalt/errors.hpp"
#include "dsalt/verification/forwarding_backend.hpp"
#include "dsalt/verification/text.hpp"

using namespace dsalt;
using namespace dsalt::verification;

namespace {

const TextShape small = {160, 4, 2, 16, 4, 24, 2, 1, 32, 6, 12};

std::string words(std::size_t bytes) {
  const char* vocabulary[] = {"the ", "light ", "and ", "darkness ", "was ", "upon ", "face ", "of ", "waters. "};
  std::string text;
  for (unsigned n = 1; text.size() < bytes; n = n * 69069u + 12345u) text += vocabulary[(n >> 16) % 9];
  text.resize(bytes);
  return text;
}

/// A file with that text, removed at the end of the test.
struct TextFile {
  std::filesystem::path path;
  explicit TextFile(const std::string& content) {
    static int count = 0;
    path = std::filesystem::temp_directory_path() /
           ("dsalt-text-" + std::to_string(reinterpret_cast<std::uintptr_t>(this)) + "-" + std::to_string(count++));
    std::ofstream(path, std::ios::binary) << content;
  }
  ~TextFile() { std::filesystem::remove(path); }
};

std::vector<Result> run(const std::string& file, const std::string& backend, const std::string& glob) {
  SuiteOptions options;
  options.backend = backend;
  options.text_file = file;
  options.case_glob = glob;
  options.quick = true;
  return run_text_suite(options);
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.view().size() == b.view().size() &&
         std::memcmp(a.view().data, b.view().data,
                     static_cast<std::size_t>(a.view().size()) * size_of(a.view().dtype)) == 0;
}

/// Reads one key too many on the left of every window: the off-by-one that published kernels have had.
class WideWindow : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& in,
                         const AttentionOutputs& out) override {
    AttentionInputs wider = in;
    const Tensor window = Tensor::zeros({in.window.shape[0], in.window.shape[1], in.window.shape[2]}, in.window.dtype);
    copy_elements(in.window, window);
    for (std::int64_t n = 0; n < window.view().size(); ++n) *window.view().at<float>(n) += 1;
    wider.window = window;
    target().attention_forward(problem, wider, out);
  }
};

/// Uses the global policy whatever was asked for: candidates of every list reach to the end of the text.
class LooksAhead : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& in,
                                const SelectionOutputs& out) override {
    SelectionProblem all = problem;
    all.policy = SelectionPolicy::global;
    all.chunk.reset();
    for (std::int64_t t = 0; t < out.landmarks.shape[2]; ++t)
      target().select_landmarks_forward(
          all, in, {out.landmarks.narrow(2, t, 1), out.score.narrow(2, t, 1), out.landmark_log_weight.narrow(2, t, 1)});
  }
};

template <class Fault>
std::vector<Result> run_with_fault(const std::string& file, const std::string& glob) {
  SuiteOptions options;
  options.text_file = file;
  options.case_glob = glob;
  options.quick = true;
  options.backend_factory = [](const BackendOptions& o) { return std::make_unique<Fault>(make_backend("cpu", o)); };
  return run_text_suite(options);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(text_suite)

BOOST_AUTO_TEST_CASE(names_are_unique_and_quick_is_a_part) {
  const auto all = text_suite_cases(), quick = text_suite_cases(true);
  const std::set<std::string> names(all.begin(), all.end());
  BOOST_TEST(names.size() == all.size());
  BOOST_TEST(quick.size() > 0u);
  BOOST_TEST(quick.size() < all.size());
  for (const std::string& name : quick) BOOST_TEST(names.count(name) == 1u, name);
  BOOST_TEST(names.count("attention/causal_n4096_h8_d64_bf16") == 1u);
}

BOOST_AUTO_TEST_CASE(every_backend_passes) {
  const TextFile file(words(300));
  for (const BackendInfo& info : list_backends()) {
    if (!info.available) continue;
    const auto results = run(file.path.string(), info.name, "*");
    BOOST_TEST(results.size() == text_suite_cases(true).size());
    std::size_t passed = 0;
    for (const Result& result : results) {
      BOOST_TEST_CONTEXT(info.name << " " << result.name << ": " << result.message) {
        BOOST_TEST(result.suite == "text");
        BOOST_TEST(result.backend.starts_with(info.name));
        BOOST_TEST((result.status == Status::passed || result.status == Status::unsupported));
        if (result.status == Status::passed && !result.name.starts_with("lookahead/"))
          BOOST_TEST(result.outputs.size() > 0u);
      }
      passed += result.status == Status::passed ? 1 : 0;
    }
    BOOST_TEST(passed >= 2 * results.size() / 3);
  }
}

BOOST_AUTO_TEST_CASE(glob_and_progress) {
  const TextFile file(words(256));
  SuiteOptions options;
  options.backend = "reference";
  options.text_file = file.path.string();
  options.case_glob = "rope_?/*_f32";
  std::vector<std::string> seen;
  options.quick = true;
  options.progress = [&](std::string_view suite, std::string_view name, std::size_t done, std::size_t total) {
    BOOST_TEST(suite == "text");
    BOOST_TEST(done == seen.size());
    BOOST_TEST(total == 2u);
    seen.emplace_back(name);
  };
  const auto results = run_text_suite(options);
  BOOST_TEST(results.size() == 2u);
  BOOST_TEST(seen.size() == 2u);
  BOOST_TEST(results.front().name == "rope_q/n256_h4_d32_f32");
}

BOOST_AUTO_TEST_CASE(planted_faults_are_caught) {
  const TextFile file(words(256));
  const auto wide = run_with_fault<WideWindow>(file.path.string(), "attention/*_f32");
  BOOST_TEST(wide.size() == 2u);
  for (const Result& result : wide) BOOST_TEST((result.status == Status::failed), result.name);
  const auto ahead = run_with_fault<LooksAhead>(file.path.string(), "*/causal_*_f32");
  BOOST_TEST(ahead.size() == 3u);
  for (const Result& result : ahead) {
    const bool innocent = result.name.starts_with("attention/");  // it is compared on the reference's lists
    BOOST_TEST((result.status == (innocent ? Status::passed : Status::failed)), result.name + ": " + result.message);
  }
}

BOOST_AUTO_TEST_CASE(a_run_repeats_and_reads_bytes) {
  const auto backend = make_backend("cpu");
  const std::string text = words(160);
  const auto first = run_text(*backend, small, DType::f32, text, SelectionPolicy::causal);
  const auto again = run_text(*backend, small, DType::f32, text, SelectionPolicy::causal);
  BOOST_TEST(same_bytes(first.out, again.out));
  BOOST_TEST((first.out.view().shape[2] == 160));
  std::string other = text;
  other[3] = 'X';
  BOOST_TEST(!same_bytes(first.out, run_text(*backend, small, DType::f32, other, SelectionPolicy::causal).out));
  BOOST_CHECK_THROW(run_text(*backend, small, DType::f32, "", SelectionPolicy::causal), InvalidArgument);
  const auto one = run_text(*backend, small, DType::bf16, "x", SelectionPolicy::global);
  BOOST_TEST(one.out.view().size() == 4 * 16);
}

BOOST_AUTO_TEST_CASE(bad_texts_are_named) {
  BOOST_CHECK_THROW(run("/no/such/file", "cpu", "*"), IoError);
  BOOST_CHECK_THROW(run("", "cpu", "*"), InvalidArgument);
  const TextFile file(words(255));
  BOOST_CHECK_EXCEPTION(run(file.path.string(), "cpu", "*"), InvalidArgument, [](const InvalidArgument& error) {
    return std::string(error.what()).find("255 bytes") != std::string::npos;
  });
}

BOOST_AUTO_TEST_SUITE_END()
