// o_i = sum_{j in A(i)} P_ij v_j and lse_i = log sum_{j in A(i)} exp(s_ij): docs/semantics.md, "Attention".
//
// Sequence by sequence, kv head by kv head, query head by query head, row by row; a row that admits no key gives
// o = 0, lse = -inf. attention_row.hpp holds the arithmetic of one row.
#include "attention_row.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {

void ReferenceBackend::attention_forward(const AttentionProblem& problem, const AttentionInputs& inputs,
                                         const AttentionOutputs& outputs) {
  const AttentionSizes sizes = attention_sizes(inputs);
  const double scale = attention_scale(problem, sizes);
  const std::int64_t group = sizes.hq / sizes.hkv;
  RowVector q, o;

  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const AttentionSequence sequence = attention_sequence(inputs, b);
    if (sequence.nq == 0) continue;
    const TensorView out = sequence.query_rows(outputs.out, sizes.packed);
    const TensorView lse = sequence.query_rows(outputs.lse, sizes.packed);
    AttentionRow row(problem, sequence, sizes.hq, scale);

    for (std::int64_t g = 0; g < sizes.hkv; ++g) {
      const Matrix k = key_matrix(sequence, sequence.k, g);
      const Matrix v = key_matrix(sequence, sequence.v, g);
      for (std::int64_t h = g * group; h < (g + 1) * group; ++h) {
        for (std::int64_t i = 0; i < sequence.nq; ++i) {
          load_vector(sequence.q.select(0, h).select(0, i), q);
          row.compute(h, i, q, k);
          row.output(v, o);
          store_vector(o, out.select(0, h).select(0, i));
          if (lse.present()) store_double(lse, h * lse.strides[0] + i * lse.strides[1], row.lse());
        }
      }
    }
  }
}

}  // namespace dsalt::internal
