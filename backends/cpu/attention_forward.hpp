// What the two passes of a tile of rows over its keys share: attention_forward.cpp has the one whose lanes are rows,
// attention_few_rows.cpp the one whose lanes are keys. Both give a row the same bits.
#pragma once

#include <limits>

#include "attention_products.hpp"

namespace dsalt::internal {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// One thread's memory.
struct ForwardScratch {
  ForwardScratch(const Kernels& kernels, bool pairs, const AttentionSizes& sizes, const AttentionProblem& problem,
                 std::int64_t slots)
      : q(kernels, pairs, sizes.d),
        k(kernels, pairs, sizes.d),
        v(kernels, pairs, sizes.dv),
        packed_q(kernels, pairs, sizes.d),
        products(kernels, pairs),
        rounds(pairs && !drops(problem)),
        out(kernels, v.width()),
        row(v.width()),
        work(v.width()),
        scores(tile * tile),
        keep(drops(problem) ? tile * tile : 0),
        list(slots) {}
  Operand q, k, v;
  Packed packed_q;
  Products products;
  bool rounds;  // weights are rounded to bfloat16: a row is divided by their sum, and lse has the unrounded one
  RowSums out;
  Array<float> row, work, scores, keep;
  ListScratch list;
  RowTile rows;
  TileMask mask;
  LandmarkRun run;
  Prefetcher ahead;
  SoftmaxRows softmax;
};

/// What the row tiles of one sequence share.
struct ForwardSequence {
  ForwardSequence(const Kernels& kernels, const AttentionInputs& inputs, const AttentionOutputs& outputs, bool packed,
                  std::int64_t b)
      : sequence(attention_sequence(inputs, b)),
        q(kernels, sequence.q),
        k(kernels, sequence.k, sequence.page_table),
        v(kernels, sequence.v, sequence.page_table),
        out(kernels, sequence.query_rows(outputs.out, packed)),
        lse(sequence.query_rows(outputs.lse, packed)) {}
  AttentionSequence sequence;
  Rows q, k, v, out;
  TensorView lse;
};

/// One tile of rows and what it needs.
struct ForwardPass {
  const Kernels& kernels;
  const AttentionProblem& problem;
  const AttentionSequence& sequence;
  const LandmarkLists& lists;
  DropoutTile dropout;
  const Rows &q, &k, &v;
  std::int64_t kv_head;
  ForwardScratch& own;

  /// Rows [begin, begin + count) of the query heads from first_head on.
  void start(std::int64_t first_head, std::int64_t begin, int count);
  void finish(const Rows& out, const TensorView& lse);
};

/// So few rows meet their keys with the keys in the lanes.
constexpr int few_rows = 8;
void attend_few_rows(ForwardPass& pass);

}  // namespace dsalt::internal
