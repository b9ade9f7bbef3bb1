// Gradients of <dout, out> + <dlse, lse>: docs/semantics.md, "Attention". With r_ij the dropout factor,
//
//   delta_i = <o_i, do_i>     dP_ij = r_ij <do_i, v_j>     ds_ij = P_ij (dP_ij - delta_i + dlse_i)
//   dq_i = scale sum_j ds_ij k_j      dk_j = scale sum_{h,i} ds_ij q_i      dv_j = sum_{h,i} r_ij P_ij do_i
//   dw_i = sum_{j in W(i), e > w - edge} ds_ij (1 - sigma((w - e)/tau)) / tau
//   dlambda_slot = sum of ds_ij over the rows for which that slot admitted its key
//
// Everything is recomputed from the inputs: `saved.out` and `saved.lse` are rounded and are not looked at. Sums over
// rows and heads run in ascending order in double and are rounded once.
#include "attention_row.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {
namespace {

/// dw and dlambda of one sequence, which sum over heads when the call shares one window or one list among them.
class SelectorGradients {
 public:
  SelectorGradients(const AttentionProblem& problem, const AttentionSequence& sequence, const TensorView& dwindow,
                    const TensorView& dlambda)
      : mask_{problem, sequence}, dwindow_view_(dwindow), dlambda_view_(dlambda) {
    if (dwindow.present()) dwindow_.setZero(dwindow.shape[0], dwindow.shape[1]);
    if (dlambda.present()) dlambda_.setZero(dlambda.shape[0], dlambda.shape[1] * dlambda.shape[2]);
  }

  void add(std::int64_t h, std::int64_t i, const AdmittedKey& key, double ds) {
    if (key.slot >= 0) {
      if (!dlambda_view_.present()) return;
      const std::int64_t hl = dlambda_.rows() == 1 ? 0 : h;
      dlambda_(hl, mask_.list_of(i) * dlambda_view_.shape[2] + key.slot) += ds;
    } else if (dwindow_view_.present() && mask_.problem.soft_edge) {
      const SoftEdge& soft = *mask_.problem.soft_edge;
      const double w = mask_.window(h, i);
      const std::int64_t e = mask_.distance(i, key.j);
      if (!in_soft_edge(soft, w, e)) return;
      const std::int64_t hw = dwindow_.rows() == 1 ? 0 : h;
      dwindow_(hw, i) += ds * sigmoid(-(w - static_cast<double>(e)) / soft.tau) / soft.tau;  // 1 - sigma(z) = sigma(-z)
    }
  }

  void store() const {
    if (dwindow_view_.present()) store_matrix(dwindow_, dwindow_view_);
    if (!dlambda_view_.present()) return;
    const std::int64_t slots = dlambda_view_.shape[2];
    for (std::int64_t hl = 0; hl < dlambda_view_.shape[0]; ++hl)
      for (std::int64_t t = 0; t < dlambda_view_.shape[1]; ++t)
        store_vector(dlambda_.row(hl).segment(t * slots, slots), dlambda_view_.select(0, hl).select(0, t));
  }

 private:
  RowMask mask_;
  TensorView dwindow_view_, dlambda_view_;  // [Hw,nq], [Hl,T,K]
  Matrix dwindow_, dlambda_;                // [Hw,nq], [Hl,T*K]
};

/// Stores a key gradient of one kv head; in the padded form, rows past the valid keys become 0.
void store_key_gradient(const Matrix& gradient, const TensorView& view, const AttentionSequence& sequence, bool packed,
                        std::int64_t g) {
  if (!view.present()) return;
  store_matrix(gradient, sequence.key_rows(view, packed).select(0, g));
  if (packed) return;
  const TensorView head = view.select(0, sequence.b).select(0, g);
  store_zeros(head.narrow(0, sequence.nk, head.shape[0] - sequence.nk));
}

}  // namespace

void ReferenceBackend::attention_backward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                          const AttentionSaved& saved, const AttentionGradients& gradients) {
  const AttentionSizes sizes = attention_sizes(inputs);
  const double scale = attention_scale(problem, sizes);
  const std::int64_t group = sizes.hq / sizes.hkv;
  const bool want_dq = gradients.dq.present(), want_dk = gradients.dk.present(), want_dv = gradients.dv.present();
  RowVector q, o, dout_row, dq_row;
  Matrix dk, dv;

  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const AttentionSequence sequence = attention_sequence(inputs, b);
    const TensorView dout = sequence.query_rows(saved.dout, sizes.packed);
    const TensorView dlse = sequence.query_rows(saved.dlse, sizes.packed);
    const TensorView dq = sequence.query_rows(gradients.dq, sizes.packed);
    const TensorView& dlambda = gradients.dlandmark_log_weight;
    SelectorGradients selectors(problem, sequence, sequence.query_rows(gradients.dwindow, sizes.packed),
                                dlambda.present() ? dlambda.select(0, b) : dlambda);
    AttentionRow row(problem, sequence, sizes.hq, scale);

    for (std::int64_t g = 0; g < sizes.hkv; ++g) {
      const Matrix k = load_matrix(sequence.k.select(0, g));
      const Matrix v = load_matrix(sequence.v.select(0, g));
      if (want_dk) dk.setZero(k.rows(), k.cols());
      if (want_dv) dv.setZero(v.rows(), v.cols());

      for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
        for (std::int64_t i = 0; i < sequence.nq; ++i) {
          load_vector(sequence.q.select(0, h).select(0, i), q);
          load_vector(dout.select(0, h).select(0, i), dout_row);
          const double dlse_i = dlse.present() ? load_double(dlse, h * dlse.strides[0] + i * dlse.strides[1]) : 0;
          row.compute(h, i, q, k);
          row.output(v, o);
          const double delta = o.dot(dout_row);
          dq_row.setZero(k.cols());

          for (std::size_t n = 0; n < row.size(); ++n) {
            const std::int64_t j = row.key(n).j;
            const double p = row.probability(n), keep = row.keep(n);
            const double dp = keep == 0 ? 0 : keep * dout_row.dot(v.row(j));  // a dropped value is not read
            const double ds = p * (dp - delta + dlse_i);
            if (want_dq) dq_row += ds * k.row(j);
            if (want_dk) dk.row(j) += ds * q;
            if (want_dv && keep != 0) dv.row(j) += (keep * p) * dout_row;
            selectors.add(h, i, row.key(n), ds);
          }
          if (want_dq) store_vector(scale * dq_row, dq.select(0, h).select(0, i));
        }
      }
      if (want_dk) dk *= scale;
      store_key_gradient(dk, gradients.dk, sequence, sizes.packed, g);
      store_key_gradient(dv, gradients.dv, sequence, sizes.packed, g);
    }
    selectors.store();
  }
}

}  // namespace dsalt::internal
