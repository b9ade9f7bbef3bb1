// Faults in what a backend promises: equal bytes, and selection that never sees the future.
#include <cmath>

#include "planted_support.hpp"

namespace {

using namespace planted;

void last_bit(const TensorView& view) {
  change_one(view, [&](double x) {
    const double u = view.dtype == DType::f32 ? 0x1p-23 : view.dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
    return x * (1 + u);
  });
}

/// Every second call ends in another last bit: as a sum with atomics does.
struct Nondeterministic : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (++calls_ % 2 == 0) last_bit(outputs.out);
  }
  int calls_ = 0;
};

/// The order of a sum depends on the number of threads.
struct ThreadDependent : ForwardingBackend {
  ThreadDependent(std::unique_ptr<Backend> target, int threads)
      : ForwardingBackend(std::move(target)), threads_(threads) {}
  void rmsnorm_backward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& dy,
                        const RmsNormGradients& gradients) override {
    target().rmsnorm_backward(problem, inputs, dy, gradients);
    if (threads_ == 7) last_bit(gradients.dgamma);
  }
  int threads_;
};

/// The tiling depends on the size of the batch.
struct BatchDependent : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (inputs.q.rank == 4 && inputs.q.shape[0] > 1) last_bit(outputs.out);
    if (inputs.q.rank == 3) last_bit(outputs.lse);
  }
};

/// One query is computed by another kernel than many.
struct DecodeDiffers : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (inputs.q.rank == 4 && inputs.q.shape[2] == 1) last_bit(outputs.out);
  }
};

/// Rows that do not follow each other are computed by another kernel.
struct StrideDependent : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (!inputs.k.contiguous()) last_bit(outputs.out);
  }
};

/// The same computation, honest about not repeating itself.
struct PromisesNothing : Nondeterministic {
  using Nondeterministic::Nondeterministic;
  Reproducibility reproducibility(Operation, Direction) const override { return {}; }
};

/// List t sees the first `tokens` tokens of its own chunk: the candidates are shifted.
template <int tokens>
struct SelectionShifted : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                const SelectionOutputs& outputs) override {
    if (problem.policy != SelectionPolicy::causal || inputs.nx.rank != 2 || inputs.nx.shape[1] < tokens)
      return target().select_landmarks_forward(problem, inputs, outputs);
    SelectionInputs shifted = inputs;
    const std::int64_t n = inputs.nx.shape[1];
    shifted.nx = inputs.nx.narrow(1, tokens, n - tokens);
    shifted.nv = inputs.nv.narrow(2, tokens, n - tokens);
    target().select_landmarks_forward(problem, shifted, outputs);
    const TensorView lists = outputs.landmarks;
    internal::for_each_element(
        [&](std::int64_t at) {
          if (*lists.at<std::int32_t>(at) >= 0) *lists.at<std::int32_t>(at) += tokens;
        },
        lists);
  }
};

/// A chunk's queries read the list of the next chunk.
struct AttentionReadsNextList : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    AttentionInputs next = inputs;
    Tensor storage, weights;
    if (problem.landmark_chunk && inputs.landmarks.shape[2] > 1) {
      storage = ahead(inputs.landmarks);
      next.landmarks = storage;
      if (inputs.landmark_log_weight.present()) {
        weights = ahead(inputs.landmark_log_weight);
        next.landmark_log_weight = weights;
      }
    }
    target().attention_forward(problem, next, outputs);
  }
  static Tensor ahead(const TensorView& lists) {
    const Tensor moved = copy_of(lists);
    copy_elements(lists.narrow(2, 1, lists.shape[2] - 1), moved.view().narrow(2, 0, lists.shape[2] - 1));
    return moved;
  }
};

/// A global policy that selects nothing cannot leak, and cannot show that the experiment works.
struct GlobalSelectsNothing : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                const SelectionOutputs& outputs) override {
    SelectionProblem none = problem;
    if (problem.policy == SelectionPolicy::global)
      none.recent = inputs.nx.shape[static_cast<std::size_t>(inputs.nx.rank - 1)];
    target().select_landmarks_forward(none, inputs, outputs);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(planted_in_promises)

BOOST_AUTO_TEST_CASE(repeats) {
  expect_caught<Nondeterministic>("determinism", "repeats/attention/*_forward_*", "differ in their bits");
  expect_unseen<Nondeterministic>("equivalence", "attention/partial_tiles/*_bf16");  // one last bit is rounding
}

BOOST_AUTO_TEST_CASE(threads) {
  const auto factory = [](const BackendOptions& options) -> std::unique_ptr<Backend> {
    return std::make_unique<ThreadDependent>(honest(options), options.threads);
  };
  const auto results = run(factory, "determinism", "*/rmsnorm/*");
  BOOST_TEST(count(results).failed > 0u);
  BOOST_TEST(first_failure(results).starts_with("threads/rmsnorm/large_backward"), first_failure(results));
  BOOST_TEST(first_failure(results).find("7 threads: dgamma") != std::string::npos, first_failure(results));
}

BOOST_AUTO_TEST_CASE(batch_and_pack) {
  expect_caught<BatchDependent>("determinism", "batch/attention/causal_f32", "alone: out");
  expect_caught<BatchDependent>("determinism", "pack/attention/*_bf16", "lse");
  expect_unseen<BatchDependent>("determinism", "repeats/attention/*_forward_f32");
}

BOOST_AUTO_TEST_CASE(prefill) {
  expect_caught<DecodeDiffers>("determinism", "prefill/attention/*", "decode at");
  expect_unseen<DecodeDiffers>("determinism", "batch/attention/*");
}

BOOST_AUTO_TEST_CASE(strides) {
  expect_caught<StrideDependent>("determinism", "strides/attention/causal_64_tokens_outermost_*",
                                 "differ in their bits");
  expect_caught<StrideDependent>("determinism", "strides/attention/*_broadcast_f32", "differ in their bits");
  expect_unseen<StrideDependent>("determinism", "strides/rmsnorm/*_f32");
}

BOOST_AUTO_TEST_CASE(a_promise_that_is_not_made_is_skipped_with_that_reason) {
  const auto results =
      run([](const BackendOptions& options) { return std::make_unique<PromisesNothing>(honest(options)); },
          "determinism", "*/attention/*_f32");
  const Totals totals = count(results);
  BOOST_TEST(totals.failed == 0u, first_failure(results));
  BOOST_TEST(totals.skipped == results.size());
  BOOST_TEST(!totals.ok());  // nothing was executed
  BOOST_TEST(results.front().message.find("does not promise") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(selection_shifted_by_one) {
  // one token: list t also holds token t c, which its first row t c may see: wrong, but no leak
  expect_caught<SelectionShifted<1>>("equivalence", "select_landmarks/policies/causal_*_f32", "landmarks");
  expect_unseen<SelectionShifted<1>>("causality", "causal/earlier_rows_*_f32");
  // two tokens: row t c depends on token t c + 1
  expect_caught<SelectionShifted<2>>("causality", "causal/earlier_rows_*_f32", "tokens after");
  expect_caught<SelectionShifted<2>>("equivalence", "select_landmarks/policies/causal_*_f32", "landmarks");
}

BOOST_AUTO_TEST_CASE(lists_read_one_chunk_too_early) {
  expect_caught<AttentionReadsNextList>("causality", "causal/earlier_rows_*_f32", "tokens after");
  expect_caught<AttentionReadsNextList>("determinism", "prefill/attention/sparse_*");
}

BOOST_AUTO_TEST_CASE(a_leak_must_be_found) {
  expect_caught<GlobalSelectsNothing>("causality", "global/*_f32", "cannot see a leak");
}

BOOST_AUTO_TEST_SUITE_END()
