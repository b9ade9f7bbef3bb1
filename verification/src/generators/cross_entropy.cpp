// Cases of `cross_entropy`: mean over rows of (1-eps) nll(label) + eps mean_V nll, logits = hidden weight^T.
#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

struct Loss {
  std::int64_t rows = 13, d = 16, vocabulary = 33;
  double scale = 1, smoothing = 0;
  double ignored = 0;  // share of rows with ignore_index
  std::int64_t ignore_index = -100;
  bool gradient = true;
};

void loss(CaseBuilder& c, const Loss& n) {
  c.normal("hidden", {n.rows, n.d}, n.scale);
  c.normal("weight", {n.vocabulary, n.d}, 0.5);
  const RandomValues label = c.random("labels"), ignore = c.random("ignored");
  c.fill_i32("labels", {n.rows}, [&](std::int64_t row) {
    return ignore.uniform(row) < n.ignored ? n.ignore_index : label.integer(row, 0, n.vocabulary - 1);
  });
  if (n.smoothing > 0) c.set("label_smoothing", n.smoothing);
  if (n.ignore_index != -100) c.set("ignore_index", n.ignore_index);
  if (n.gradient) c.normal_statistics("dloss", {});
}

}  // namespace

void add_cross_entropy(FamilyList& list) {
  list.begin("cross_entropy/shapes", Operation::cross_entropy,
             "One row, many rows, odd vocabularies, a vocabulary of 1, no rows at all.");
  struct Named {
    const char* name;
    Loss loss;
  };
  for (const Named& n : {Named{"usual", {}},
                         {"one_row", {.rows = 1}},
                         {"vocabulary_1", {.vocabulary = 1}},
                         {"vocabulary_2", {.vocabulary = 2}},
                         {"vocabulary_1031", {.rows = 7, .d = 8, .vocabulary = 1031}},
                         {"width_1", {.d = 1}},
                         {"wide", {.rows = 3, .d = 257}},
                         {"many_rows", {.rows = 300, .d = 8}},
                         {"thousands_of_rows", {.rows = 2500, .d = 8, .ignored = 0.1}},
                         {"no_rows", {.rows = 0}},
                         {"forward", {.gradient = false}}})
    list.add(n.name, every_dtype, n.loss.rows < 100 ? golden : quick, [n](CaseBuilder& c) { loss(c, n.loss); });
  list.begin("cross_entropy/labels", Operation::cross_entropy,
             "Ignored rows enter no term; all ignored gives loss 0 and gradient 0; smoothing from 0 to 1.");
  for (const Named& n : {Named{"some_ignored", {.ignored = 0.4}},
                         {"all_ignored", {.ignored = 1}},
                         {"other_ignore_index", {.ignored = 0.4, .ignore_index = 5}},
                         {"smoothing", {.smoothing = 0.1}},
                         {"smoothing_ignored", {.smoothing = 0.3, .ignored = 0.3}},
                         {"smoothing_all", {.smoothing = 1}}})
    list.add(n.name, every_dtype, golden, [n](CaseBuilder& c) { loss(c, n.loss); });
  list.begin("cross_entropy/logits", Operation::cross_entropy,
             "Zero, large and one-sided logits; the log-sum-exp must shift first.");
  list.add("zero", every_dtype, golden, [](CaseBuilder& c) { loss(c, {.scale = 0}); });
  list.add("large", every_dtype, golden, [](CaseBuilder& c) { loss(c, {.scale = 60}); });
  list.add("overflowing", every_dtype, golden, [](CaseBuilder& c) { loss(c, {.scale = 2000, .smoothing = 0.1}); });
  list.add("zero_dloss", every_dtype, quick, [](CaseBuilder& c) {
    loss(c, {});
    c.constant("dloss", {}, c.statistics(), 0);
  });
  list.add("large_dloss", every_dtype, quick, [](CaseBuilder& c) {
    loss(c, {});
    c.constant("dloss", {}, c.statistics(), 1024);
  });
  list.begin("cross_entropy/strided", Operation::cross_entropy, "Hidden rows and weights in other layouts.");
  list.add("permuted", every_dtype, quick, [](CaseBuilder& c) {
    loss(c, {});
    c.permute_storage("hidden", {1, 0});
    c.permute_storage("weight", {1, 0});
    c.embed("labels");
  });
}

}  // namespace dsalt::verification
