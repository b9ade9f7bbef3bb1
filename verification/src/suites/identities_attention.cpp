// Attention computed in two ways that the definition makes equal.
#include "internal/elements.hpp"
#include "suites/identities.hpp"

namespace dsalt::verification {
namespace {

const std::vector<std::string> dense_outputs = {"out", "lse", "dq", "dk", "dv"};

constexpr std::int64_t n = 45;
const AttentionSpec square{.b = 2, .hq = 4, .hkv = 2, .nq = n, .nk = n, .d = 16, .dv = 12, .mask = "sparse"};

Case sparse_case(const std::string& name, DType dtype, const CaseMaker& more, const AttentionSpec& spec = square) {
  return make_case(name, Operation::attention, dtype, [&](CaseBuilder& c) {
    add_qkv(c, spec);
    add_gradients(c, spec, true);
    more(c);
  });
}

/// The same tensors under a dense mask.
Case dense_twin(const Case& c, const char* mask) {
  Case twin = without(c, {"window", "landmarks", "landmark_log_weight", "landmark_chunk", "landmark_offset",
                          "bidirectional", "soft_edge", "soft_tau"});
  twin.attributes["mask"] = std::string(mask);
  return twin;
}

void all_keys_as_landmarks(CaseBuilder& c, std::int64_t lists_heads = 1) {
  c.fill_i32("landmarks", {2, lists_heads, 1, n}, [](std::int64_t index) { return index % n; });
}

void add_masks(IdentityChecks& checks) {
  checks.add(
      "attention/wide_window_is_causal", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
        for (const double w : {static_cast<double>(n - 1), 1e9, infinity}) {
          const Case c = sparse_case(
              name, dtype, [&](CaseBuilder& b) { b.constant("window", square.row_shape(1), b.statistics(), w); });
          same_outputs(c, dense_twin(c, "causal"), context, verdict, dense_outputs);
        }
      });
  checks.add("attention/wide_bidirectional_window_is_full",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = sparse_case(name, dtype, [&](CaseBuilder& b) {
                 b.set("bidirectional", true);
                 b.fill_i32("window", square.row_shape(4), [](std::int64_t) { return n; });
               });
               same_outputs(c, dense_twin(c, "full"), context, verdict, dense_outputs);
             });
  checks.add("attention/all_landmarks_are_causal",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case only_landmarks = sparse_case(name, dtype, [](CaseBuilder& b) { all_keys_as_landmarks(b); });
               same_outputs(only_landmarks, dense_twin(only_landmarks, "causal"), context, verdict, dense_outputs);
               // a key in window and list counts once
               const Case both = sparse_case(name, dtype, [](CaseBuilder& b) {
                 all_keys_as_landmarks(b, 4);
                 add_window(b, square, WindowKind::uniform, 4);
               });
               same_outputs(both, dense_twin(both, "causal"), context, verdict, dense_outputs, "with windows");
             });
  checks.add("attention/all_landmarks_bidirectional_are_full",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = sparse_case(name, dtype, [](CaseBuilder& b) {
                 b.set("bidirectional", true);
                 all_keys_as_landmarks(b);
                 add_window(b, square, WindowKind::uniform, 1);
               });
               same_outputs(c, dense_twin(c, "full"), context, verdict, dense_outputs);
             });
}

void add_landmark_sets(IdentityChecks& checks) {
  checks.add("attention/lists_are_sets", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const std::int32_t plain[] = {30, 3, 11, 7, -1, -1, -1, -1}, messy[] = {7, -5, 11, 7, 30, 30, 999, 3};
    const auto with = [&](const std::int32_t(&list)[8]) {
      return sparse_case(name, dtype, [&](CaseBuilder& b) {
        add_window(b, square, WindowKind::constant, 1);
        b.fill_i32("landmarks", {2, 1, 1, 8}, [&](std::int64_t index) { return list[index % 8]; });
      });
    };
    same_outputs(with(messy), with(plain), context, verdict);
  });
  checks.add("attention/zero_weights_are_none",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = sparse_case(name, dtype, [](CaseBuilder& b) {
                 add_window(b, square, WindowKind::constant, 1);
                 add_landmarks(b, square, {.k = 5, .heads = 4, .chunk = 16, .weights = true, .weight_scale = 0});
               });
               same_outputs(c, without(c, {"landmark_log_weight"}), context, verdict, dense_outputs);
             });
  checks.add("attention/equal_lists_are_one",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case many = sparse_case(name, dtype, [](CaseBuilder& b) {
                 add_window(b, square, WindowKind::constant, 1);
                 b.set("landmark_chunk", 10);
                 b.set("landmark_offset", 7);
                 b.fill_i32("landmarks", {2, 4, 6, 3}, [](std::int64_t index) { return 5 * (index % 3) + 1; });
               });
               const Case one = sparse_case(name, dtype, [](CaseBuilder& b) {
                 add_window(b, square, WindowKind::constant, 1);
                 b.fill_i32("landmarks", {2, 4, 1, 3}, [](std::int64_t index) { return 5 * (index % 3) + 1; });
               });
               same_outputs(many, one, context, verdict);
             });
  checks.add("attention/soft_edge_out_of_reach",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = sparse_case(name, dtype, [](CaseBuilder& b) {
                 b.constant("window", square.row_shape(4), b.statistics(), 500);
                 add_soft_edge(b, 2, 0.5);
               });
               same_outputs(c, dense_twin(c, "causal"), context, verdict, dense_outputs);
             });
}

/// The same case with every head's own copy of a tensor that the heads share along dimension 1.
Tensor repeated(const Tensor& tensor, std::int64_t heads) {
  const TensorView view = tensor;
  std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
  const std::int64_t group = heads / shape[1];
  shape[1] = heads;
  const Tensor wide = Tensor::empty(shape, view.dtype);
  for (std::int64_t h = 0; h < heads; ++h) copy_elements(view.narrow(1, h / group, 1), wide.view().narrow(1, h, 1));
  return wide;
}

void add_heads(IdentityChecks& checks) {
  checks.add("attention/groups_are_copies",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case grouped =
                   sparse_case(name, dtype, [](CaseBuilder& b) { add_window(b, square, WindowKind::uniform, 4); });
               Case expanded = grouped;
               for (const char* input : {"k", "v"}) expanded.inputs[input] = repeated(grouped.inputs.at(input), 4);
               same_outputs(grouped, expanded, context, verdict, {"out", "lse", "dq", "dwindow"}, "grouped");
               same_outputs(expanded, grouped, context, verdict, {"out", "lse", "dq", "dwindow"}, "expanded");
             });
  checks.add("attention/shared_windows_and_lists_are_copies",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case shared = sparse_case(name, dtype, [](CaseBuilder& b) {
                 add_window(b, square, WindowKind::uniform, 1);
                 add_landmarks(b, square, {.k = 5, .heads = 1, .chunk = 16, .weights = true});
                 add_soft_edge(b, 2, 0.5);
               });
               Case expanded = shared;
               for (const char* input : {"window", "landmarks", "landmark_log_weight"})
                 expanded.inputs[input] = repeated(shared.inputs.at(input), 4);
               same_outputs(shared, expanded, context, verdict, dense_outputs, "shared");
               same_outputs(expanded, shared, context, verdict, dense_outputs, "expanded");
             });
}

void add_packs(IdentityChecks& checks) {
  checks.add("attention/pack_is_padded", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const AttentionSpec spec{.hq = 4,
                             .hkv = 2,
                             .d = 16,
                             .dv = 12,
                             .mask = "causal",
                             .q_lengths = {20, 0, 33, 1},
                             .k_lengths = {20, 3, 40, 5}};
    const Case pack = make_case(name, Operation::attention, dtype, [&](CaseBuilder& b) {
      add_qkv(b, spec);
      add_gradients(b, spec, true);
    });
    const Tensors actual = evaluate(context.backend(), pack);
    std::int64_t q0 = 0, k0 = 0;
    for (std::size_t s = 0; s < spec.q_lengths.size(); ++s) {
      const std::int64_t nq = spec.q_lengths[s], nk = spec.k_lengths[s];
      Case padded = without(pack, {"cu_seqlens_q", "cu_seqlens_k"});
      Tensors rows;
      for (auto& [input, tensor] : padded.inputs)
        tensor = input == "k" || input == "v" ? as_padded(tensor, k0, nk) : as_padded(tensor, q0, nq);
      for (const auto& [output, tensor] : actual)
        rows[output] = output == "dk" || output == "dv" ? as_padded(tensor, k0, nk) : as_padded(tensor, q0, nq);
      judge_as(rows, padded, verdict, {}, "sequence " + std::to_string(s));
      q0 += nq;
      k0 += nk;
    }
  });
  checks.add("attention/k_lengths_cut", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const AttentionSpec spec{.b = 2, .hq = 2, .nq = 9, .nk = 50, .d = 16, .dv = 12};
    const Case cut = make_case(name, Operation::attention, dtype, [&](CaseBuilder& b) {
      add_qkv(b, spec);
      add_gradients(b, spec, true);
      b.list_i32("k_lengths", {31, 31});
    });
    Case shorter = without(cut, {"k_lengths"});
    shorter = narrowed(shorter, {"k", "v"}, 2, 0, 31);
    Tensors actual = evaluate(context.backend(), cut);
    for (const char* output : {"dk", "dv"}) actual[output] = narrowed(actual.at(output), 2, 0, 31);
    judge_as(actual, shorter, verdict);
  });
}

/// A query alone against all keys, as in decoding, is the last row of the whole.
void add_last_rows(IdentityChecks& checks) {
  constexpr std::int64_t length = 150;
  for (const char* mask : {"causal", "sparse"})
    checks.add("attention/decode_is_the_last_rows_" + std::string(mask), [mask](const std::string& name, DType dtype,
                                                                                Context& context, Verdict& verdict) {
      const AttentionSpec spec{.b = 2, .hq = 4, .hkv = 2, .nq = length, .nk = length, .d = 64, .dv = 64, .mask = mask};
      const Case whole = make_case(name, Operation::attention, dtype, [&](CaseBuilder& b) {
        add_qkv(b, spec);
        if (mask == std::string_view("causal")) return;
        add_window(b, spec, WindowKind::uniform, 4);
        add_landmarks(b, spec, {.k = 20, .heads = 4, .weights = true, .messy = true});
      });
      const Tensors all = evaluate(context.backend(), whole);
      for (const std::int64_t rows : {1, 3}) {
        Case last = narrowed(whole, {"q"}, 2, length - rows, rows);
        if (last.inputs.contains("window")) last = narrowed(last, {"window"}, 2, length - rows, rows);
        Tensors of_whole;
        for (const auto& [output, tensor] : all) of_whole[output] = narrowed(tensor, 2, length - rows, rows);
        const std::string label = std::to_string(rows) + " rows";
        judge_as(of_whole, last, verdict, {"out", "lse"}, label + " of the whole");
        judge_as(evaluate(context.backend(), last), last, verdict, {"out", "lse"}, label + " alone");
      }
    });
}

void add_parameters(IdentityChecks& checks) {
  checks.add("attention/default_scale", [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
    const Case c = make_case(name, Operation::attention, dtype, [](CaseBuilder& b) {
      const AttentionSpec spec{.nq = 12, .nk = 12, .d = 64, .dv = 8};
      add_qkv(b, spec);
      add_gradients(b, spec, true);
    });
    Case given = c;
    given.attributes["scale"] = 0.125;
    same_outputs(c, given, context, verdict);
  });
  checks.add("attention/no_dropout_is_dropout_of_zero",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = make_case(name, Operation::attention, dtype, [](CaseBuilder& b) {
                 const AttentionSpec spec{.nq = 25, .nk = 25, .d = 8, .dv = 8};
                 add_qkv(b, spec);
                 add_gradients(b, spec, true);
                 add_dropout(b, 0, 99, 3);
               });
               same_outputs(c, without(c, {"dropout_p", "dropout_seed", "dropout_offset"}), context, verdict);
             });
  checks.add("attention/dropped_weights_are_zero",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = make_case(name, Operation::attention, dtype, [](CaseBuilder& b) {
                 const AttentionSpec spec{.nq = 25, .nk = 25, .d = 8, .dv = 8};
                 add_qkv(b, spec);
                 add_dropout(b, 1, 99, 3);
               });
               const Tensors actual = evaluate(context.backend(), c);
               const TensorView out = actual.at("out");
               bool zero = true;
               internal::for_each_element([&](std::int64_t at) { zero &= internal::load_double(out, at) == 0; }, out);
               verdict.require(zero, "p = 1 leaves an output that is not 0");
               judge_as(actual, without(c, {"dropout_p", "dropout_seed", "dropout_offset"}), verdict, {"lse"});
             });
}

/// Attention over each part of the keys, merged one after the other.
Tensors merged_parts(Backend& backend, const Case& whole, std::int64_t keys, std::int64_t parts) {
  Tensors merged;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = keys * part / parts, end = keys * (part + 1) / parts;
    const Tensors piece = evaluate(backend, narrowed(whole, {"k", "v"}, 2, begin, end - begin));
    if (part == 0) {
      merged = piece;
      continue;
    }
    Case join;
    join.name = whole.name;
    join.op = Operation::merge;
    join.inputs = {
        {"out1", merged.at("out")}, {"lse1", merged.at("lse")}, {"out2", piece.at("out")}, {"lse2", piece.at("lse")}};
    merged = evaluate(backend, join);
  }
  return merged;
}

void add_merge_identities(IdentityChecks& checks) {
  struct Split {
    std::int64_t keys, parts;
  };
  for (const Split split : {Split{60, 2}, {61, 8}, {3, 8}})  // three keys in eight parts: empty parts among them
    checks.add("merge/" + std::to_string(split.parts) + "_parts_of_" + std::to_string(split.keys),
               [split](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
                 const Case whole = make_case(name, Operation::attention, dtype, [&](CaseBuilder& b) {
                   const AttentionSpec spec{
                       .b = 2, .hq = 4, .hkv = 2, .nq = 7, .nk = split.keys, .d = 16, .dv = 12, .mask = "full"};
                   add_qkv(b, spec);
                 });
                 judge_as(merged_parts(context.backend(), whole, split.keys, split.parts), whole, verdict);
               });
  checks.add("merge/order_does_not_matter",
             [](const std::string& name, DType dtype, Context& context, Verdict& verdict) {
               const Case c = make_case(name, Operation::merge, dtype, [](CaseBuilder& b) {
                 b.normal("out1", {2, 9, 6});
                 b.normal("out2", {2, 9, 6});
                 b.normal_statistics("lse1", {2, 9}, 3);
                 b.normal_statistics("lse2", {2, 9}, 3);
               });
               Case swapped = c;
               std::swap(swapped.inputs.at("out1"), swapped.inputs.at("out2"));
               std::swap(swapped.inputs.at("lse1"), swapped.inputs.at("lse2"));
               same_outputs(swapped, c, context, verdict);
             });
}

}  // namespace

void add_attention_identities(IdentityChecks& checks) {
  add_masks(checks);
  add_landmark_sets(checks);
  add_heads(checks);
  add_packs(checks);
  add_last_rows(checks);
  add_parameters(checks);
  add_merge_identities(checks);
}

}  // namespace dsalt::verification
