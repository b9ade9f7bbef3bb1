// Attention: every option at once, in combinations drawn from the variant's number.
#include "generators/attention_builder.hpp"

namespace dsalt::verification {
namespace {

/// Draws options one after the other from the case's own stream.
class Choices {
 public:
  explicit Choices(const CaseBuilder& c) : random_(c.random("choices")) {}
  std::int64_t integer(std::int64_t low, std::int64_t high) { return random_.integer(next_++, low, high); }
  bool chance(double p) { return random_.uniform(next_++) < p; }
  template <class T, std::size_t n>
  T one_of(const T (&options)[n]) {
    return options[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(n) - 1))];
  }

 private:
  RandomValues random_;
  std::int64_t next_ = 0;
};

AttentionSpec random_spec(Choices& choose) {
  constexpr const char* masks[] = {"sparse", "sparse", "sparse", "causal", "full"};
  constexpr std::int64_t sizes[] = {1, 4, 8, 12, 16, 33, 64};
  constexpr std::int64_t groups[] = {1, 1, 2, 3, 4};
  AttentionSpec spec;
  spec.mask = choose.one_of(masks);
  spec.hkv = choose.integer(1, 3);
  spec.hq = spec.hkv * choose.one_of(groups);
  spec.d = choose.one_of(sizes);
  spec.dv = choose.one_of(sizes);
  if (choose.chance(0.4)) {
    const std::int64_t sequences = choose.integer(1, 5);
    const bool equal = choose.chance(0.5);
    for (std::int64_t s = 0; s < sequences; ++s) {
      spec.q_lengths.push_back(choose.chance(0.2) ? 0 : choose.integer(1, 40));
      spec.k_lengths.push_back(equal ? spec.q_lengths.back() : choose.chance(0.2) ? 0 : choose.integer(1, 40));
    }
    spec.tail = choose.chance(0.5) ? choose.integer(1, 4) : 0;
  } else {
    spec.b = choose.integer(1, 3);
    spec.nq = choose.integer(1, 70);
    spec.nk = choose.chance(0.5) ? spec.nq : choose.integer(1, 70);
  }
  return spec;
}

void make_everything(CaseBuilder& c, bool paged) {
  constexpr WindowKind windows[] = {WindowKind::constant, WindowKind::uniform,  WindowKind::uniform,
                                    WindowKind::bimodal,  WindowKind::integers, WindowKind::fractional,
                                    WindowKind::negative, WindowKind::poisoned, WindowKind::unbounded};
  constexpr double logit_scales[] = {0.1, 1, 1, 3};
  constexpr double edges[] = {0, 0.5, 2, 7.25};
  constexpr double taus[] = {0.1, 1, 4};
  Choices choose(c);
  AttentionSpec spec = random_spec(choose);
  if (paged && spec.packed()) {
    spec.q_lengths.clear(), spec.k_lengths.clear(), spec.tail = 0;
    spec.b = choose.integer(2, 5), spec.nq = 1, spec.nk = choose.integer(60, 200);
  }
  const double logit_scale = choose.one_of(logit_scales);
  add_qkv(c, spec, logit_scale);
  if (choose.chance(0.3)) c.set("scale", static_cast<double>(choose.integer(-4, 4)) / 4);
  if (std::string_view(spec.mask) == "sparse") {
    if (choose.chance(0.3)) c.set("bidirectional", true);
    if (choose.chance(0.85)) {
      const WindowKind kind = choose.one_of(windows);
      add_window(c, spec, kind, choose.chance(0.5) ? 1 : spec.hq);
      if (kind != WindowKind::integers && choose.chance(0.6))
        add_soft_edge(c, choose.one_of(edges), choose.one_of(taus));
    }
    if (choose.chance(0.85)) {
      LandmarkSpec landmarks;
      landmarks.k = choose.integer(1, 12);
      landmarks.heads = choose.chance(0.5) ? 1 : spec.hq;
      landmarks.chunk = choose.chance(0.6) ? choose.integer(1, 20) : 0;
      landmarks.offset = landmarks.chunk > 0 ? choose.integer(0, landmarks.chunk - 1) : 0;
      landmarks.weights = choose.chance(0.6);
      landmarks.messy = choose.chance(0.5);
      add_landmarks(c, spec, landmarks);
    }
  }
  if (paged || (!spec.packed() && choose.chance(0.4))) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t b = 0; b < spec.b; ++b) lengths.push_back(choose.integer(0, spec.nk));
    if (paged)
      add_pages(c, spec, lengths, {.page = choose.integer(1, 20), .shared = choose.chance(0.5)}, logit_scale);
    else
      add_k_lengths(c, spec, lengths);
  }
  if (choose.chance(0.3))
    add_dropout(c, static_cast<double>(choose.integer(0, 8)) / 8,
                static_cast<std::uint64_t>(choose.integer(0, 1 << 30)), choose.integer(0, 1000));
  if (!paged && choose.chance(0.9)) add_gradients(c, spec, choose.chance(0.5));
}

}  // namespace

void add_attention_everything(FamilyList& list) {
  list.begin("attention/everything", Operation::attention,
             "Random combinations of every option; the number in the name and the dtype seed the choices.");
  for (int n = 0; n < 48; ++n) {
    const std::string number = (n < 10 ? "0" : "") + std::to_string(n);
    list.add(number, every_dtype, n < 3 ? golden : quick, [](CaseBuilder& c) { make_everything(c, false); });
  }
  list.begin("attention/everything_paged", Operation::attention,
             "The same with a paged cache, which has the forward pass only.");
  for (int n = 0; n < 24; ++n)
    list.add((n < 10 ? "0" : "") + std::to_string(n), every_dtype, n < 3 ? golden : quick,
             [](CaseBuilder& c) { make_everything(c, true); });
}

}  // namespace dsalt::verification
