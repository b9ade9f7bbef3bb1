// Attention over the union of two disjoint key sets: docs/semantics.md, "Attention".
//
//   m = max(lse1, lse2)   e_n = exp(lse_n - m)   out = (e1 out1 + e2 out2) / (e1 + e2)   lse = m + log(e1 + e2)
//
// A part with lse = -inf does not exist: its out is not looked at, and the other part comes back bit for bit (its e is
// exactly 1). Two such parts give out 0, lse -inf.
#include <cmath>
#include <limits>

#include "dense.hpp"
#include "reference_backend.hpp"

namespace dsalt::internal {

void ReferenceBackend::merge(const MergeInputs& inputs, const AttentionOutputs& outputs) {
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  const TensorView& lse = outputs.lse.present() ? outputs.lse : inputs.lse1;  // offsets only, when absent
  RowVector part, sum;

  const auto merge_row = [&](std::int64_t out1_at, std::int64_t lse1_at, std::int64_t out2_at, std::int64_t lse2_at,
                             std::int64_t out_at, std::int64_t lse_at) {
    const double lse1 = load_double(inputs.lse1, lse1_at), lse2 = load_double(inputs.lse2, lse2_at);
    const double largest = lse1 > lse2 ? lse1 : lse2;
    double total = 0;
    sum.setConstant(inputs.out1.shape[inputs.out1.rank - 1], -0.0);  // keeps the sign of a lone -0
    const auto add = [&](double part_lse, const TensorView& part_out, std::int64_t at) {
      if (part_lse == nothing) return;
      const double weight = std::exp(part_lse - largest);
      load_row(part_out, at, part);
      sum += weight * part;
      total += weight;
    };
    add(lse1, inputs.out1, out1_at);
    add(lse2, inputs.out2, out2_at);
    if (total != 0)
      sum /= total;
    else
      sum.setZero();
    store_row(sum, outputs.out, out_at);
    if (outputs.lse.present()) store_double(lse, lse_at, total != 0 ? largest + std::log(total) : nothing);
  };
  for_each_element(merge_row, row_starts(inputs.out1), inputs.lse1, row_starts(inputs.out2), inputs.lse2,
                   row_starts(outputs.out), lse);
}

}  // namespace dsalt::internal
