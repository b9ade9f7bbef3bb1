// Suite "text": which sizes and stages there are, and how each is judged.
#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>

#include "dsalt/errors.hpp"
#include "dsalt/verification/condition.hpp"
#include "suites/suite.hpp"
#include "text_lookahead.hpp"
#include "text_model.hpp"
#include "text_pipeline.hpp"

namespace dsalt::verification {
namespace {

struct Size {
  std::string_view name;
  TextShape shape;
  bool quick;
};

const Size sizes[] = {
    {"n256_h4_d32", {256, 4, 4, 32, 8, 64, 4, 2, 32, 16, 32}, true},
    {"n1024_h8_kv2_d64", {1024, 8, 2, 64, 16, 256, 4, 2, 128, 32, 64}, false},
    {"n4096_h8_d64", {4096, 8, 8, 64, 32, 512, 4, 2, 256, 32, 64}, false},
};
constexpr std::int64_t smallest = 256, largest = 4096;

std::string_view short_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
  }
  return "unknown";
}

std::vector<DType> dtypes_of(const Size& size) {
  // float64, where a backend has it, shows that the small case has no other error than rounding
  if (size.quick) return {DType::f64, DType::f32, DType::bf16};
  return {DType::f32, DType::bf16};
}

/// Looking ahead is a question about selection, not about magnitudes: the large size would only repeat it.
bool has_lookahead(const Size& size, DType dtype) { return size.shape.n <= 1024 && dtype == DType::f32; }

constexpr SelectionPolicy policies[] = {SelectionPolicy::causal, SelectionPolicy::global};

/// The names of one (size, dtype).
struct Names {
  const Size& size;
  DType dtype;

  std::string shared(std::string_view stage) const { return std::string(stage) + "/" + problem(); }
  std::string of(SelectionPolicy policy, std::string_view stage) const {
    return std::string(stage) + "/" + std::string(name_of(policy)) + "_" + problem();
  }
  std::string problem() const { return std::string(size.name) + "_" + std::string(short_name(dtype)); }
  std::vector<std::string> all() const {
    std::vector<std::string> names;
    for (const char* stage : {"rmsnorm", "window_sizes", "energies", "rope_q", "rope_k"})
      names.push_back(shared(stage));
    for (const SelectionPolicy policy : policies) {
      names.push_back(of(policy, "select_landmarks"));
      names.push_back(of(policy, "attention"));
      if (has_lookahead(size, dtype)) names.push_back(of(policy, "lookahead"));
    }
    return names;
  }
};

/// Rounds the double reference of one output to the dtype that the next stage reads.
Tensor rounded(const Yardstick& yardstick, const std::string& output, DType dtype) {
  const TensorView& exact = yardstick.reference.at(output).view();
  Tensor tensor = Tensor::empty(std::span<const std::int64_t>(exact.shape.data(), static_cast<std::size_t>(exact.rank)),
                                exact.dtype == DType::i32 ? DType::i32 : dtype);
  copy_elements(exact, tensor);
  return tensor;
}

class TextSuite {
 public:
  TextSuite(const SuiteOptions& options, std::string text)
      : options_(options), text_(std::move(text)), backend_(make_backend_under_test(options)) {
    for (const std::string& name : text_suite_cases(options.quick))
      if (fnmatch(options.case_glob.c_str(), name.c_str(), 0) == 0) selected_.insert(name);
  }

  std::vector<Result> run() {
    for (const Size& size : sizes)
      for (const DType dtype : dtypes_of(size)) run(Names{size, dtype});
    return std::move(results_);
  }

 private:
  void run(const Names& names) {
    const auto all = names.all();
    if (std::none_of(all.begin(), all.end(), [&](const std::string& name) { return selected_.count(name) != 0; }))
      return;
    const TextShape& shape = names.size.shape;
    const DType dtype = names.dtype, stat = statistics_dtype(dtype);
    const std::string_view text = std::string_view(text_).substr(0, static_cast<std::size_t>(shape.n));
    const TextStages stages{shape, dtype, true};

    TextActivations t;
    t.x = embed_text(text, stages.d_model(), dtype);
    const Tensor normed = rounded(judge(names.shared("rmsnorm"), stages.rmsnorm(t.x)), "y", dtype);
    t.v = project("w_v", normed, shape.kv_heads, shape.d);
    t.window = rounded(judge(names.shared("window_sizes"), stages.window_sizes(t.x)), "window", stat);
    const Yardstick energies = judge(names.shared("energies"), stages.energies(t.x, t.v));
    const Tensor nx = rounded(energies, "nx", stat), nv = rounded(energies, "nv", stat);
    const Tensor q = project("w_q", normed, shape.heads, shape.d);
    const Tensor k = project("w_k", normed, shape.kv_heads, shape.d);
    t.q = rounded(judge(names.shared("rope_q"), stages.rope("q", q)), "y", dtype);
    t.k = rounded(judge(names.shared("rope_k"), stages.rope("k", k)), "y", dtype);
    for (const SelectionPolicy policy : policies) {
      const Yardstick lists = judge(names.of(policy, "select_landmarks"), stages.select_landmarks(nx, nv, policy));
      t.landmarks = rounded(lists, "landmarks", DType::i32);
      t.landmark_log_weight = rounded(lists, "landmark_log_weight", stat);
      if (const std::string name = names.of(policy, "attention"); begin(name)) judge(name, stages.attention(t, policy));
      if (const std::string name = names.of(policy, "lookahead"); begin(name))
        finish(name, std::chrono::steady_clock::now(),
               [&](Verdict& verdict) { check_lookahead(*backend_, shape, dtype, text, policy, verdict); });
    }
  }

  /// Whether the case is selected; announces it once.
  bool begin(const std::string& name) {
    if (selected_.count(name) == 0) return false;
    if (announced_.insert(name).second && options_.progress)
      options_.progress("text", name, results_.size(), selected_.size());
    return true;
  }

  /// The yardstick feeds the next stage also when this case is not selected.
  Yardstick judge(const std::string& name, Case c) {
    const bool wanted = begin(name);
    const auto start = std::chrono::steady_clock::now();
    c.name = name;
    Yardstick yardstick = make_yardstick(c);
    if (wanted)
      finish(name, start, [&](Verdict& verdict) { verdict.compare_with(yardstick, c, evaluate(*backend_, c)); });
    return yardstick;
  }

  void finish(const std::string& name, std::chrono::steady_clock::time_point start,
              const std::function<void(Verdict&)>& body) {
    Result result;
    result.suite = "text";
    result.name = name;
    result.backend = std::string(backend_->name());
    const auto end_with = [&](Status status, const char* why) {
      result.status = status;
      result.message = why;
    };
    try {
      Verdict verdict(result);
      body(verdict);
      verdict.conclude();
    } catch (const Skip& reason) {
      end_with(Status::skipped, reason.what());
    } catch (const Unsupported& reason) {
      end_with(Status::unsupported, reason.what());
    } catch (const std::exception& error) {
      end_with(Status::failed, error.what());
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    results_.push_back(std::move(result));
  }

  const SuiteOptions& options_;
  std::string text_;
  std::unique_ptr<Backend> backend_;
  std::set<std::string> selected_, announced_;
  std::vector<Result> results_;
};

}  // namespace

std::vector<std::string> text_suite_cases(bool quick) {
  std::vector<std::string> names;
  for (const Size& size : sizes) {
    if (quick && !size.quick) continue;
    for (const DType dtype : dtypes_of(size))
      for (std::string& name : Names{size, dtype}.all()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<Result> run_text_suite(const SuiteOptions& options) {
  if (options.text_file.empty()) throw InvalidArgument("text_file: got none, the suite \"text\" needs one");
  std::string text = read_text(options.text_file, largest);
  if (static_cast<std::int64_t>(text.size()) < smallest)
    throw InvalidArgument("text_file: " + options.text_file + " has " + std::to_string(text.size()) +
                          " bytes, the suite \"text\" needs at least " + std::to_string(smallest));
  return TextSuite(options, std::move(text)).run();
}

}  // namespace dsalt::verification
