// One sequence of a padded or packed call, as views in [heads, tokens, ...] order: what lets every backend write its
// loops once for both forms. Reads cu_seqlens, k_lengths and page_table, so these must be in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "dsalt/attention.hpp"
#include "internal/elements.hpp"

namespace dsalt::internal {

/// Rows [start, start + length) of sequence `b` as [heads, length, ...].
///   padded  [B,H,N,...] -> drop b, keep rows         packed  [R,H,...] -> keep rows, heads first
inline TensorView sequence_rows(const TensorView& view, bool packed, std::int64_t b, std::int64_t start,
                                std::int64_t length) {
  if (!view.present()) return view;
  if (packed) return view.narrow(0, start, length).transpose(0, 1);
  return view.select(0, b).narrow(1, start, length);
}

/// Keys that a row of the page table has room for.
inline std::int64_t paged_capacity(const AttentionInputs& in) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t entries = in.page_table.shape[1], page = in.k.shape[2];
  return page > 0 && entries > most / page ? most : entries * page;
}

/// Sizes of an attention call. `batch` is B or S; `nq` and `nk` are the padded lengths (paged: nk is what a row of the
/// page table has room for), or the row counts Rq and Rk.
struct AttentionSizes {
  bool packed;
  std::int64_t batch, hq, hkv, nq, nk, d, dv;
};

inline AttentionSizes attention_sizes(const AttentionInputs& in) {
  if (in.cu_seqlens_q.present())
    return {true,          in.cu_seqlens_q.shape[0] - 1,
            in.q.shape[1], in.k.shape[1],
            in.q.shape[0], in.k.shape[0],
            in.q.shape[2], in.v.shape[2]};
  const std::int64_t nk = in.page_table.present() ? paged_capacity(in) : in.k.shape[2];
  return {false, in.q.shape[0], in.q.shape[1], in.k.shape[1], in.q.shape[2], nk, in.q.shape[3], in.v.shape[3]};
}

/// Where sequence b's rows are. For the padded form starts are 0 and nk honours k_lengths.
struct SequenceExtent {
  std::int64_t q_start, nq, k_start, nk;
};

inline SequenceExtent sequence_extent(const AttentionInputs& in, std::int64_t b) {
  if (in.cu_seqlens_q.present()) {
    const std::int64_t q0 = load_i32(in.cu_seqlens_q, b), q1 = load_i32(in.cu_seqlens_q, b + 1);
    const std::int64_t k0 = load_i32(in.cu_seqlens_k, b), k1 = load_i32(in.cu_seqlens_k, b + 1);
    return {q0, q1 - q0, k0, k1 - k0};
  }
  return {0, in.q.shape[2], 0, in.k_lengths.present() ? load_i32(in.k_lengths, b) : in.k.shape[2]};
}

/// The inputs of one sequence: q [Hq,nq,D], k [Hkv,nk,D], v [Hkv,nk,Dv], window [Hw,nq] (or absent), landmarks and
/// landmark_log_weight [Hl,T,K] (or absent). Indices i, j, and landmark values are local to it. Paged: k and v are the
/// pools [Hkv,P,page,D] and [Hkv,P,page,Dv], and page_table is [M].
struct AttentionSequence {
  std::int64_t b, nq, nk;
  SequenceExtent extent;
  TensorView q, k, v, window, landmarks, landmark_log_weight, page_table;

  /// The same rows of a tensor shaped like q, out, lse or window (query rows).
  TensorView query_rows(const TensorView& view, bool packed) const {
    return sequence_rows(view, packed, b, extent.q_start, nq);
  }
  /// Row j of kv head g in `keys`, this sequence's k or v.
  TensorView key_row(const TensorView& keys, std::int64_t g, std::int64_t j) const {
    const TensorView head = keys.select(0, g);
    if (!page_table.present()) return head.select(0, j);
    const std::int64_t page = head.shape[1];
    return head.select(0, load_i32(page_table, j / page)).select(0, j % page);
  }
  /// The same rows of a tensor shaped like k or v (key rows, only the valid ones; not paged).
  TensorView key_rows(const TensorView& view, bool packed) const {
    return sequence_rows(view, packed, b, extent.k_start, nk);
  }
};

inline AttentionSequence attention_sequence(const AttentionInputs& in, std::int64_t b) {
  const bool packed = in.cu_seqlens_q.present();
  AttentionSequence s;
  s.b = b;
  s.extent = sequence_extent(in, b);
  s.nq = s.extent.nq;
  s.nk = s.extent.nk;
  s.q = s.query_rows(in.q, packed);
  s.window = s.query_rows(in.window, packed);
  if (in.page_table.present()) {
    s.k = in.k.transpose(0, 1);
    s.v = in.v.transpose(0, 1);
    s.page_table = in.page_table.select(0, b);
  } else {
    s.k = s.key_rows(in.k, packed);
    s.v = s.key_rows(in.v, packed);
  }
  if (in.landmarks.present()) s.landmarks = in.landmarks.select(0, b);
  if (in.landmark_log_weight.present()) s.landmark_log_weight = in.landmark_log_weight.select(0, b);
  return s;
}

/// Longest query sequence of the call.
inline std::int64_t longest_queries(const AttentionInputs& in) {
  if (!in.cu_seqlens_q.present()) return in.q.shape[2];
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b + 1 < in.cu_seqlens_q.shape[0]; ++b)
    longest = std::max(longest, sequence_extent(in, b).nq);
  return longest;
}

}  // namespace dsalt::internal
