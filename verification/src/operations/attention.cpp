// Cases of `attention` and `merge`. With dout the forward pass runs first: its out and lse are what backward saves.
#include "dsalt/attention.hpp"

#include <limits>

#include "dsalt/errors.hpp"
#include "operations/operation_case.hpp"

namespace dsalt::verification {
namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

Mask mask_from_name(const std::string& name) {
  for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse})
    if (name == name_of(mask)) return mask;
  throw InvalidArgument("mask: got \"" + name + "\", need full, causal or sparse");
}

AttentionProblem attention_problem(const Case& c) {
  AttentionProblem problem;
  problem.mask = mask_from_name(text_attribute(c, "mask"));
  problem.scale = find_real(c, "scale");
  problem.bidirectional = find_boolean(c, "bidirectional");
  problem.landmark_chunk = find_integer(c, "landmark_chunk");
  problem.landmark_offset = find_integer(c, "landmark_offset").value_or(0);
  if (const auto edge = find_real(c, "soft_edge")) problem.soft_edge = SoftEdge{*edge, *find_real(c, "soft_tau")};
  if (const auto p = find_real(c, "dropout_p")) {
    const std::int64_t offset = *find_integer(c, "dropout_offset");
    if (offset < 0 || offset > std::int64_t{0xffffffff})
      throw InvalidArgument("dropout_offset: got " + std::to_string(offset) + ", need a value in [0, 2^32)");
    problem.dropout =
        Dropout{*p, static_cast<std::uint64_t>(*find_integer(c, "dropout_seed")), static_cast<std::uint32_t>(offset)};
  }
  return problem;
}

bool has_window_gradient(const Case& c) {
  const auto window = c.inputs.find("window");
  return window != c.inputs.end() && is_floating(window->second.view().dtype);
}

std::vector<std::string> attention_outputs(const Case& c) {
  std::vector<std::string> names = {"out", "lse"};
  if (!has_input(c, "dout")) return names;
  names.insert(names.end(), {"dq", "dk", "dv"});
  if (has_window_gradient(c)) names.push_back("dwindow");
  if (has_input(c, "landmark_log_weight")) names.push_back("dlandmark_log_weight");
  return names;
}

void run_attention(Backend& backend, const Case& c, CaseMemory& memory) {
  const AttentionProblem problem = attention_problem(c);
  AttentionInputs in;
  in.q = memory.input("q");
  in.k = memory.input("k");
  in.v = memory.input("v");
  in.window = memory.input("window");
  in.landmarks = memory.input("landmarks");
  in.landmark_log_weight = memory.input("landmark_log_weight");
  in.cu_seqlens_q = memory.input("cu_seqlens_q");
  in.cu_seqlens_k = memory.input("cu_seqlens_k");
  in.k_lengths = memory.input("k_lengths");
  in.page_table = memory.input("page_table");
  if (in.v.rank != in.q.rank)
    throw InvalidArgument("v: got " + to_string(in.v) + ", need the rank of q: " + to_string(in.q));

  AttentionOutputs out;
  out.out = memory.output("out", with_last(in.q, in.v.shape[static_cast<std::size_t>(in.v.rank - 1)]), in.q.dtype);
  Shape rows = shape_of(in.q);
  rows.pop_back();
  out.lse = memory.output("lse", rows, statistics_dtype(in.q.dtype), minus_infinity);
  attention_forward(backend, problem, in, out);
  if (!has_input(c, "dout")) return;

  const AttentionSaved saved{out.out, out.lse, memory.input("dout"), memory.input("dlse")};
  AttentionGradients gradients;
  gradients.dq = memory.output_like("dq", "q");
  gradients.dk = memory.output_like("dk", "k");
  gradients.dv = memory.output_like("dv", "v");
  if (has_window_gradient(c)) gradients.dwindow = memory.output_like("dwindow", "window");
  if (in.landmark_log_weight.present())
    gradients.dlandmark_log_weight = memory.output_like("dlandmark_log_weight", "landmark_log_weight");
  attention_backward(backend, problem, in, saved, gradients);
}

void run_merge(Backend& backend, const Case&, CaseMemory& memory) {
  const MergeInputs in{memory.input("out1"), memory.input("lse1"), memory.input("out2"), memory.input("lse2")};
  AttentionOutputs out;
  out.out = memory.output_like("out", "out1");
  out.lse = memory.output("lse", shape_of(in.lse1), in.lse1.dtype, minus_infinity);
  merge(backend, in, out);
}

}  // namespace

const OperationCase& attention_case() {
  using enum AttributeKind;
  static const OperationCase entry = {
      .main_input = "q",
      .attributes = {{"mask", text, true},
                     {"scale", real},
                     {"bidirectional", boolean},
                     {"landmark_chunk", integer},
                     {"landmark_offset", integer},
                     {"soft_edge", real, false, "soft_tau"},
                     {"soft_tau", real, false, "soft_edge"},
                     {"dropout_p", real, false, "dropout_seed"},
                     {"dropout_seed", integer, false, "dropout_offset"},
                     {"dropout_offset", integer, false, "dropout_p"}},
      .inputs = {{"q", TensorKind::floating, "34", true},
                 {"k", TensorKind::like_main, "34", true},
                 {"v", TensorKind::like_main, "34", true},
                 {"window", TensorKind::window, "23"},
                 {"landmarks", TensorKind::index, "4"},
                 {"landmark_log_weight", TensorKind::statistics, "4", false, "landmarks"},
                 {"cu_seqlens_q", TensorKind::index, "1", false, "cu_seqlens_k"},
                 {"cu_seqlens_k", TensorKind::index, "1", false, "cu_seqlens_q"},
                 {"k_lengths", TensorKind::index, "1"},
                 {"page_table", TensorKind::index, "2", false, "k_lengths"},
                 {"dout", TensorKind::like_main, "34"},
                 {"dlse", TensorKind::statistics, "23", false, "dout"}},
      .gradient_inputs = {"dout"},
      .outputs = attention_outputs,
      .run = run_attention};
  return entry;
}

const OperationCase& merge_case() {
  static const OperationCase entry = {.main_input = "out1",
                                      .attributes = {},
                                      .inputs = {{"out1", TensorKind::floating, "123456", true},
                                                 {"lse1", TensorKind::statistics, "", true},
                                                 {"out2", TensorKind::like_main, "123456", true},
                                                 {"lse2", TensorKind::statistics, "", true}},
                                      .gradient_inputs = {},
                                      .outputs =
                                          [](const Case&) {
                                            return std::vector<std::string>{"out", "lse"};
                                          },
                                      .run = run_merge};
  return entry;
}

}  // namespace dsalt::verification
