// Rows of attention (and of merge) do not depend on their surroundings: a sequence alone, in a batch, in a pack, with
// other padding behind its keys, with its keys in pages.
#include "internal/elements.hpp"
#include "suites/determinism_rows.hpp"

namespace dsalt::verification {
namespace {

const Batched batched_attention = {
    Operation::attention,
    {"q", "k", "v", "window", "landmarks", "landmark_log_weight", "k_lengths", "dout", "dlse"},
    {"out", "lse", "dq", "dk", "dv", "dwindow", "dlandmark_log_weight"}};

void fill_sparse(CaseBuilder& c, const AttentionSpec& spec, std::int64_t chunk = 0) {
  if (chunk == 0) chunk = chunk_length(spec);
  add_qkv(c, spec);
  add_window(c, spec, WindowKind::uniform, spec.hq);
  add_landmarks(c, spec, {.k = 5, .heads = spec.hq, .chunk = chunk, .weights = true, .messy = true});
  add_soft_edge(c, 2, 0.7);
  add_gradients(c, spec, true);
}

/// Sequence s of a packed attention case as a padded case of its own.
Case unpacked(const Case& c, std::int64_t s) {
  const TensorView starts_q = c.inputs.at("cu_seqlens_q"), starts_k = c.inputs.at("cu_seqlens_k");
  const std::int64_t q0 = internal::load_i32(starts_q, s), q1 = internal::load_i32(starts_q, s + 1);
  const std::int64_t k0 = internal::load_i32(starts_k, s), k1 = internal::load_i32(starts_k, s + 1);
  Case alone = without(c, {"cu_seqlens_q", "cu_seqlens_k"});
  for (auto& [name, tensor] : alone.inputs) {
    if (name == "k" || name == "v") tensor = as_padded(tensor, k0, k1 - k0);
    if (name == "q" || name == "window" || name == "dout" || name == "dlse") tensor = as_padded(tensor, q0, q1 - q0);
    if (!name.starts_with("landmark")) continue;
    // as many lists as this sequence needs: T = ceil((nq + offset) / chunk)
    const std::int64_t chunk = std::get<std::int64_t>(c.attributes.at("landmark_chunk"));
    tensor = narrowed(narrowed(tensor, 0, s, 1), 2, 0, (q1 - q0 + chunk - 1) / chunk);
  }
  return alone;
}

void attention_pack(const AttentionSpec& spec, std::int64_t chunk, const std::string& name, DType dtype,
                    Context& context, Verdict& verdict) {
  const BatchPromise promise(Operation::attention, context, verdict);
  const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
    if (std::string_view(spec.mask) == "sparse") return fill_sparse(builder, spec, chunk);
    add_qkv(builder, spec);
    add_gradients(builder, spec, true);
  });
  const Tensors together = evaluate(context.backend(), c);
  for (std::int64_t s = 0; s < spec.batch(); ++s) {
    const auto n = static_cast<std::size_t>(s);
    const std::int64_t q0 = internal::load_i32(c.inputs.at("cu_seqlens_q"), s);
    const std::int64_t k0 = internal::load_i32(c.inputs.at("cu_seqlens_k"), s);
    const Tensors alone = evaluate(context.backend(), unpacked(c, s));
    const std::string what = "sequence " + std::to_string(s) + " unpacked: ";
    for (const auto& [output, tensor] : alone) {
      if (output == "dlandmark_log_weight")
        promise.equal_bits(what, output, tensor,
                           narrowed(narrowed(together.at(output), 0, s, 1), 2, 0, tensor.view().shape[2]));
      else if (output == "dk" || output == "dv")
        promise.equal_bits(what, output, tensor, as_padded(together.at(output), k0, spec.k_lengths[n]));
      else
        promise.equal_bits(what, output, tensor, as_padded(together.at(output), q0, spec.q_lengths[n]));
    }
  }
}

/// The same keys in buffers of several lengths, of which spec.nk is the longest.
struct Padding {
  std::int64_t used;
  std::vector<std::int64_t> buffers;
  AttentionSpec spec;
};

void attention_padding(const Padding& padding, const std::string& name, DType dtype, Context& context,
                       Verdict& verdict) {
  const BatchPromise promise(Operation::attention, context, verdict);
  const std::int64_t used = padding.used;
  const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
    add_qkv(builder, padding.spec);
    add_gradients(builder, padding.spec, true);
  });
  const Tensors exact = evaluate(context.backend(), narrowed(c, {"k", "v"}, 2, 0, used));
  for (const std::int64_t buffer : padding.buffers) {
    Case padded = narrowed(c, {"k", "v"}, 2, 0, buffer);
    CaseBuilder lengths(name, Operation::attention, dtype);
    padded.inputs["k_lengths"] =
        lengths.list_i32("k_lengths", std::vector<std::int64_t>(static_cast<std::size_t>(padding.spec.b), used));
    Tensors actual = evaluate(context.backend(), padded);
    for (const char* output : {"dk", "dv"}) actual[output] = narrowed(actual.at(output), 2, 0, used);
    for (const auto& [output, tensor] : exact)
      promise.equal_bits("buffer of " + std::to_string(buffer) + " keys: ", output, actual.at(output), tensor);
  }
}

/// The same keys one after the other, and in pages of several lengths.
void attention_pages(const AttentionSpec& spec, const std::vector<std::int64_t>& lengths, const std::string& name,
                     DType dtype, Context& context, Verdict& verdict) {
  const BatchPromise promise(Operation::attention, context, verdict);
  for (const std::int64_t page : {1, 16, 100}) {
    const Case paged = make_case(name, Operation::attention, dtype, [&](CaseBuilder& c) {
      add_qkv(c, spec);
      if (std::string_view(spec.mask) == "sparse") {
        add_window(c, spec, WindowKind::uniform, spec.hq);
        add_landmarks(c, spec, {.k = 5, .heads = spec.hq, .chunk = 64, .weights = true, .messy = true});
        add_soft_edge(c, 2, 0.7);
      }
      add_pages(c, spec, lengths, {.page = page, .shared = true});
    });
    const Tensors expected = evaluate(context.backend(), unpaged(paged)), actual = evaluate(context.backend(), paged);
    for (const char* output : {"out", "lse"})
      promise.equal_bits("pages of " + std::to_string(page) + ": ", output, actual.at(output), expected.at(output));
  }
}

void add_batches(RowChecks& checks) {
  using enum Operation;
  checks.add_batch("batch/attention/causal", batched_attention, 3, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 3, .hq = 4, .hkv = 2, .nq = 70, .nk = 90, .d = 16, .dv = 24};
    add_qkv(c, spec);
    add_gradients(c, spec, true);
  });
  const auto dense = [&](const char* name, bool quick, const AttentionSpec& spec) {
    const auto maker = [spec](CaseBuilder& c) {
      add_qkv(c, spec);
      add_gradients(c, spec, true);
    };
    checks.add_batch(name, batched_attention, spec.b, maker, quick);
  };
  dense("batch/attention/full_64", false,
        {.b = 3, .hq = 4, .hkv = 2, .nq = 65, .nk = 193, .d = 64, .dv = 64, .mask = "full"});
  dense("batch/attention/causal_64", true, {.b = 2, .hq = 2, .hkv = 1, .nq = 193, .nk = 129, .d = 64, .dv = 64});
  dense("batch/attention/causal_128", false, {.b = 2, .hq = 2, .hkv = 1, .nq = 129, .nk = 193, .d = 128, .dv = 128});
  checks.add_batch("batch/attention/k_lengths_64", batched_attention, 4, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 4, .hq = 2, .hkv = 1, .nq = 66, .nk = 200, .d = 64, .dv = 64};
    add_qkv(c, spec);
    add_k_lengths(c, spec, {127, 0, 200, 129});
    add_gradients(c, spec, true);
  });
  checks.add_batch("batch/attention/paged", {attention, {"q", "k_lengths", "page_table"}, {"out", "lse"}}, 4,
                   [](CaseBuilder& c) {
                     const AttentionSpec spec{.b = 4, .hq = 4, .hkv = 2, .nq = 9, .nk = 200, .d = 16, .dv = 16};
                     add_qkv(c, spec);
                     add_pages(c, spec, {127, 0, 200, 129}, {.page = 16, .shared = true});
                   });
  checks.add_batch("batch/attention/sparse", batched_attention, 3, [](CaseBuilder& c) {
    fill_sparse(c, {.b = 3, .hq = 4, .hkv = 2, .nq = 70, .nk = 70, .d = 16, .dv = 16, .mask = "sparse"});
  });
  checks.add_batch("batch/attention/sparse_64", batched_attention, 2, [](CaseBuilder& c) {
    fill_sparse(c, {.b = 2, .hq = 2, .hkv = 1, .nq = 193, .nk = 193, .d = 64, .dv = 64, .mask = "sparse"});
  });
  checks.add_batch(
      "batch/attention/sparse_128", batched_attention, 2,
      [](CaseBuilder& c) {
        fill_sparse(c, {.b = 2, .hq = 2, .hkv = 1, .nq = 129, .nk = 200, .d = 128, .dv = 128, .mask = "sparse"});
      },
      false);
  checks.add_batch("batch/merge/rows", {merge, {"out1", "lse1", "out2", "lse2"}, {"out", "lse"}}, 3,
                   [](CaseBuilder& c) {
                     c.normal("out1", {3, 11, 7});
                     c.normal("out2", {3, 11, 7});
                     c.normal_statistics("lse1", {3, 11}, 2);
                     c.normal_statistics("lse2", {3, 11}, 2);
                   });
}

void add_packs(RowChecks& checks) {
  const auto pack = [&](const std::string& name, const AttentionSpec& spec, bool quick = true, std::int64_t chunk = 0) {
    checks.add(
        "pack/attention/" + name, every_dtype,
        [spec, chunk](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
          attention_pack(spec, chunk, full_name, dtype, context, verdict);
        },
        quick);
  };
  pack("sparse", {.hq = 4,
                  .hkv = 2,
                  .d = 16,
                  .dv = 16,
                  .mask = "sparse",
                  .q_lengths = {70, 0, 33, 130, 1},
                  .k_lengths = {70, 4, 40, 130, 1}});
  pack("sparse_64", {.hq = 2,
                     .hkv = 1,
                     .d = 64,
                     .dv = 64,
                     .mask = "sparse",
                     .q_lengths = {65, 0, 193, 1, 130},
                     .k_lengths = {65, 4, 193, 129, 130},
                     .tail = 70});
  for (const std::int64_t chunk : {1, 3})
    pack("lists_of_" + std::to_string(chunk) + "_64",
         {.hq = 2,
          .hkv = 1,
          .d = 64,
          .dv = 64,
          .mask = "sparse",
          .q_lengths = {35, 0, 13, 1, 30},
          .k_lengths = {35, 4, 13, 129, 30},
          .tail = 20},
         true, chunk);
  pack("causal_64", {.hq = 2,
                     .hkv = 1,
                     .d = 64,
                     .dv = 64,
                     .q_lengths = {65, 0, 193, 127, 1, 130},
                     .k_lengths = {65, 4, 193, 192, 129, 64},
                     .tail = 70});
  pack("full_128",
       {.hq = 2,
        .hkv = 1,
        .d = 128,
        .dv = 128,
        .mask = "full",
        .q_lengths = {63, 129, 1},
        .k_lengths = {129, 65, 193},
        .tail = 3},
       false);
}

void add_paddings(RowChecks& checks) {
  const auto padding = [&](const std::string& name, const Padding& what) {
    checks.add("padding/attention/" + name, every_dtype,
               [what](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
                 attention_padding(what, full_name, dtype, context, verdict);
               });
  };
  padding("k_lengths", {33, {64, 200}, {.b = 2, .hq = 4, .hkv = 2, .nq = 20, .nk = 200, .d = 16, .dv = 16}});
  padding("k_lengths_64", {129, {130, 192, 300}, {.b = 2, .hq = 2, .hkv = 1, .nq = 65, .nk = 300, .d = 64, .dv = 64}});
  padding("few_keys_64", {63, {64, 65, 129, 300}, {.hq = 2, .hkv = 1, .nq = 193, .nk = 300, .d = 64, .dv = 64}});
  padding("k_lengths_128",
          {127, {128, 193}, {.hq = 2, .hkv = 1, .nq = 66, .nk = 193, .d = 128, .dv = 128, .mask = "full"}});
}

void add_pages_of_keys(RowChecks& checks) {
  const auto pages = [&](const std::string& name, const AttentionSpec& spec, const std::vector<std::int64_t>& lengths) {
    checks.add("pages/attention/" + name, every_dtype,
               [=](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
                 attention_pages(spec, lengths, full_name, dtype, context, verdict);
               });
  };
  for (const char* mask : {"causal", "sparse"})
    for (const std::int64_t nq : {1, 70})
      for (const std::int64_t d : {24, 64})
        pages(std::string(mask) + "_" + std::to_string(nq) + "_" + std::to_string(d),
              {.b = 3, .hq = 4, .hkv = 2, .nq = nq, .nk = 300, .d = d, .dv = d, .mask = mask}, {300, 129, 64});
}

}  // namespace

void add_attention_rows(RowChecks& checks) {
  add_batches(checks);
  add_packs(checks);
  add_paddings(checks);
  add_pages_of_keys(checks);
}

}  // namespace dsalt::verification
