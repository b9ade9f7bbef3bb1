// A row's bytes do not depend on its surroundings:
//   batch    a sequence alone, in a batch, in a pack, with other padding behind its keys, with its keys in pages
//   prefill  decode (one query) and chunked prefill against the full forward, with and without a longer cache
#include "internal/elements.hpp"
#include "suites/determinism.hpp"
#include "suites/gradient_cases.hpp"
#include "suites/suite_cases.hpp"

namespace dsalt::verification {
namespace {

using Run = std::function<void(const std::string&, DType, Context&, Verdict&)>;

/// Inputs and outputs whose dimension 0 counts sequences.
struct Batched {
  Operation op;
  std::vector<std::string> inputs, outputs;
};

/// Compares what `batch` is promised for: a backend that adds up gradients in any order may promise it forward only.
class BatchPromise {
 public:
  BatchPromise(Operation op, Context& context, Verdict& verdict) : op_(op), verdict_(verdict) {
    context.require_promise(&Reproducibility::batch, "batch", op, Direction::forward);
    if (!flow_of(op).gradients.empty()) backward_ = context.promises(&Reproducibility::batch, op, Direction::backward);
  }
  void equal_bits(const std::string& what, const std::string& output, const TensorView& actual,
                  const TensorView& expected) const {
    if (backward_ || !is_gradient(op_, output)) verdict_.equal_bits(what + output, actual, expected);
  }

 private:
  Operation op_;
  Verdict& verdict_;
  bool backward_ = false;
};

void each_sequence_alone(const Case& c, const Batched& batched, std::int64_t sequences, Context& context,
                         Verdict& verdict) {
  const BatchPromise promise(c.op, context, verdict);
  const Tensors together = evaluate(context.backend(), c);
  for (std::int64_t b = 0; b < sequences; ++b) {
    const Tensors alone = evaluate(context.backend(), narrowed(c, batched.inputs, 0, b, 1));
    for (const std::string& output : batched.outputs)
      if (together.contains(output))
        promise.equal_bits("sequence " + std::to_string(b) + " alone: ", output, alone.at(output),
                           narrowed(together.at(output), 0, b, 1));
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

const Batched batched_attention = {
    Operation::attention,
    {"q", "k", "v", "window", "landmarks", "landmark_log_weight", "k_lengths", "dout", "dlse"},
    {"out", "lse", "dq", "dk", "dv", "dwindow", "dlandmark_log_weight"}};

/// Queries that share a landmark list: many where backends have kernels that gather it for all of them at once.
std::int64_t chunk_length(const AttentionSpec& spec) { return spec.d < 64 ? 16 : 64; }

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

/// Rows [start, start + count) as a chunk of a longer generation that has seen start + count keys.
Case chunk_of(const Case& c, std::int64_t start, std::int64_t count) {
  Case chunk = narrowed(c, {"q", "window"}, 2, start, count);
  chunk = narrowed(chunk, {"k", "v"}, 2, 0, start + count);
  const auto attribute = c.attributes.find("landmark_chunk");
  if (attribute == c.attributes.end()) return chunk;
  const std::int64_t length = std::get<std::int64_t>(attribute->second), offset = start % length;
  chunk.attributes["landmark_offset"] = offset;
  return narrowed(chunk, {"landmarks", "landmark_log_weight"}, 2, start / length,
                  (count + offset + length - 1) / length);
}

/// A sequence as long as its keys, its rows one by one, in chunks of `count`, and one chunk while the cache already has
/// room for the rest.
struct Prefill {
  std::vector<std::int64_t> decoded, starts;
  std::int64_t count;
  std::int64_t cached_start, cached_count;
  AttentionSpec spec;
  bool loud = false;       // every fifth row has logits in the thousands, which backends may treat with more care
  std::int64_t chunk = 0;  // 0: chunk_length(spec)
};

void attention_prefill(const Prefill& prefill, const std::string& name, DType dtype, Context& context,
                       Verdict& verdict) {
  context.require_promise(&Reproducibility::prefill, "prefill", Operation::attention, Direction::forward);
  const AttentionSpec& spec = prefill.spec;
  const Case c = make_case(name, Operation::attention, dtype, [&](CaseBuilder& builder) {
    add_qkv(builder, spec);
    if (prefill.loud)
      for (std::int64_t n = 0; n < spec.b * spec.hq * spec.nq * spec.d; ++n)
        if (n / spec.d % spec.nq % 5 == 3) builder.overwrite("q", n, n % 2 == 0 ? 1000 : -1000);
    if (std::string_view(spec.mask) != "sparse") return;
    add_window(builder, spec, WindowKind::uniform, spec.hq);
    // list t holds only tokens before chunk t, as the causal policy gives them
    const RandomValues random = builder.random("landmarks");
    const std::int64_t chunk = prefill.chunk > 0 ? prefill.chunk : chunk_length(spec);
    const std::int64_t lists = (spec.nq + chunk - 1) / chunk;
    const Shape shape = {spec.b, spec.hq, lists, 5};
    builder.fill_i32("landmarks", shape, [&](std::int64_t n) -> std::int64_t {
      const std::int64_t t = (n / 5) % lists;
      return t == 0 ? -1 : random.integer(n, 0, chunk * t - 1);
    });
    builder.normal_statistics("landmark_log_weight", shape);
    builder.set("landmark_chunk", chunk);
    add_soft_edge(builder, 2, 0.7);
  });
  const Tensors full = evaluate(context.backend(), c);
  const auto judge = [&](const std::string& what, const Case& piece, std::int64_t start, std::int64_t count) {
    const Tensors actual = evaluate(context.backend(), piece);
    for (const char* output : {"out", "lse"})
      verdict.equal_bits(what + " at " + std::to_string(start) + ": " + output, actual.at(output),
                         narrowed(full.at(output), 2, start, count));
  };
  for (const std::int64_t i : prefill.decoded) judge("decode", chunk_of(c, i, 1), i, 1);
  for (const std::int64_t start : prefill.starts)
    judge("chunk", chunk_of(c, start, prefill.count), start, prefill.count);
  Case cached = chunk_of(c, prefill.cached_start, prefill.cached_count);
  CaseBuilder lengths(name, Operation::attention, dtype);
  cached.inputs["k"] = c.inputs.at("k");
  cached.inputs["v"] = c.inputs.at("v");
  cached.inputs["k_lengths"] = lengths.list_i32(
      "k_lengths",
      std::vector<std::int64_t>(static_cast<std::size_t>(spec.b), prefill.cached_start + prefill.cached_count));
  judge("cached chunk", cached, prefill.cached_start, prefill.cached_count);
}

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

void add_batches(std::vector<Check>& checks) {
  const auto add = [&](const char* name, const Batched& batched, std::int64_t sequences, const CaseMaker& maker,
                       bool quick = true) {
    for (const DType dtype : batched.op == Operation::select_landmarks ? wide_dtypes : every_dtype)
      checks.push_back({in_dtype(name, dtype), quick, [=](Context& context, Verdict& verdict) {
                          each_sequence_alone(make_case(name, batched.op, dtype, maker), batched, sequences, context,
                                              verdict);
                        }});
  };
  using enum Operation;
  add("batch/attention/causal", batched_attention, 3, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 3, .hq = 4, .hkv = 2, .nq = 70, .nk = 90, .d = 16, .dv = 24};
    add_qkv(c, spec);
    add_gradients(c, spec, true);
  });
  const auto dense = [&](const char* name, bool quick, const AttentionSpec& spec) {
    const auto maker = [spec](CaseBuilder& c) {
      add_qkv(c, spec);
      add_gradients(c, spec, true);
    };
    add(name, batched_attention, spec.b, maker, quick);
  };
  dense("batch/attention/full_64", false,
        {.b = 3, .hq = 4, .hkv = 2, .nq = 65, .nk = 193, .d = 64, .dv = 64, .mask = "full"});
  dense("batch/attention/causal_64", true, {.b = 2, .hq = 2, .hkv = 1, .nq = 193, .nk = 129, .d = 64, .dv = 64});
  dense("batch/attention/causal_128", false, {.b = 2, .hq = 2, .hkv = 1, .nq = 129, .nk = 193, .d = 128, .dv = 128});
  add("batch/attention/k_lengths_64", batched_attention, 4, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 4, .hq = 2, .hkv = 1, .nq = 66, .nk = 200, .d = 64, .dv = 64};
    add_qkv(c, spec);
    add_k_lengths(c, spec, {127, 0, 200, 129});
    add_gradients(c, spec, true);
  });
  add("batch/attention/paged", {attention, {"q", "k_lengths", "page_table"}, {"out", "lse"}}, 4, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 4, .hq = 4, .hkv = 2, .nq = 9, .nk = 200, .d = 16, .dv = 16};
    add_qkv(c, spec);
    add_pages(c, spec, {127, 0, 200, 129}, {.page = 16, .shared = true});
  });
  add("batch/attention/sparse", batched_attention, 3, [](CaseBuilder& c) {
    fill_sparse(c, {.b = 3, .hq = 4, .hkv = 2, .nq = 70, .nk = 70, .d = 16, .dv = 16, .mask = "sparse"});
  });
  add("batch/attention/sparse_64", batched_attention, 2, [](CaseBuilder& c) {
    fill_sparse(c, {.b = 2, .hq = 2, .hkv = 1, .nq = 193, .nk = 193, .d = 64, .dv = 64, .mask = "sparse"});
  });
  add(
      "batch/attention/sparse_128", batched_attention, 2,
      [](CaseBuilder& c) {
        fill_sparse(c, {.b = 2, .hq = 2, .hkv = 1, .nq = 129, .nk = 200, .d = 128, .dv = 128, .mask = "sparse"});
      },
      false);
  add("batch/merge/rows", {merge, {"out1", "lse1", "out2", "lse2"}, {"out", "lse"}}, 3, [](CaseBuilder& c) {
    c.normal("out1", {3, 11, 7});
    c.normal("out2", {3, 11, 7});
    c.normal_statistics("lse1", {3, 11}, 2);
    c.normal_statistics("lse2", {3, 11}, 2);
  });
  add("batch/window_sizes/rows", {window_sizes, {"x", "dwindow"}, {"window", "dx"}}, 3, [](CaseBuilder& c) {
    c.set("n_min", 1.0);
    c.set("n_max", 64.0);
    c.normal("x", {3, 37, 24});
    c.normal("weight", {4, 24}, 0.3);
    c.normal("bias", {4});
    c.normal_statistics("dwindow", {3, 4, 37});
  });
  add("batch/energies/rows", {energies, {"x", "v", "dnx", "dnv"}, {"nx", "nv", "dx", "dv"}}, 3, [](CaseBuilder& c) {
    c.normal("x", {3, 19, 33});
    c.normal("v", {3, 2, 19, 17});
    c.normal_statistics("dnx", {3, 19});
    c.normal_statistics("dnv", {3, 2, 19});
  });
  add("batch/select_landmarks/sequences",
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
  add("batch/rmsnorm/rows", {rmsnorm, {"x", "dy"}, {"y", "dx"}}, 3, [](CaseBuilder& c) {
    c.normal("x", {3, 21, 50});
    c.normal("gamma", {50});
    c.normal("dy", {3, 21, 50});
  });
  add("batch/rope/sequences", {rope, {"x", "dy", "positions"}, {"y", "dx"}}, 3, [](CaseBuilder& c) {
    c.normal("x", {3, 2, 13, 10});
    c.normal("dy", {3, 2, 13, 10});
    c.list_i32("positions", {0, 77, 5});
  });
  add("batch/swiglu/rows", {swiglu, {"gate", "up", "dy"}, {"y", "dgate", "dup"}}, 3, [](CaseBuilder& c) {
    c.normal("gate", {3, 21, 50}, 2);
    c.normal("up", {3, 21, 50});
    c.normal("dy", {3, 21, 50});
  });
}

}  // namespace

std::vector<Check> row_determinism_checks() {
  std::vector<Check> checks;
  add_batches(checks);
  const auto add = [&](const std::string& name, std::initializer_list<DType> dtypes, const Run& run,
                       bool quick = true) {
    for (const DType dtype : dtypes)
      checks.push_back({in_dtype(name, dtype), quick,
                        [=](Context& context, Verdict& verdict) { run(name, dtype, context, verdict); }});
  };
  const auto pack = [&](const std::string& name, const AttentionSpec& spec, bool quick = true, std::int64_t chunk = 0) {
    add(
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
  add("pack/select_landmarks/causal", wide_dtypes, selection_pack);
  const auto padding = [&](const std::string& name, const Padding& what) {
    add("padding/attention/" + name, every_dtype,
        [what](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
          attention_padding(what, full_name, dtype, context, verdict);
        });
  };
  padding("k_lengths", {33, {64, 200}, {.b = 2, .hq = 4, .hkv = 2, .nq = 20, .nk = 200, .d = 16, .dv = 16}});
  padding("k_lengths_64", {129, {130, 192, 300}, {.b = 2, .hq = 2, .hkv = 1, .nq = 65, .nk = 300, .d = 64, .dv = 64}});
  padding("few_keys_64", {63, {64, 65, 129, 300}, {.hq = 2, .hkv = 1, .nq = 193, .nk = 300, .d = 64, .dv = 64}});
  padding("k_lengths_128",
          {127, {128, 193}, {.hq = 2, .hkv = 1, .nq = 66, .nk = 193, .d = 128, .dv = 128, .mask = "full"}});
  const auto pages = [&](const std::string& name, const AttentionSpec& spec, const std::vector<std::int64_t>& lengths) {
    add("pages/attention/" + name, every_dtype,
        [=](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
          attention_pages(spec, lengths, full_name, dtype, context, verdict);
        });
  };
  for (const char* mask : {"causal", "sparse"})
    for (const std::int64_t nq : {1, 70})
      for (const std::int64_t d : {24, 64})
        pages(std::string(mask) + "_" + std::to_string(nq) + "_" + std::to_string(d),
              {.b = 3, .hq = 4, .hkv = 2, .nq = nq, .nk = 300, .d = d, .dv = d, .mask = mask}, {300, 129, 64});
  const auto prefill = [&](const std::string& name, const Prefill& what) {
    add("prefill/attention/" + name, every_dtype,
        [what](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
          attention_prefill(what, full_name, dtype, context, verdict);
        });
  };
  for (const char* mask : {"causal", "sparse"})
    prefill(mask, {{0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 149},
                   {0, 10, 64, 101},
                   49,
                   37,
                   30,
                   {.b = 2, .hq = 4, .hkv = 2, .nq = 150, .nk = 150, .d = 16, .dv = 16, .mask = mask}});
  prefill("sparse_64", {{0, 63, 64, 127, 128, 192, 199},
                        {0, 63, 64, 127},
                        70,
                        120,
                        9,
                        {.b = 2, .hq = 2, .hkv = 1, .nq = 200, .nk = 200, .d = 64, .dv = 64, .mask = "sparse"}});
  for (const std::int64_t chunk : {1, 3})
    prefill("lists_of_" + std::to_string(chunk) + "_64",
            {{0, 1, 2, 40, 69},
             {0, 19, 33},
             37,
             30,
             9,
             {.b = 2, .hq = 2, .hkv = 1, .nq = 70, .nk = 70, .d = 64, .dv = 64, .mask = "sparse"},
             false,
             chunk});
  prefill("causal_64", {{0, 62, 63, 64, 65, 127, 128, 129, 191, 192, 193, 259},
                        {0, 63, 64, 127, 129},
                        131,
                        60,
                        70,
                        {.b = 2, .hq = 2, .hkv = 1, .nq = 260, .nk = 260, .d = 64, .dv = 64}});
  prefill("causal_128", {{0, 63, 64, 127, 128, 192, 199},
                         {0, 64, 128, 130},
                         70,
                         120,
                         9,
                         {.hq = 2, .hkv = 1, .nq = 200, .nk = 200, .d = 128, .dv = 128}});
  for (const char* mask : {"causal", "sparse"})
    prefill(std::string(mask) + "_64_loud_rows",
            {{0, 1, 2, 63, 64, 65, 127},
             {0, 63, 64},
             65,
             60,
             9,
             {.hq = 2, .hkv = 1, .nq = 130, .nk = 130, .d = 64, .dv = 64, .mask = mask},
             true});
  add("prefill/select_landmarks/causal", wide_dtypes, selection_prefill);
  add("prefill/rope/positions", every_dtype, rope_prefill);
  return checks;
}

}  // namespace dsalt::verification
