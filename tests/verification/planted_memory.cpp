// Faults in what is read and written, and in the operations beside attention.
#include <cmath>
#include <cstring>

#include "planted_support.hpp"

namespace {

using namespace planted;

struct ValueGradientUnwritten : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs, const AttentionSaved& saved,
                          const AttentionGradients& gradients) override {
    AttentionGradients some = gradients;
    some.dv = TensorView{};
    target().attention_backward(problem, inputs, saved, some);
  }
};

struct GradientAddedToOutput : ForwardingBackend {  // accumulated onto what was there instead of overwriting it
  using ForwardingBackend::ForwardingBackend;
  void swiglu_backward(const SwigluInputs& inputs, const TensorView& dy, const SwigluGradients& gradients) override {
    const Tensor before = copy_of(gradients.dup);
    target().swiglu_backward(inputs, dy, gradients);
    const TensorView dup = gradients.dup;
    std::int64_t n = 0;
    internal::for_each_element(
        [&](std::int64_t at) {
          internal::store_double(dup, at, internal::load_double(dup, at) + internal::load_double(before, n++));
        },
        dup);
  }
};

struct InputOverwritten : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void rmsnorm_forward(const RmsNormProblem& problem, const RmsNormInputs& inputs, const TensorView& y) override {
    target().rmsnorm_forward(problem, inputs, y);
    change_one(inputs.x, [](double x) { return 2 * x; });
  }
};

/// Writes one element past the end, as a vector store of a partial tile would.
struct WriteBehindTheEnd : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void rope_forward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) override {
    target().rope_forward(problem, inputs, y);
    if (y.size() > 0 && y.contiguous()) internal::store_double(y, y.size(), 1.0);
  }
};

/// Rows past the last sequence are zeroed, although nobody asked for them.
struct TailWritten : ForwardingBackend {
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

/// Multiplies masked keys by 0 instead of leaving them out: a NaN there spreads.
struct PaddingTimesZero : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (!inputs.k_lengths.present() || inputs.v.size() == 0 || outputs.out.size() == 0) return;
    const std::int64_t last = inputs.v.shape[2] - 1;
    for (std::int64_t b = 0; b < inputs.v.shape[0]; ++b) {
      const TensorView value = inputs.v.select(0, b).select(0, 0).narrow(0, last, 1);
      const double masked = 0 * internal::load_double(value, 0);
      const TensorView out = outputs.out.select(0, b);
      if (internal::load_i32(inputs.k_lengths, b) <= last) change_one(out, [&](double x) { return x + masked; });
    }
  }
};

struct BiasedVariance : ForwardingBackend {  // the score divides by m instead of m - 1
  using ForwardingBackend::ForwardingBackend;
  void select_landmarks_forward(const SelectionProblem& problem, const SelectionInputs& inputs,
                                const SelectionOutputs& outputs) override {
    target().select_landmarks_forward(problem, inputs, outputs);
    const TensorView score = outputs.score;
    internal::for_each_element(
        [&](std::int64_t at) {
          internal::store_double(score, at, internal::load_double(score, at) * std::sqrt(44.0 / 43));
        },
        score);
  }
};

struct FlushesSubnormals : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    const TensorView out = outputs.out;
    const double normal = out.dtype == DType::f16 ? 0x1p-14 : 0x1p-126;
    internal::for_each_element(
        [&](std::int64_t at) {
          if (std::fabs(internal::load_double(out, at)) < normal) internal::store_double(out, at, 0);
        },
        out);
  }
};

/// Decay is scaled by the bias correction: 5 % of the decay is missing at step 3.
struct StepForgetsCorrection : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void adamw_step(const AdamWProblem& problem, const AdamWInputs& inputs, const AdamWOutputs& outputs) override {
    AdamWProblem late = problem;
    late.step = problem.step + 1;
    target().adamw_step(late, inputs, outputs);
  }
};

struct InterleavedRotation : ForwardingBackend {  // pairs (2t, 2t+1) instead of (t, t + D/2)
  using ForwardingBackend::ForwardingBackend;
  void rope_forward(const RopeProblem& problem, const RopeInputs& inputs, const TensorView& y) override {
    if (inputs.x.shape[static_cast<std::size_t>(inputs.x.rank - 1)] < 4)
      return target().rope_forward(problem, inputs, y);
    const auto interleaved = [](TensorView view) {  // [.., D] as [.., D/2, 2] transposed, in place of [.., 2, D/2]
      const auto last = static_cast<std::size_t>(view.rank - 1);
      view.shape[last + 1] = view.shape[last] / 2;
      view.strides[last + 1] = 2 * view.strides[last];
      view.shape[last] = 2;
      ++view.rank;
      return view;
    };
    const Tensor x = copy_of(inputs.x), result = copy_of(inputs.x);
    copy_elements(copy_of(interleaved(inputs.x)), [&] {
      TensorView halves = x.view();
      const auto last = static_cast<std::size_t>(halves.rank - 1);
      halves.shape[last + 1] = halves.shape[last] / 2;
      halves.strides[last + 1] = 1;
      halves.strides[last] = halves.shape[last] / 2;
      halves.shape[last] = 2;
      ++halves.rank;
      return halves;
    }());
    RopeInputs shuffled = inputs;
    shuffled.x = x;
    target().rope_forward(problem, shuffled, result);
    copy_elements(result, y);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(planted_in_memory_and_pieces)

BOOST_AUTO_TEST_CASE(unwritten_output) {
  expect_caught<ValueGradientUnwritten>("equivalence", "attention/grouped_heads/*_f32", "dv");
  expect_caught<ValueGradientUnwritten>("gradients", "attention/full_f32", "dv");
}

BOOST_AUTO_TEST_CASE(accumulated_output) {
  expect_caught<GradientAddedToOutput>("equivalence", "swiglu/shapes/*_f32", "dup");
}

BOOST_AUTO_TEST_CASE(overwritten_input) {
  expect_caught<InputOverwritten>("equivalence", "rmsnorm/shapes/*_f32", "an input was written to");
}

BOOST_AUTO_TEST_CASE(write_behind_the_end) {
  expect_caught<WriteBehindTheEnd>("equivalence", "rope/positions/*_f32", "bytes outside the output");
}

BOOST_AUTO_TEST_CASE(written_tail) {
  expect_caught<TailWritten>("equivalence", "attention/packed/tail_*_f32", "past the last sequence");
}

BOOST_AUTO_TEST_CASE(padding_that_is_read) {
  expect_caught<PaddingTimesZero>("equivalence", "attention/k_lengths/*_f32", "NaN");
  expect_caught<PaddingTimesZero>("stability", "attention/keys_past_k_lengths_*", "poisoned");
}

BOOST_AUTO_TEST_CASE(biased_variance) {
  expect_caught<BiasedVariance>("equivalence", "select_landmarks/policies/*_f32", "score");
  expect_caught<BiasedVariance>("identities", "select_landmarks/*", "score");
}

BOOST_AUTO_TEST_CASE(flushed_subnormals) {
  expect_caught<FlushesSubnormals>("stability", "attention/subnormal_value_*", "out = v");
}

BOOST_AUTO_TEST_CASE(wrong_step) {
  expect_caught<StepForgetsCorrection>("equivalence", "adamw/*_f32", "param");
  expect_caught<StepForgetsCorrection>("stability", "adamw/from_nothing_*", "param");
}

BOOST_AUTO_TEST_CASE(interleaved_rotation) {
  expect_caught<InterleavedRotation>("equivalence", "rope/parameters/*_f32", "y");
}

BOOST_AUTO_TEST_SUITE_END()
