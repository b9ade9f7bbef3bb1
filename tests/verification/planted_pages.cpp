// Faults in how a paged cache is read.
#include <algorithm>

#include "planted_support.hpp"

namespace {

using namespace planted;

/// Hands on a call whose page table `change` has worked on: change(table, pages of sequence b, b).
template <class Change>
void with_table(Backend& target, const AttentionProblem& problem, const AttentionInputs& inputs,
                const AttentionOutputs& outputs, const Change& change) {
  if (!inputs.page_table.present()) return target.attention_forward(problem, inputs, outputs);
  AttentionInputs changed = inputs;
  const Tensor table = copy_of(inputs.page_table);
  const std::int64_t page = inputs.k.shape[2];
  for (std::int64_t b = 0; b < table.view().shape[0]; ++b)
    change(table.view(), (internal::load_i32(inputs.k_lengths, b) + page - 1) / page, b);
  changed.page_table = table;
  target.attention_forward(problem, changed, outputs);
}

/// The first page of sequence 0 is everybody's.
struct FirstPageOfTheCall : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    std::int32_t first = -1;
    with_table(target(), problem, inputs, outputs, [&](const TensorView& table, std::int64_t pages, std::int64_t b) {
      if (pages == 0) return;
      std::int32_t& entry = *table.select(0, b).at<std::int32_t>(0);
      if (first < 0) first = entry;
      entry = first;
    });
  }
};

/// A sequence's second page follows its first one in memory.
struct PagesFollowEachOther : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    with_table(target(), problem, inputs, outputs, [&](const TensorView& table, std::int64_t pages, std::int64_t b) {
      auto* row = table.select(0, b).at<std::int32_t>(0);
      if (pages > 1) row[1] = std::min(row[0] + 1, static_cast<std::int32_t>(inputs.k.shape[0] - 1));
    });
  }
};

/// A row of the table is read where it would begin if the table were contiguous.
struct TableStridesIgnored : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    with_table(target(), problem, inputs, outputs, [&](const TensorView& table, std::int64_t pages, std::int64_t b) {
      const auto* memory = inputs.page_table.at<std::int32_t>(0);
      for (std::int64_t m = 0; m < pages; ++m)
        *table.select(0, b).at<std::int32_t>(m) =
            std::clamp(memory[b * table.shape[1] + m], 0, static_cast<std::int32_t>(inputs.k.shape[0] - 1));
    });
  }
};

/// The last row of every page counts, times 0, also where no sequence has a key.
struct PagesAreReadWhole : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (!inputs.page_table.present() || inputs.v.size() == 0) return;
    double masked = 0;
    for (std::int64_t page = 0; page < inputs.v.shape[0]; ++page)
      masked += 0 * internal::load_double(inputs.v.select(0, page).select(0, 0).select(0, inputs.v.shape[2] - 1), 0);
    change_one(outputs.out, [&](double x) { return x + masked; });
  }
};

/// Right within tolerance, but not the bits of a contiguous cache.
struct PagesInAnotherOrder : ForwardingBackend {
  using ForwardingBackend::ForwardingBackend;
  void attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                         const AttentionOutputs& outputs) override {
    target().attention_forward(problem, inputs, outputs);
    if (inputs.page_table.present() && outputs.lse.present())
      change_one(outputs.lse, [](double x) { return x * (1 + 0x1p-23); });
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(planted_in_pages)

BOOST_AUTO_TEST_CASE(pages_of_another_sequence) {
  expect_caught<FirstPageOfTheCall>("equivalence", "attention/paged/causal_*_f32");
  expect_caught<FirstPageOfTheCall>("determinism", "batch/attention/paged_*", "alone");
}

BOOST_AUTO_TEST_CASE(pages_in_order) {
  expect_caught<PagesFollowEachOther>("equivalence", "attention/paged/shared_full_*_bf16");
  expect_caught<PagesFollowEachOther>("equivalence", "attention/everything_paged/*_f32");
  expect_caught<PagesFollowEachOther>("determinism", "pages/attention/causal_1_24_*", "pages of");
}

BOOST_AUTO_TEST_CASE(strides_of_the_table) {
  for (const char* cases : {"apart", "slices", "features_outermost"})
    expect_caught<TableStridesIgnored>("equivalence", "attention/paged/" + std::string(cases) + "_20_f32");
}

BOOST_AUTO_TEST_CASE(what_is_never_read) {
  expect_caught<PagesAreReadWhole>("equivalence", "attention/paged/*_f32", "NaN");
  expect_caught<PagesAreReadWhole>("stability", "attention/outside_of_pages_*", "poisoned");
}

BOOST_AUTO_TEST_CASE(bits_of_a_contiguous_cache) {
  expect_caught<PagesInAnotherOrder>("determinism", "pages/attention/*_f32", "lse");
  expect_unseen<PagesInAnotherOrder>("equivalence", "attention/paged/*_f32");
}

BOOST_AUTO_TEST_SUITE_END()
