// A paged cache as a contiguous one: docs/semantics.md, "Paged cache".
#pragma once

#include "context.hpp"
#include "dsalt/attention.hpp"
#include "vectors.cuh"

namespace dsalt::cuda {

/// The keys and values that a call's page table names, copied in stream order to [B,Hkv,Nk,D] and [B,Hkv,Nk,Dv] with
/// Nk = M page: every kernel that takes k_lengths takes these. The copies live as long as this object. Of a sparse call
/// only tiles of 128 keys in reach of a window and rows that a landmark names are copied, and the rest is anything: so
/// kernels may compute with a key that no row admits only in such a tile.
class GatheredPages {
 public:
  GatheredPages(const Context& context, const char* operation, const AttentionProblem& problem,
                const AttentionInputs& inputs);
  /// The call with the copies and without the page table.
  const AttentionInputs& inputs() const { return inputs_; }

 private:
  /// [B,Hkv,Nk,E] with rows of whole vectors.
  struct Copy {
    TensorView view;
    std::int64_t pitch, bytes;  // in multiples of 256
  };
  Copy copy_of(const TensorView& pool) const;
  void find_reach(const AttentionProblem& problem);
  void gather(const TensorView& pool, Copy& copy, unsigned char* memory);
  int2* reach() const;

  const Context& context_;
  const char* operation_;
  AttentionInputs inputs_;
  std::int64_t nk_;
  bool whole_;  // every key of a sequence is copied
  Copy k_, v_;
  Scratch<unsigned char> memory_;  // keys, values, what each sequence reaches: one piece, which the pool finds again
};

}  // namespace dsalt::cuda
