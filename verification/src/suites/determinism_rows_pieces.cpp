// Rows of the operations beside attention do not depend on their surroundings.
#include "suites/determinism_rows.hpp"

namespace dsalt::verification {
namespace {

void selection_pack(const std::string& name, DType dtype, Context& context, Verdict& verdict) {
  const BatchPromise promise(Operation::select_landmarks, context, verdict);
  const std::vector<std::int64_t> starts = {0, 37, 37, 90, 95};
  const Case c = make_case(name, Operation::select_landmarks, dtype, [&](CaseBuilder& builder) {
    builder.set("policy", "causal");
    builder.set("chunk", 8);
    builder.set("k", 4);
    builder.set("tau", 0.8);
    builder.normal("nx", {95});
    builder.normal("nv", {95, 2});
    builder.normal("alpha_raw", {4});
    builder.list_i32("cu_seqlens", starts);
    builder.normal("dlandmark_log_weight", {4, 4, 7, 4});
    // the lists past a short sequence's own get no gradient: alone it does not have them
    for (std::int64_t s = 0; s < 4; ++s)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t t = (starts[static_cast<std::size_t>(s) + 1] - starts[static_cast<std::size_t>(s)] + 7) / 8;
             t < 7; ++t)
          for (std::int64_t slot = 0; slot < 4; ++slot)
            builder.overwrite("dlandmark_log_weight", ((s * 4 + h) * 7 + t) * 4 + slot, 0);
  });
  const Tensors together = evaluate(context.backend(), c);
  for (std::int64_t s = 0; s < 4; ++s) {
    const std::int64_t start = starts[static_cast<std::size_t>(s)], n = starts[static_cast<std::size_t>(s) + 1] - start;
    const std::int64_t lists = (n + 7) / 8;
    Case alone = without(c, {"cu_seqlens"});
    const TensorView nx = c.inputs.at("nx").view().narrow(0, start, n);
    const std::int64_t shape[] = {1, n};
    Tensor row = Tensor::empty(shape, dtype);
    copy_elements(nx, row.view().select(0, 0));
    alone.inputs["nx"] = row;
    alone.inputs["nv"] = as_padded(c.inputs.at("nv"), start, n);
    alone.inputs["dlandmark_log_weight"] =
        narrowed(narrowed(c.inputs.at("dlandmark_log_weight"), 0, s, 1), 2, 0, lists);
    const Tensors actual = evaluate(context.backend(), alone);
    const std::string what = "sequence " + std::to_string(s) + " unpacked: ";
    for (const char* output : {"landmarks", "score", "landmark_log_weight"})
      promise.equal_bits(what, output, actual.at(output),
                         narrowed(narrowed(together.at(output), 0, s, 1), 2, 0, lists));
    promise.equal_bits(what, "dnv", actual.at("dnv"), as_padded(together.at("dnv"), start, n));
    promise.equal_bits(what, "dnx", actual.at("dnx").view().select(0, 0), narrowed(together.at("dnx"), 0, start, n));
  }
}

/// The lists of a prefix are the first lists of the whole.
void selection_prefill(const std::string& name, DType dtype, Context& context, Verdict& verdict) {
  context.require_promise(&Reproducibility::prefill, "prefill", Operation::select_landmarks, Direction::forward);
  const Case c = make_case(name, Operation::select_landmarks, dtype, [&](CaseBuilder& builder) {
    builder.set("policy", "causal");
    builder.set("chunk", 8);
    builder.set("k", 4);
    builder.set("tau", 0.8);
    builder.set("recent", 2);
    builder.normal("nx", {2, 90});
    builder.normal("nv", {2, 2, 90});
    builder.normal("alpha_raw", {4});
  });
  const Tensors full = evaluate(context.backend(), c);
  for (const std::int64_t n : {1, 8, 9, 41, 89}) {
    const Case prefix = narrowed(narrowed(c, {"nx"}, 1, 0, n), {"nv"}, 2, 0, n);
    const Tensors actual = evaluate(context.backend(), prefix);
    for (const char* output : {"landmarks", "score", "landmark_log_weight"})
      verdict.equal_bits("prefix of " + std::to_string(n) + ": " + output, actual.at(output),
                         narrowed(full.at(output), 2, 0, (n + 7) / 8));
  }
}

void rope_prefill(const std::string& name, DType dtype, Context& context, Verdict& verdict) {
  context.require_promise(&Reproducibility::prefill, "prefill", Operation::rope, Direction::forward);
  const Case c = make_case(name, Operation::rope, dtype, [](CaseBuilder& builder) {
    builder.normal("x", {2, 3, 40, 16});
  });
  const Tensors full = evaluate(context.backend(), c);
  for (const auto& [start, count] : {std::pair{0, 17}, {17, 1}, {18, 22}, {39, 1}}) {
    Case piece = narrowed(c, {"x"}, 2, start, count);
    piece.attributes["position"] = std::int64_t{start};
    verdict.equal_bits("from " + std::to_string(start), evaluate(context.backend(), piece).at("y"),
                       narrowed(full.at("y"), 2, start, count));
  }
}

}  // namespace

void add_selector_rows(RowChecks& checks) {
  using enum Operation;
  checks.add_batch("batch/window_sizes/rows", {window_sizes, {"x", "dwindow"}, {"window", "dx"}}, 3,
                   [](CaseBuilder& c) {
                     c.set("n_min", 1.0);
                     c.set("n_max", 64.0);
                     c.normal("x", {3, 37, 24});
                     c.normal("weight", {4, 24}, 0.3);
                     c.normal("bias", {4});
                     c.normal_statistics("dwindow", {3, 4, 37});
                   });
  checks.add_batch("batch/energies/rows", {energies, {"x", "v", "dnx", "dnv"}, {"nx", "nv", "dx", "dv"}}, 3,
                   [](CaseBuilder& c) {
                     c.normal("x", {3, 19, 33});
                     c.normal("v", {3, 2, 19, 17});
                     c.normal_statistics("dnx", {3, 19});
                     c.normal_statistics("dnv", {3, 2, 19});
                   });
  checks.add_batch("batch/select_landmarks/sequences",
                   {select_landmarks,
                    {"nx", "nv", "dlandmark_log_weight"},
                    {"landmarks", "score", "landmark_log_weight", "dnx", "dnv"}},
                   3, [](CaseBuilder& c) {
                     c.set("policy", "causal");
                     c.set("chunk", 8);
                     c.set("k", 5);
                     c.set("tau", 1.0);
                     c.normal("nx", {3, 60});
                     c.normal("nv", {3, 2, 60});
                     c.normal("alpha_raw", {4});
                     c.normal("dlandmark_log_weight", {3, 4, 8, 5});
                   });
  checks.add("pack/select_landmarks/causal", wide_dtypes, selection_pack);
  checks.add("prefill/select_landmarks/causal", wide_dtypes, selection_prefill);
}

void add_network_rows(RowChecks& checks) {
  using enum Operation;
  checks.add_batch("batch/rmsnorm/rows", {rmsnorm, {"x", "dy"}, {"y", "dx"}}, 3, [](CaseBuilder& c) {
    c.normal("x", {3, 21, 50});
    c.normal("gamma", {50});
    c.normal("dy", {3, 21, 50});
  });
  checks.add_batch("batch/rope/sequences", {rope, {"x", "dy", "positions"}, {"y", "dx"}}, 3, [](CaseBuilder& c) {
    c.normal("x", {3, 2, 13, 10});
    c.normal("dy", {3, 2, 13, 10});
    c.list_i32("positions", {0, 77, 5});
  });
  checks.add_batch("batch/swiglu/rows", {swiglu, {"gate", "up", "dy"}, {"y", "dgate", "dup"}}, 3, [](CaseBuilder& c) {
    c.normal("gate", {3, 21, 50}, 2);
    c.normal("up", {3, 21, 50});
    c.normal("dy", {3, 21, 50});
  });
  checks.add("prefill/rope/positions", every_dtype, rope_prefill);
}

}  // namespace dsalt::verification
