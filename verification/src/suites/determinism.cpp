// What a backend promises about equal bytes (docs/semantics.md, "Reproducibility"), checked bit by bit. A promise that
// is not made is skipped with that reason; in the deterministic mode, which must promise run and batch, it is a
// failure. Backends with promises of a kind per direction are checked per direction.
//
//   repeats  the same call again, also on another instance     threads  1, 2, 3 and 7 threads
//   batch, pack, padding, prefill             see determinism_rows*.cpp
//   strides                                   see determinism_strides.cpp
#include "suites/determinism.hpp"

#include "suites/gradient_cases.hpp"
#include "suites/suite_cases.hpp"

namespace dsalt::verification {
namespace {

struct BusyCase {
  std::string name;
  Operation op;
  CaseMaker maker;
  bool quick = true, backward = true;
};

/// Decoding: few queries of long caches, in one piece and in pages.
void add_few_queries(std::vector<BusyCase>& list) {
  for (const std::int64_t d : {64, 128})
    for (const char* mask : {"causal", "sparse"})
      for (const bool paged : {false, true})
        list.push_back({std::string("attention/few_queries_") + mask + (paged ? "_paged_" : "_") + std::to_string(d),
                        Operation::attention,
                        [=](CaseBuilder& c) {
                          const AttentionSpec spec{
                              .b = 3, .hq = 8, .hkv = 2, .nq = 1, .nk = 500, .d = d, .dv = d, .mask = mask};
                          add_qkv(c, spec);
                          if (mask == std::string_view("sparse")) {
                            add_window(c, spec, WindowKind::uniform, 8);
                            add_landmarks(c, spec, {.k = 40, .heads = 8, .weights = true, .messy = true});
                          }
                          if (paged)
                            add_pages(c, spec, {500, 1, 367}, {.page = 16, .shared = true});
                          else
                            add_k_lengths(c, spec, {500, 1, 367});
                        },
                        d == 64, false});
}

/// Large enough that every worker gets several pieces of work.
std::vector<BusyCase> busy_cases() {
  std::vector<BusyCase> list;
  for (const GradientCase& c : gradient_cases())
    if (!c.small) list.push_back({c.name, c.op, c.maker});
  const auto sparse = [](const AttentionSpec& spec) {
    return [spec](CaseBuilder& c) {
      add_qkv(c, spec);
      add_window(c, spec, WindowKind::uniform, spec.hq);
      add_landmarks(c, spec, {.k = 8, .heads = spec.hq, .chunk = 32, .weights = true});
      add_soft_edge(c, 3, 1);
      add_gradients(c, spec, true);
    };
  };
  list.push_back({"attention/sparse_300", Operation::attention,
                  sparse({.b = 2, .hq = 4, .hkv = 2, .nq = 300, .nk = 300, .d = 32, .dv = 32, .mask = "sparse"})});
  for (const std::int64_t d : {64, 128})
    list.push_back({"attention/sparse_" + std::to_string(d), Operation::attention,
                    sparse({.hq = 4, .hkv = 2, .nq = 200, .nk = 200, .d = d, .dv = d, .mask = "sparse"}), d == 64});
  list.push_back({"attention/sparse_pack", Operation::attention,
                  sparse({.hq = 4,
                          .hkv = 1,
                          .d = 16,
                          .dv = 16,
                          .mask = "sparse",
                          .q_lengths = {130, 1, 0, 257, 64},
                          .k_lengths = {130, 5, 3, 257, 64}})});
  list.push_back({"attention/causal_1000", Operation::attention,
                  [](CaseBuilder& c) {
                    const AttentionSpec spec{.hq = 2, .nq = 1000, .nk = 1000, .d = 64, .dv = 64};
                    add_qkv(c, spec);
                    add_gradients(c, spec, true);
                  },
                  false});
  add_few_queries(list);
  list.push_back({"select_landmarks/causal_500", Operation::select_landmarks, [](CaseBuilder& c) {
                    c.set("policy", "causal");
                    c.set("chunk", 16);
                    c.set("k", 8);
                    c.set("tau", 1.0);
                    c.normal("nx", {2, 500});
                    c.normal("nv", {2, 2, 500});
                    c.normal("alpha_raw", {4});
                    c.normal("dlandmark_log_weight", {2, 4, 32, 8});
                  }});
  list.push_back({"adamw/elements", Operation::adamw, [](CaseBuilder& c) {
                    for (const auto& [name, value] :
                         {std::pair{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}})
                      c.set(name, value);
                    c.set("step", 3);
                    c.normal("param", {10007});
                    c.normal("grad", {10007});
                    c.normal_statistics("m", {10007}, 0.1);
                    const RandomValues random = c.random("v");
                    c.fill("v", {10007}, c.statistics(), [&](std::int64_t n) { return 0.01 * random.uniform(n); });
                  }});
  list.push_back({"merge/rows", Operation::merge, [](CaseBuilder& c) {
                    c.normal("out1", {4, 100, 33});
                    c.normal("out2", {4, 100, 33});
                    c.normal_statistics("lse1", {4, 100}, 3);
                    c.normal_statistics("lse2", {4, 100}, 3);
                  }});
  return list;
}

std::vector<std::string> gradient_names(Operation op) {
  std::vector<std::string> names;
  for (const auto& [input, gradient] : flow_of(op).gradients) names.push_back(gradient);
  return names;
}

/// The outputs that one direction is responsible for.
Tensors outputs_of(Operation op, Direction direction, const Tensors& all) {
  const std::vector<std::string> gradients = gradient_names(op);
  if (direction == Direction::backward) return only(all, gradients);
  Tensors forward = all;
  for (const std::string& name : gradients) forward.erase(name);
  return forward;
}

void repeats(const BusyCase& busy, DType dtype, Direction direction, Context& context, Verdict& verdict) {
  context.require_promise(&Reproducibility::run, "run", busy.op, direction);
  const Case c = make_case(busy.name, busy.op, dtype, busy.maker);
  const Tensors first = outputs_of(busy.op, direction, evaluate(context.backend(), c));
  for (const char* again : {"second run:", "third run:", "fourth run:"})
    verdict.equal_bits(again, outputs_of(busy.op, direction, evaluate(context.backend(), c)), first);
  verdict.equal_bits("another instance:", outputs_of(busy.op, direction, evaluate(*context.another(), c)), first);
}

void threads(const BusyCase& busy, DType dtype, Direction direction, Context& context, Verdict& verdict) {
  context.require_promise(&Reproducibility::threads, "threads", busy.op, direction);
  const Case c = make_case(busy.name, busy.op, dtype, busy.maker);
  const Tensors one = outputs_of(busy.op, direction, evaluate(*context.with_threads(1), c));
  for (const int count : {2, 3, 7})
    verdict.equal_bits(std::to_string(count) + " threads:",
                       outputs_of(busy.op, direction, evaluate(*context.with_threads(count), c)), one);
}

}  // namespace

std::vector<Check> determinism_checks() {
  using Run = void (*)(const BusyCase&, DType, Direction, Context&, Verdict&);
  std::vector<Check> checks;
  for (const auto& [kind, run] : {std::pair<const char*, Run>{"repeats", repeats}, {"threads", threads}})
    for (const BusyCase& busy : busy_cases())
      for (const DType dtype : busy.op == Operation::select_landmarks ? wide_dtypes : every_dtype) {
        for (const Direction direction : {Direction::forward, Direction::backward}) {
          if (direction == Direction::backward && (!busy.backward || gradient_names(busy.op).empty())) continue;
          const std::string name =
              std::string(kind) + "/" + busy.name + (direction == Direction::forward ? "_forward" : "_backward");
          checks.push_back({in_dtype(name, dtype), busy.quick,
                            [run = run, busy, dtype, direction](Context& context, Verdict& verdict) {
                              run(busy, dtype, direction, context, verdict);
                            }});
        }
      }
  for (Check& check : row_determinism_checks()) checks.push_back(std::move(check));
  for (Check& check : stride_determinism_checks()) checks.push_back(std::move(check));
  return checks;
}

}  // namespace dsalt::verification
