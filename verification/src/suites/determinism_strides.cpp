// "Results do not depend on strides" (docs/semantics.md, "Calling rules"): the same values in another layout give the
// same bytes, as far as a repeated call does.
#include <algorithm>
#include <numeric>

#include "suites/determinism.hpp"
#include "suites/gradient_cases.hpp"
#include "suites/suite_cases.hpp"

namespace dsalt::verification {
namespace {

struct StridedCase {
  std::string name;
  Operation op;
  CaseMaker maker;
  bool quick = true;
};

std::vector<StridedCase> strided_cases() {
  std::vector<StridedCase> list;
  for (const GradientCase& c : gradient_cases())
    if (!c.small) list.push_back({c.name, c.op, c.maker});
  const auto dense = [&](const char* name, bool quick, const AttentionSpec& spec) {
    list.push_back({std::string("attention/") + name, Operation::attention,
                    [spec](CaseBuilder& c) {
                      add_qkv(c, spec);
                      add_gradients(c, spec, true);
                    },
                    quick});
  };
  dense("full_64", false, {.b = 2, .hq = 4, .hkv = 2, .nq = 66, .nk = 193, .d = 64, .dv = 64, .mask = "full"});
  dense("causal_64", true, {.b = 2, .hq = 4, .hkv = 2, .nq = 66, .nk = 130, .d = 64, .dv = 64});
  dense("causal_128", false, {.b = 2, .hq = 2, .hkv = 1, .nq = 193, .nk = 129, .d = 128, .dv = 128});
  dense("pack_64", true, {.hq = 4, .hkv = 2, .d = 64, .dv = 64, .q_lengths = {65, 0, 3}, .k_lengths = {129, 4, 65}});
  for (const std::int64_t nq : {1, 20})
    list.push_back({"attention/paged_" + std::to_string(nq), Operation::attention, [nq](CaseBuilder& c) {
                      const AttentionSpec spec{.b = 2, .hq = 4, .hkv = 2, .nq = nq, .nk = 80, .d = 64, .dv = 64};
                      add_qkv(c, spec);
                      add_pages(c, spec, {80, 41}, {.page = 8, .clean = true});
                    }});
  list.push_back({"merge/rows", Operation::merge, [](CaseBuilder& c) {
                    for (const char* name : {"out1", "out2"}) c.normal(name, {2, 3, 17, 24});
                    for (const char* name : {"lse1", "lse2"}) c.normal_statistics(name, {2, 3, 17}, 2);
                  }});
  list.push_back({"select_landmarks/causal", Operation::select_landmarks, [](CaseBuilder& c) {
                    c.set("policy", "causal");
                    c.set("chunk", 8);
                    c.set("k", 5);
                    c.set("tau", 1.0);
                    c.normal("nx", {2, 60});
                    c.normal("nv", {2, 2, 60});
                    c.normal("alpha_raw", {4});
                    c.normal("dlandmark_log_weight", {2, 4, 8, 5});
                  }});
  list.push_back({"adamw/elements", Operation::adamw, [](CaseBuilder& c) {
                    for (const auto& [name, value] :
                         {std::pair{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}})
                      c.set(name, value);
                    c.set("step", 3);
                    for (const char* name : {"param", "grad"}) c.normal(name, {37, 50});
                    c.constant("m", {37, 50}, c.statistics(), 0.25);
                    c.constant("v", {37, 50}, c.statistics(), 0.125);
                  }});
  return list;
}

/// Lays out one input of the case anew.
struct Layout {
  const char* name;
  void (*apply)(CaseBuilder& c, const std::string& input, int rank);
};

constexpr Layout layouts[] = {
    {"tokens_outermost",  // [B,N,H,D] buffers, and [H,R,D] ones of packs
     [](CaseBuilder& c, const std::string& input, int rank) {
       if (rank < 3) return;
       std::vector<int> order(static_cast<std::size_t>(rank));
       std::iota(order.begin(), order.end(), 0);
       std::swap(order[static_cast<std::size_t>(rank - 3)], order[static_cast<std::size_t>(rank - 2)]);
       c.permute_storage(input, order);
     }},
    {"features_outermost",
     [](CaseBuilder& c, const std::string& input, int rank) {
       std::vector<int> order(static_cast<std::size_t>(rank));
       std::iota(order.rbegin(), order.rend(), 0);
       c.permute_storage(input, order);
     }},
    {"row_slices", [](CaseBuilder& c, const std::string& input, int) { c.embed_rows(input); }},
    {"slices", [](CaseBuilder& c, const std::string& input, int) { c.embed(input); }},
    {"unaligned", [](CaseBuilder& c, const std::string& input, int) { c.unalign(input); }},
    {"apart", [](CaseBuilder& c, const std::string& input, int) { c.space_out(input, 2); }},
    {"reversed",
     [](CaseBuilder& c, const std::string& input, int rank) { c.reverse_storage(input, std::max(rank - 2, 0)); }},
    {"broadcast",
     [](CaseBuilder& c, const std::string& input, int rank) {
       if (rank > 1) c.repeat_first(input, 0);
     }},
};

void same_bytes(const StridedCase& strided, const Layout& layout, DType dtype, Context& context, Verdict& verdict) {
  context.require_promise(&Reproducibility::run, "run", strided.op, Direction::forward);
  const bool backward = !flow_of(strided.op).gradients.empty() &&
                        context.promises(&Reproducibility::run, strided.op, Direction::backward);
  const Case moved = make_case(strided.name, strided.op, dtype, [&](CaseBuilder& c) {
    strided.maker(c);
    for (const auto& [input, tensor] : Tensors(c.get().inputs))
      if (tensor.view().rank > 0) layout.apply(c, input, tensor.view().rank);
  });
  const Tensors expected = evaluate(context.backend(), deep_copy(moved)), actual = evaluate(context.backend(), moved);
  for (const auto& [output, tensor] : expected)
    if (backward || !is_gradient(strided.op, output)) verdict.equal_bits(output, actual.at(output), tensor);
}

}  // namespace

std::vector<Check> stride_determinism_checks() {
  std::vector<Check> checks;
  for (const StridedCase& strided : strided_cases())
    for (const Layout& layout : layouts)
      for (const DType dtype : strided.op == Operation::select_landmarks ? wide_dtypes : every_dtype)
        checks.push_back(
            {in_dtype("strides/" + strided.name + "_" + layout.name, dtype), strided.quick,
             [=](Context& context, Verdict& verdict) { same_bytes(strided, layout, dtype, context, verdict); }});
  return checks;
}

}  // namespace dsalt::verification
