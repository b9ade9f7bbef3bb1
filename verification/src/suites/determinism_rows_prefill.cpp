// Rows of attention do not depend on how many of them a call has: decode (one query) and chunked prefill against the
// full forward, with and without a longer cache.
#include "suites/determinism_rows.hpp"

namespace dsalt::verification {
namespace {

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

}  // namespace

void add_attention_prefill(RowChecks& checks) {
  const auto prefill = [&](const std::string& name, const Prefill& what) {
    checks.add("prefill/attention/" + name, every_dtype,
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
}

}  // namespace dsalt::verification
