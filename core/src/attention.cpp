// Validation and dispatch of attention and merge; the numbers are made in the backends' files of the same name.
#include "dsalt/attention.hpp"

#include <array>
#include <cmath>

#include "dsalt/errors.hpp"
#include "internal/sequence.hpp"
#include "validate.hpp"

namespace dsalt {
namespace {

using internal::Argument;
using internal::AttentionSizes;
using internal::ceil_div;
using internal::check_gradient;
using internal::on_host;
using internal::refuse;
using internal::require_support;

constexpr std::string_view row_symbols(bool packed) { return packed ? "[Rq,Hq]" : "[B,Hq,Nq]"; }

void check_options(const AttentionProblem& problem, const AttentionInputs& in) {
  if (problem.scale) internal::require_finite("scale", *problem.scale);
  if (problem.mask != Mask::sparse) {
    const std::string with = "none with mask " + std::string(name_of(problem.mask));
    if (problem.bidirectional) refuse("bidirectional", "true", "false with mask " + std::string(name_of(problem.mask)));
    if (in.window.present()) refuse("window", to_string(in.window), with);
    if (in.landmarks.present()) refuse("landmarks", to_string(in.landmarks), with);
    if (in.landmark_log_weight.present()) refuse("landmark_log_weight", to_string(in.landmark_log_weight), with);
    if (problem.soft_edge) refuse("soft_edge", internal::number(problem.soft_edge->edge), with);
  }
  if (problem.landmark_chunk) {
    internal::require_chunk("landmark_chunk", *problem.landmark_chunk);
    if (problem.landmark_offset < 0 || problem.landmark_offset >= *problem.landmark_chunk)
      refuse("landmark_offset", std::to_string(problem.landmark_offset),
             "0 <= landmark_offset < landmark_chunk = " + std::to_string(*problem.landmark_chunk));
  } else if (problem.landmark_offset != 0) {
    refuse("landmark_offset", std::to_string(problem.landmark_offset), "0 without landmark_chunk");
  }
  if (problem.soft_edge) {
    if (!(problem.soft_edge->edge >= 0)) refuse("soft_edge", internal::number(problem.soft_edge->edge), ">= 0");
    internal::require_positive("soft_tau", problem.soft_edge->tau);
    if (!in.window.present() || !is_floating(in.window.dtype))
      refuse("window", to_string(in.window), "a floating-point window with soft_edge");
  }
  if (problem.dropout && !(problem.dropout->p >= 0 && problem.dropout->p <= 1))
    refuse("dropout_p", internal::number(problem.dropout->p), "a probability from 0 to 1");
}

/// Of what a table names, the entries that are read: those of pages that hold keys.
void check_pages(const AttentionInputs& in, std::int64_t batch) {
  const std::int64_t pages = in.k.shape[0], page = in.k.shape[2];
  for (std::int64_t b = 0; b < batch; ++b) {
    const TensorView row = in.page_table.select(0, b);
    const std::int64_t used = ceil_div(internal::load_i32(in.k_lengths, b), page);
    for (std::int64_t m = 0; m < used; ++m)
      if (const std::int32_t entry = internal::load_i32(row, m); entry < 0 || entry >= pages)
        refuse("page_table", std::to_string(entry) + " at " + shape_string(std::array<std::int64_t, 2>{b, m}),
               "one of the " + std::to_string(pages) + " pages of k in the first " + std::to_string(used) +
                   " entries of this row");
  }
}

void check_cache(const Backend& backend, const AttentionInputs& in, const AttentionSizes& n) {
  if (in.page_table.present()) {
    Argument{"page_table", in.page_table}.rank(2, "[B,M]").dtype(DType::i32).on(backend);
    Argument{"page_table", in.page_table}.shape({n.batch, in.page_table.shape[1]}, "[B,M]");
  }
  if (in.k_lengths.present())
    internal::check_int32_values({"k_lengths", in.k_lengths}, backend, n.batch, "[B]", 0, n.nk);
  if (in.page_table.present() && on_host(in.page_table)) check_pages(in, n.batch);
}

AttentionSizes check_qkv(const Backend& backend, const AttentionInputs& in) {
  const bool packed = in.cu_seqlens_q.present() || in.cu_seqlens_k.present(), paged = in.page_table.present();
  if (packed) {
    Argument{"cu_seqlens_q", in.cu_seqlens_q}.present();
    Argument{"cu_seqlens_k", in.cu_seqlens_k}.present();
    if (in.k_lengths.present()) refuse("k_lengths", to_string(in.k_lengths), "none together with cu_seqlens");
    if (paged) refuse("page_table", to_string(in.page_table), "none together with cu_seqlens");
  }
  if (paged && !in.k_lengths.present()) refuse("k_lengths", "nothing", "the keys of each sequence beside page_table");
  const int rank = packed ? 3 : 4;
  Argument{"q", in.q}.rank(rank, packed ? "[Rq,Hq,D]" : "[B,Hq,Nq,D]").floating().on(backend);
  const std::string_view k_symbols = packed ? "[Rk,Hkv,D]" : paged ? "[P,Hkv,page,D]" : "[B,Hkv,Nk,D]";
  const std::string_view v_symbols = packed ? "[Rk,Hkv,Dv]" : paged ? "[P,Hkv,page,Dv]" : "[B,Hkv,Nk,Dv]";
  Argument{"k", in.k}.rank(rank, k_symbols).dtype(in.q.dtype).on(backend);
  Argument{"v", in.v}.rank(rank, v_symbols).dtype(in.q.dtype).on(backend);
  if (paged && in.k.shape[2] < 1) refuse("k", to_string(in.k), "pages of at least one row: " + std::string(k_symbols));
  if (paged) Argument{"page_table", in.page_table}.rank(2, "[B,M]");
  if (packed) {
    internal::check_cu_seqlens({"cu_seqlens_q", in.cu_seqlens_q}, backend, in.q.shape[0]);
    internal::check_cu_seqlens({"cu_seqlens_k", in.cu_seqlens_k}, backend, in.k.shape[0]);
    Argument{"cu_seqlens_k", in.cu_seqlens_k}.same_shape("cu_seqlens_q", in.cu_seqlens_q);
  }
  const AttentionSizes n = internal::attention_sizes(in);
  if (n.d < 1) refuse("q", to_string(in.q), "a head size D of at least 1");
  if (n.dv < 1) refuse("v", to_string(in.v), "a head size Dv of at least 1");
  if (n.hkv < 1) refuse("k", to_string(in.k), "at least one head");
  if (n.hq < 1 || n.hq % n.hkv != 0)
    refuse("q", to_string(in.q), "query heads Hq in a multiple of the " + std::to_string(n.hkv) + " key heads Hkv");
  if (packed) {
    Argument{"k", in.k}.shape({n.nk, n.hkv, n.d}, k_symbols);
    Argument{"v", in.v}.shape({n.nk, n.hkv, n.dv}, v_symbols);
  } else {
    const std::int64_t blocks = paged ? in.k.shape[0] : n.batch, rows = paged ? in.k.shape[2] : n.nk;
    Argument{"k", in.k}.shape({blocks, n.hkv, rows, n.d}, k_symbols);
    Argument{"v", in.v}.shape({blocks, n.hkv, rows, n.dv}, v_symbols);
    check_cache(backend, in, n);
  }
  return n;
}

void check_window(const Backend& backend, const AttentionInputs& in, const AttentionSizes& n) {
  if (!in.window.present()) return;
  const Argument window{"window", in.window};
  window.rank(n.packed ? 2 : 3, n.packed ? "[Rq,Hw]" : "[B,Hw,Nq]");
  window.dtype_in({DType::i32, statistics_dtype(in.q.dtype)}).on(backend);
  const std::int64_t hw = in.window.shape[1];
  if (hw != 1 && hw != n.hq)
    refuse("window", to_string(in.window), "Hw of 1 or Hq = " + std::to_string(n.hq) + " in its second dimension");
  if (n.packed)
    window.shape({n.nq, hw}, "[Rq,Hw]");
  else
    window.shape({n.batch, hw, n.nq}, "[B,Hw,Nq]");
}

/// lambda must be finite at every used slot of a list that some query reads.
void check_weights(const AttentionProblem& problem, const AttentionInputs& in, std::int64_t batch) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const internal::AttentionSequence s = internal::attention_sequence(in, b);
    const TensorView &lists = s.landmarks, &weight = s.landmark_log_weight;
    const std::int64_t read = problem.landmark_chunk
                                  ? (s.nq == 0 ? 0 : ceil_div(s.nq + problem.landmark_offset, *problem.landmark_chunk))
                                  : (s.nq == 0 ? 0 : 1);
    for (std::int64_t h = 0; h < lists.shape[0]; ++h)
      for (std::int64_t t = 0; t < read; ++t)
        for (std::int64_t slot = 0; slot < lists.shape[2]; ++slot) {
          const std::int32_t l =
              *lists.at<std::int32_t>(h * lists.strides[0] + t * lists.strides[1] + slot * lists.strides[2]);
          if (l < 0 || l >= s.nk) continue;
          const double lambda =
              internal::load_double(weight, h * weight.strides[0] + t * weight.strides[1] + slot * weight.strides[2]);
          if (!std::isfinite(lambda))
            refuse("landmark_log_weight",
                   internal::number(lambda) + " at " + shape_string(std::array<std::int64_t, 4>{b, h, t, slot}),
                   "finite values at used slots");
        }
  }
}

void check_landmarks(const Backend& backend, const AttentionProblem& problem, const AttentionInputs& in,
                     const AttentionSizes& n) {
  if (!in.landmarks.present()) {
    if (in.landmark_log_weight.present())
      refuse("landmark_log_weight", to_string(in.landmark_log_weight), "landmarks beside it");
    return;
  }
  const Argument landmarks{"landmarks", in.landmarks};
  landmarks.rank(4, "[B,Hl,T,K]").dtype(DType::i32).on(backend);
  const std::int64_t hl = in.landmarks.shape[1], t = in.landmarks.shape[2], k = in.landmarks.shape[3];
  landmarks.shape({n.batch, hl, t, k}, n.packed ? "[S,Hl,T,K]" : "[B,Hl,T,K]");
  if (hl != 1 && hl != n.hq)
    refuse("landmarks", to_string(in.landmarks),
           "Hl of 1 or Hq = " + std::to_string(n.hq) + " in its second dimension");
  if (!problem.landmark_chunk) {
    if (t != 1) refuse("landmarks", to_string(in.landmarks), "one list (T = 1) without landmark_chunk");
  } else if (!n.packed || on_host(in.cu_seqlens_q)) {
    const std::int64_t longest = internal::longest_queries(in);
    const std::int64_t lists = ceil_div(longest + problem.landmark_offset, *problem.landmark_chunk);
    // A pack may carry more lists than its longest sequence needs, a padded call has exactly T of them.
    if (n.packed ? t < lists : t != lists)
      refuse("landmarks", to_string(in.landmarks),
             std::string(n.packed ? "at least " : "") + "T = ceil((Nq + offset) / chunk) = " + std::to_string(lists) +
                 " lists for " + std::to_string(longest) + " queries");
  }
  if (!in.landmark_log_weight.present()) return;
  Argument{"landmark_log_weight", in.landmark_log_weight}
      .same_shape("landmarks", in.landmarks)
      .dtype(statistics_dtype(in.q.dtype))
      .on(backend);
  if (on_host(in.landmarks)) check_weights(problem, in, n.batch);
}

AttentionSizes check_inputs(const Backend& backend, const AttentionProblem& problem, const AttentionInputs& in) {
  check_options(problem, in);
  const AttentionSizes n = check_qkv(backend, in);
  check_window(backend, in, n);
  check_landmarks(backend, problem, in, n);
  return n;
}

void check_out(const Backend& backend, const AttentionInputs& in, const AttentionSizes& n, std::string_view name,
               const TensorView& out) {
  const Argument argument{name, out};
  argument.present().dtype(in.q.dtype).on(backend);
  if (n.packed)
    argument.shape({n.nq, n.hq, n.dv}, "[Rq,Hq,Dv]");
  else
    argument.shape({n.batch, n.hq, n.nq, n.dv}, "[B,Hq,Nq,Dv]");
}

void check_lse(const Backend& backend, const AttentionInputs& in, const AttentionSizes& n, std::string_view name,
               const TensorView& lse) {
  const Argument argument{name, lse};
  argument.present().dtype(statistics_dtype(in.q.dtype)).on(backend);
  if (n.packed)
    argument.shape({n.nq, n.hq}, row_symbols(true));
  else
    argument.shape({n.batch, n.hq, n.nq}, row_symbols(false));
}

}  // namespace

std::string_view name_of(Mask mask) {
  switch (mask) {
    case Mask::full: return "full";
    case Mask::causal: return "causal";
    case Mask::sparse: return "sparse";
  }
  return "unknown";
}

void attention_forward(Backend& backend, const AttentionProblem& problem, const AttentionInputs& inputs,
                       const AttentionOutputs& outputs) {
  const AttentionSizes n = check_inputs(backend, problem, inputs);
  check_out(backend, inputs, n, "out", outputs.out);
  Argument{"out", outputs.out}.writable();
  if (outputs.lse.present()) {
    check_lse(backend, inputs, n, "lse", outputs.lse);
    Argument{"lse", outputs.lse}.writable();
  }
  require_support(backend, Operation::attention, Direction::forward,
                  backend.supports(problem, inputs, Direction::forward));
  backend.attention_forward(problem, inputs, outputs);
}

void attention_backward(Backend& backend, const AttentionProblem& problem, const AttentionInputs& inputs,
                        const AttentionSaved& saved, const AttentionGradients& gradients) {
  if (inputs.page_table.present())
    refuse("page_table", to_string(inputs.page_table),
           "none in the backward pass: a paged cache is for the forward one");
  const AttentionSizes n = check_inputs(backend, problem, inputs);
  check_out(backend, inputs, n, "out", saved.out);
  check_lse(backend, inputs, n, "lse", saved.lse);
  check_out(backend, inputs, n, "dout", saved.dout);
  if (saved.dlse.present()) check_lse(backend, inputs, n, "dlse", saved.dlse);
  check_gradient(backend, "dq", gradients.dq, "q", inputs.q);
  check_gradient(backend, "dk", gradients.dk, "k", inputs.k);
  check_gradient(backend, "dv", gradients.dv, "v", inputs.v);
  check_gradient(backend, "dwindow", gradients.dwindow, "window", inputs.window);
  check_gradient(backend, "dlandmark_log_weight", gradients.dlandmark_log_weight, "landmark_log_weight",
                 inputs.landmark_log_weight);
  require_support(backend, Operation::attention, Direction::backward,
                  backend.supports(problem, inputs, Direction::backward));
  backend.attention_backward(problem, inputs, saved, gradients);
}

void merge(Backend& backend, const MergeInputs& inputs, const AttentionOutputs& outputs) {
  Argument{"out1", inputs.out1}.present().floating().on(backend);
  if (inputs.out1.rank < 1) refuse("out1", to_string(inputs.out1), "at least one dimension [..., Dv]");
  TensorView rows = inputs.out1;  // its leading dimensions are the shape of lse
  rows.rank -= 1;
  const DType stat = statistics_dtype(inputs.out1.dtype);
  Argument{"lse1", inputs.lse1}.same_shape("out1 without Dv", rows).dtype(stat).on(backend);
  Argument{"out2", inputs.out2}.same_shape("out1", inputs.out1).dtype(inputs.out1.dtype).on(backend);
  Argument{"lse2", inputs.lse2}.same_shape("lse1", inputs.lse1).dtype(stat).on(backend);
  Argument{"out", outputs.out}.same_shape("out1", inputs.out1).dtype(inputs.out1.dtype).on(backend).writable();
  if (outputs.lse.present())
    Argument{"lse", outputs.lse}.same_shape("lse1", inputs.lse1).dtype(stat).on(backend).writable();
  internal::require_support(backend, Operation::merge, Direction::forward, inputs.out1.dtype);
  backend.merge(inputs, outputs);
}

}  // namespace dsalt
