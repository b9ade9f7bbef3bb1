// Faults in what attention computes.
#include <algorithm>
#include <cmath>

#include "planted_support.hpp"

namespace {

using namespace planted;

struct SignOfOneKeyGradient : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs, const AttentionSaved& saved,
                          const AttentionGradients& gradients) override {
    target().attention_backward(problem, inputs, saved, gradients);
    if (gradients.dk.present()) change_one(gradients.dk, [](double x) { return -x; });
  }
};

/// A window of w keys and the token itself, plus one.
struct WindowOneTooWide : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  static AttentionInputs widened(const AttentionInputs& inputs, Tensor& storage) {
    AttentionInputs wider = inputs;
    if (!inputs.window.present()) return wider;
    storage = copy_of(inputs.window);
    const TensorView w = storage;
    internal::for_each_element(
        [&](std::int64_t at) {
          if (w.dtype == DType::i32)
            *w.at<std::int32_t>(at) += 1;
          else
            internal::store_double(w, at, internal::load_double(w, at) + 1);
        },
        w);
    wider.window = w;
    return wider;
  }
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    Tensor storage;
    target().attention_forward(problem, widened(inputs, storage), outputs);
  }
  void attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs, const AttentionSaved& saved,
                          const AttentionGradients& gradients) override {
    Tensor storage;
    target().attention_backward(problem, widened(inputs, storage), saved, gradients);
  }
};

/// Window and landmarks are attended to separately and merged: a landmark inside the window counts twice.
struct LandmarkInWindowCountsTwice : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    if (!inputs.window.present() || !inputs.landmarks.present() || !outputs.lse.present())
      return target().attention_forward(problem, inputs, outputs);
    const Tensor hold[] = {copy_of(outputs.out), copy_of(outputs.lse), copy_of(outputs.out), copy_of(outputs.lse)};
    AttentionInputs window_only = inputs, landmarks_only = inputs;
    window_only.landmarks = window_only.landmark_log_weight = landmarks_only.window = TensorView{};
    AttentionProblem without_landmarks = problem, without_window = problem;
    without_landmarks.landmark_chunk.reset();
    without_landmarks.landmark_offset = 0;
    without_window.soft_edge.reset();
    target().attention_forward(without_landmarks, window_only, {hold[0], hold[1]});
    target().attention_forward(without_window, landmarks_only, {hold[2], hold[3]});
    target().merge({hold[0], hold[1], hold[2], hold[3]}, outputs);
  }
};

/// Only whole tiles of 64 keys are visited.
struct LastKeyTileDropped : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    AttentionInputs cut = inputs;
    if (problem.mask == Mask::full && inputs.q.rank == 4 && !inputs.k_lengths.present() && inputs.k.shape[2] > 64) {
      cut.k = inputs.k.narrow(2, 0, inputs.k.shape[2] / 64 * 64);
      cut.v = inputs.v.narrow(2, 0, inputs.v.shape[2] / 64 * 64);
    }
    target().attention_forward(problem, cut, outputs);
  }
};

/// Query rows past the last whole tile of 128 keep what was there before.
struct LastQueryTileDropped : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    const Tensor before = copy_of(outputs.out);
    target().attention_forward(problem, inputs, outputs);
    if (inputs.q.rank != 4 || inputs.q.shape[2] < 128) return;
    const std::int64_t whole = inputs.q.shape[2] / 128 * 128, rest = inputs.q.shape[2] - whole;
    copy_elements(before.view().narrow(2, whole, rest), outputs.out.narrow(2, whole, rest));
  }
};

struct OneNan : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    change_one(outputs.out, [](double) { return std::nan(""); });
  }
};

/// float32 inputs are rounded to bfloat16 first: a TF32-like saving that nobody asked for.
struct CoarseScores : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    AttentionInputs coarse = inputs;
    const Tensor q = copy_of(inputs.q);
    internal::for_each_element(
        [&](std::int64_t at) {
          internal::store_double(q, at, static_cast<double>(to_float(to_bfloat16(internal::load_double(q, at)))));
        },
        q.view());
    coarse.q = q;
    target().attention_forward(problem, coarse, outputs);
  }
};

/// Small elements of dq are 1 % too large.
struct SmallElementsOff : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs, const AttentionSaved& saved,
                          const AttentionGradients& gradients) override {
    target().attention_backward(problem, inputs, saved, gradients);
    const TensorView dq = gradients.dq;
    if (!dq.present()) return;
    internal::for_each_element(
        [&](std::int64_t at) {
          const double x = internal::load_double(dq, at);
          if (std::fabs(x) < 1e-2) internal::store_double(dq, at, 1.01 * x);
        },
        dq);
  }
};

/// One lse is off by a thousandth.
struct LseOff : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (outputs.lse.present()) change_one(outputs.lse, [](double x) { return x - 1e-3; });
  }
};

/// Lengths and sequence starts are read as if they followed each other in memory. What is no length or start is made
/// one.
struct ListStridesIgnored : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    AttentionInputs dense = inputs;
    const std::int64_t q_rows = inputs.q.shape[0], k_rows = inputs.k.shape[inputs.k.rank == 3 ? 0 : 2];
    const Tensor k_lengths = next_in_memory(dense.k_lengths, k_rows, false),
                 starts_q = next_in_memory(dense.cu_seqlens_q, q_rows, true),
                 starts_k = next_in_memory(dense.cu_seqlens_k, k_rows, true);
    target().attention_forward(problem, dense, outputs);
  }
  static Tensor next_in_memory(TensorView& list, std::int64_t most, bool ascending) {
    if (!list.present()) return {};
    const Tensor copy = copy_of(list);
    std::int32_t least = 0;
    for (std::int64_t n = 0; n < list.shape[0]; ++n) {
      std::int32_t& value = *copy.view().at<std::int32_t>(n);
      value = std::clamp(*list.at<std::int32_t>(n), least, static_cast<std::int32_t>(most));
      if (ascending) least = value;
    }
    list = copy;
    return copy;
  }
};

/// The weight exp(s - lse) of the only key is 1 within the rounding of a large s.
struct WeightOfOneKeyOff : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    internal::for_each_element(
        [&](std::int64_t at) {
          internal::store_double(outputs.out, at, internal::load_double(outputs.out, at) * (1 + 0x1p-11));
        },
        outputs.out);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(planted_in_attention)

BOOST_AUTO_TEST_CASE(sign_of_one_gradient_element) {
  expect_caught<SignOfOneKeyGradient>("equivalence", "attention/partial_tiles/*_f32", "dk");
  expect_caught<SignOfOneKeyGradient>("equivalence", "attention/grouped_heads/9_*_bf16", "dk");
  expect_caught<SignOfOneKeyGradient>("gradients", "attention/sparse_f16", "dk");
  expect_caught<SignOfOneKeyGradient>("identities", "attention/pack_is_padded_f32", "dk");
}

BOOST_AUTO_TEST_CASE(window_off_by_one) {
  expect_caught<WindowOneTooWide>("equivalence", "attention/soft_edge/*_f32");
  expect_caught<WindowOneTooWide>("equivalence", "attention/window*_bf16");
  expect_caught<WindowOneTooWide>("stability", "attention/window_of_one_token_*", "out = v");
  expect_caught<WindowOneTooWide>("gradients", "attention/sparse_f32");
}

BOOST_AUTO_TEST_CASE(landmark_counted_twice) {
  expect_caught<LandmarkInWindowCountsTwice>("equivalence", "attention/landmark_weights/*_f32");
  expect_caught<LandmarkInWindowCountsTwice>("identities", "attention/all_landmarks_are_causal_*", "with windows");
}

BOOST_AUTO_TEST_CASE(last_key_tile_dropped) {
  expect_caught<LastKeyTileDropped>("equivalence", "attention/partial_tiles/full_*_f32");
  expect_caught<LastKeyTileDropped>("equivalence", "attention/partial_tiles/full_*_bf16");
  expect_caught<LastKeyTileDropped>("stability", "attention/constant_row_*_f32");
}

BOOST_AUTO_TEST_CASE(last_query_tile_dropped) {
  expect_caught<LastQueryTileDropped>("equivalence", "attention/partial_tiles/causal_1??_*", "never written");
  expect_caught<LastQueryTileDropped>("stability", "attention/window_of_one_token_f32");
}

BOOST_AUTO_TEST_CASE(one_nan) {
  expect_caught<OneNan>("equivalence", "attention/partial_tiles/*_f16", "NaN");
  expect_caught<OneNan>("stability", "attention/all_equal_*", "NaN");
}

BOOST_AUTO_TEST_CASE(float32_means_float32) {
  expect_caught<CoarseScores>("equivalence", "attention/partial_tiles/*_f32", "units");
  expect_unseen<CoarseScores>("equivalence", "attention/partial_tiles/*_bf16");  // rounding bfloat16 changes nothing
}

BOOST_AUTO_TEST_CASE(one_percent_of_small_elements) {
  expect_caught<SmallElementsOff>("equivalence", "attention/partial_tiles/full_137_f32", "dq");
  expect_caught<SmallElementsOff>("gradients", "attention/causal_large_f32", "dq");
}

BOOST_AUTO_TEST_CASE(lse) {
  expect_caught<LseOff>("equivalence", "attention/lse_gradient/forward_only_f32", "lse");
  expect_caught<LseOff>("equivalence", "attention/lse_gradient/forward_only_bf16", "lse");
}

BOOST_AUTO_TEST_CASE(strides_of_lists) {
  for (const char* cases : {"k_lengths_repeated", "k_lengths_reversed", "k_lengths_apart", "cu_seqlens_apart"})
    expect_caught<ListStridesIgnored>("equivalence", "attention/dense_tiles/" + std::string(cases) + "_*");
}

BOOST_AUTO_TEST_CASE(weight_of_one_key) {
  expect_caught<WeightOfOneKeyOff>("stability", "attention/one_key_large_logit_*_f16", "out = v");
  expect_caught<WeightOfOneKeyOff>("stability", "attention/one_key_large_logit_128_packed_f32", "out = v");
}

BOOST_AUTO_TEST_SUITE_END()
