// Windows end at n + 0.37 and soft edges are 2.5 wide, so that neither w nor w - soft_edge is near a whole number: the
// jumps there are not differentiated, and no finite step may cross them.
#include "suites/gradient_cases.hpp"

#include <algorithm>

#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

void add_smooth_window(CaseBuilder& c, const AttentionSpec& spec, std::int64_t heads) {
  const RandomValues random = c.random("window");
  const std::int64_t longest = std::max<std::int64_t>(spec.longest_k(), 2);
  c.fill("window", spec.row_shape(heads), c.statistics(),
         [&](std::int64_t n) { return static_cast<double>(random.integer(n, 0, longest - 1)) + 0.37; });
}

/// Sparse with everything that has a gradient: soft edge, landmark weights, both upstream gradients.
void add_sparse(CaseBuilder& c, const AttentionSpec& spec, std::int64_t window_heads, std::int64_t list_heads,
                std::int64_t chunk, std::int64_t offset) {
  add_qkv(c, spec);
  add_smooth_window(c, spec, window_heads);
  add_landmarks(c, spec,
                {.k = 3, .heads = list_heads, .chunk = chunk, .offset = offset, .weights = true, .messy = true});
  add_soft_edge(c, 2.5, 0.8);
  add_gradients(c, spec, true);
}

void add_dense(CaseBuilder& c, const AttentionSpec& spec) {
  add_qkv(c, spec);
  add_gradients(c, spec, true);
}

void add_attention_cases(std::vector<GradientCase>& list) {
  const auto add = [&](const char* name, bool small, std::function<void(CaseBuilder&)> maker) {
    list.push_back({std::string("attention/") + name, Operation::attention, small, std::move(maker)});
  };
  add("full", true,
      [](CaseBuilder& c) { add_dense(c, {.hkv = 2, .nq = 5, .nk = 7, .d = 3, .dv = 4, .mask = "full"}); });
  add("causal_grouped", true,
      [](CaseBuilder& c) { add_dense(c, {.hq = 4, .hkv = 2, .nq = 7, .nk = 5, .d = 3, .dv = 2}); });
  add("scale_negative", true, [](CaseBuilder& c) {
    add_dense(c, {.nq = 6, .nk = 6, .d = 3, .dv = 3});
    c.set("scale", -1.0);
  });
  add("dropout", true, [](CaseBuilder& c) {
    add_dense(c, {.b = 2, .nq = 6, .nk = 6, .d = 3, .dv = 3, .mask = "full"});
    add_dropout(c, 0.3, 11, 4);
  });
  add("kv_cache", true, [](CaseBuilder& c) {
    const AttentionSpec spec{.b = 2, .nq = 3, .nk = 8, .d = 3, .dv = 3};
    add_dense(c, spec);
    add_k_lengths(c, spec, {8, 5});
  });
  add("packed", true, [](CaseBuilder& c) {
    add_dense(c, {.d = 3, .dv = 3, .q_lengths = {4, 0, 3}, .k_lengths = {5, 2, 3}, .tail = 2});
  });
  add("sparse", true,
      [](CaseBuilder& c) { add_sparse(c, {.nq = 9, .nk = 9, .d = 3, .dv = 3, .mask = "sparse"}, 2, 2, 4, 0); });
  add("sparse_shared_heads", true,
      [](CaseBuilder& c) { add_sparse(c, {.nq = 6, .nk = 9, .d = 3, .dv = 2, .mask = "sparse"}, 1, 1, 4, 3); });
  add("sparse_bidirectional", true, [](CaseBuilder& c) {
    add_sparse(c, {.nq = 8, .nk = 8, .d = 3, .dv = 3, .mask = "sparse"}, 2, 1, 0, 0);
    c.set("bidirectional", true);
  });
  add("sparse_packed_dropout", true, [](CaseBuilder& c) {
    add_sparse(c, {.d = 3, .dv = 3, .mask = "sparse", .q_lengths = {5, 4}, .k_lengths = {5, 7}}, 1, 2, 3, 0);
    add_dropout(c, 0.25, 5, 0);
  });
  add("causal_large", false,
      [](CaseBuilder& c) { add_dense(c, {.hq = 4, .hkv = 2, .nq = 70, .nk = 96, .d = 32, .dv = 24}); });
  add("sparse_large", false, [](CaseBuilder& c) {
    add_sparse(c, {.hq = 4, .hkv = 2, .nq = 96, .nk = 96, .d = 32, .dv = 32, .mask = "sparse"}, 4, 4, 16, 0);
  });
}

/// Normal deviates of the given size, away from zero by construction of the length: rows have at least 3 elements.
void add_window_sizes_case(CaseBuilder& c, const Shape& x, std::int64_t heads, const Shape& window) {
  c.set("n_min", 2.0);
  c.set("n_max", 17.0);
  c.normal("x", x);
  c.normal("weight", {heads, x.back()}, 0.5);
  c.normal("bias", {heads}, 0.5);
  c.normal_statistics("dwindow", window);
}

void add_energies_case(CaseBuilder& c, const Shape& x, const Shape& v) {
  c.normal("x", x);
  c.normal("v", v);
  c.normal_statistics("dnx", Shape(x.begin(), x.end() - 1));
  c.normal_statistics("dnv", Shape(v.begin(), v.end() - 1));
}

/// Both energies of a token follow one permutation p of its index, so that all scores are well apart and no step
/// changes the selection; the squares keep the two z-scores from being equal.
void add_selection_case(CaseBuilder& c, const char* policy, std::int64_t chunk, const Shape& nx, const Shape& nv,
                        std::int64_t lists, std::int64_t batch) {
  c.set("policy", policy);
  c.set("k", 3);
  c.set("tau", 0.7);
  if (chunk > 0) c.set("chunk", chunk);
  const bool packed = nx.size() == 1;
  const auto rank = [](std::int64_t token) { return static_cast<double>((token * 7 + 3) % 23); };
  c.fill("nx", nx, c.dtype(), [&](std::int64_t n) { return 3 + 0.125 * rank(packed ? n : n % nx.back()); });
  c.fill("nv", nv, c.dtype(), [&](std::int64_t n) {
    const double p = rank(packed ? n / nv.back() : n % nv.back());
    return 2 + 0.08 * p + 0.004 * p * p;
  });
  c.normal("alpha_raw", {4}, 0.7);
  c.normal("dlandmark_log_weight", {batch, 4, lists, 3});
}

void add_selector_cases(std::vector<GradientCase>& list) {
  const auto add = [&](const char* name, Operation op, bool small, std::function<void(CaseBuilder&)> maker) {
    list.push_back({std::string(name_of(op)) + "/" + name, op, small, std::move(maker)});
  };
  using enum Operation;
  add("padded", window_sizes, true, [](CaseBuilder& c) { add_window_sizes_case(c, {2, 5, 4}, 3, {2, 3, 5}); });
  add("packed", window_sizes, true, [](CaseBuilder& c) { add_window_sizes_case(c, {7, 4}, 1, {7, 1}); });
  add("large", window_sizes, false, [](CaseBuilder& c) { add_window_sizes_case(c, {2, 64, 48}, 8, {2, 8, 64}); });
  add("padded", energies, true, [](CaseBuilder& c) { add_energies_case(c, {2, 4, 5}, {2, 3, 4, 3}); });
  add("packed", energies, true, [](CaseBuilder& c) { add_energies_case(c, {6, 5}, {6, 2, 3}); });
  add("large", energies, false, [](CaseBuilder& c) { add_energies_case(c, {2, 64, 48}, {2, 2, 64, 24}); });
  add("global", select_landmarks, true, [](CaseBuilder& c) {
    add_selection_case(c, "global", 0, {2, 9}, {2, 2, 9}, 1, 2);
  });
  add("causal", select_landmarks, true, [](CaseBuilder& c) {
    add_selection_case(c, "causal", 4, {1, 11}, {1, 4, 11}, 3, 1);
  });
  add("causal_recent_packed", select_landmarks, true, [](CaseBuilder& c) {
    add_selection_case(c, "causal", 3, {12}, {12, 1}, 3, 2);
    c.list_i32("cu_seqlens", {0, 4, 12});
    c.set("recent", 1);
  });
}

void add_network_cases(std::vector<GradientCase>& list) {
  const auto add = [&](const char* name, Operation op, bool small, std::function<void(CaseBuilder&)> maker) {
    list.push_back({std::string(name_of(op)) + "/" + name, op, small, std::move(maker)});
  };
  using enum Operation;
  const auto norm = [](const Shape& shape) {
    return [shape](CaseBuilder& c) {
      c.normal("x", shape);
      c.normal("gamma", {shape.back()});
      c.normal("dy", shape);
    };
  };
  add("rows", rmsnorm, true, norm({3, 7}));
  add("large", rmsnorm, false, norm({40, 192}));
  add("eps_dominates", rmsnorm, true, [](CaseBuilder& c) {
    c.set("eps", 4.0);
    c.normal("x", {2, 3, 5});
    c.normal("gamma", {5});
    c.normal("dy", {2, 3, 5});
  });
  const auto rotation = [](const Shape& shape, std::int64_t position) {
    return [shape, position](CaseBuilder& c) {
      c.set("position", position);
      c.normal("x", shape);
      c.normal("dy", shape);
    };
  };
  add("padded", rope, true, rotation({2, 2, 3, 6}, 5));
  add("large", rope, false, rotation({2, 4, 64, 64}, 1000));
  const auto gated = [](const Shape& shape) {
    return [shape](CaseBuilder& c) {
      c.normal("gate", shape, 2);
      c.normal("up", shape);
      c.normal("dy", shape);
    };
  };
  add("elements", swiglu, true, gated({3, 8}));
  add("large", swiglu, false, gated({64, 100}));
  const auto loss = [](std::int64_t rows, std::int64_t d, std::int64_t vocabulary, double smoothing) {
    return [=](CaseBuilder& c) {
      c.set("label_smoothing", smoothing);
      c.normal("hidden", {rows, d});
      c.normal("weight", {vocabulary, d}, 0.5);
      c.fill_i32("labels", {rows}, [=](std::int64_t r) { return r % 3 == 1 ? -100 : (r * 5) % vocabulary; });
      c.constant("dloss", {}, c.statistics(), 1.7);
    };
  };
  add("plain", cross_entropy, true, loss(5, 4, 7, 0));
  add("smoothed", cross_entropy, true, loss(5, 4, 7, 0.2));
  add("large", cross_entropy, false, loss(48, 32, 200, 0.1));
}

}  // namespace

Case GradientCase::make(DType dtype) const {
  CaseBuilder builder(name_in(dtype), op, dtype);
  maker(builder);
  return builder.get();
}

std::string GradientCase::name_in(DType dtype) const { return name + "_" + std::string(short_name_of(dtype)); }

const std::vector<GradientCase>& gradient_cases() {
  static const std::vector<GradientCase> list = [] {
    std::vector<GradientCase> made;
    add_attention_cases(made);
    add_selector_cases(made);
    add_network_cases(made);
    return made;
  }();
  return list;
}

Flow flow_of(Operation op) {
  switch (op) {
    case Operation::attention:
      return {{{"out", "dout"}, {"lse", "dlse"}},
              {{"q", "dq"},
               {"k", "dk"},
               {"v", "dv"},
               {"window", "dwindow"},
               {"landmark_log_weight", "dlandmark_log_weight"}}};
    case Operation::window_sizes:
      return {{{"window", "dwindow"}}, {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}}};
    case Operation::energies: return {{{"nx", "dnx"}, {"nv", "dnv"}}, {{"x", "dx"}, {"v", "dv"}}};
    case Operation::select_landmarks:
      return {{{"landmark_log_weight", "dlandmark_log_weight"}},
              {{"alpha_raw", "dalpha_raw"}, {"nx", "dnx"}, {"nv", "dnv"}}};
    case Operation::rmsnorm: return {{{"y", "dy"}}, {{"x", "dx"}, {"gamma", "dgamma"}}};
    case Operation::rope: return {{{"y", "dy"}}, {{"x", "dx"}}};
    case Operation::swiglu: return {{{"y", "dy"}}, {{"gate", "dgate"}, {"up", "dup"}}};
    case Operation::cross_entropy: return {{{"loss", "dloss"}}, {{"hidden", "dhidden"}, {"weight", "dweight"}}};
    case Operation::merge:
    case Operation::adamw: break;
  }
  return {};
}

bool is_gradient(Operation op, std::string_view output) {
  const Flow flow = flow_of(op);
  return std::any_of(flow.gradients.begin(), flow.gradients.end(),
                     [&](const auto& pair) { return pair.second == output; });
}

}  // namespace dsalt::verification
