// Attention cases from a short specification: sizes and sequence lengths, then windows, landmarks and gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generators/family_list.hpp"

namespace dsalt::verification {

struct AttentionSpec {
  std::int64_t b = 1, hq = 2, hkv = 1, nq = 16, nk = 16, d = 16, dv = 16;
  const char* mask = "causal";
  // Packed when not empty: lengths of each sequence; b, nq, nk are then ignored.
  std::vector<std::int64_t> q_lengths = {}, k_lengths = {};
  std::int64_t tail = 0;  // packed: rows beyond cu_seqlens[S], filled with NaN
  bool packed() const { return !q_lengths.empty() || force_packed; }
  bool force_packed = false;  // packed with no sequence at all

  std::int64_t batch() const { return packed() ? static_cast<std::int64_t>(q_lengths.size()) : b; }
  std::int64_t q_rows() const;       // Rq with tail, or nq
  std::int64_t k_rows() const;       // Rk with tail, or nk
  std::int64_t used_q_rows() const;  // cu_seqlens_q[S]
  std::int64_t used_k_rows() const;
  std::int64_t longest_q() const;
  std::int64_t longest_k() const;
  Shape q_shape(std::int64_t heads, std::int64_t features) const;  // [B,H,Nq,F] or [Rq,H,F]
  Shape k_shape(std::int64_t heads, std::int64_t features) const;
  Shape row_shape(std::int64_t heads) const;  // [B,H,Nq] or [Rq,H]
};

enum class WindowKind {
  constant,    // 4 everywhere
  uniform,     // [0, longest k), fractional
  bimodal,     // 1 or half the sequence
  integers,    // int32
  fractional,  // whole numbers and just beside them
  negative,    // mostly negative, some 0
  poisoned,    // every third NaN
  unbounded,   // infinity, 1e30, 0
  past_int32,  // around 2^31 and 2^32
};

struct LandmarkSpec {
  std::int64_t k = 4;
  std::int64_t heads = 1;  // Hl
  std::int64_t chunk = 0;  // 0: one list
  std::int64_t offset = 0;
  bool weights = false;
  double weight_scale = 1;
  bool messy = false;        // repeats, future, -1, beyond the sequence, INT32_MIN and INT32_MAX
  std::int64_t surplus = 0;  // packed: lists beyond those that the longest sequence reads
  std::int64_t lists(const AttentionSpec& spec) const {
    if (chunk == 0) return 1;
    const std::int64_t end = spec.longest_q() + offset;  // chunk and offset may be as large as 2^62
    return end / chunk + (end % chunk != 0) + surplus;
  }
};

/// q, k, v of standard deviation `scale`, cu_seqlens, mask. Rows of a packed tail are NaN.
void add_qkv(CaseBuilder& c, const AttentionSpec& spec, double scale = 1);
void add_window(CaseBuilder& c, const AttentionSpec& spec, WindowKind kind, std::int64_t heads);
void add_landmarks(CaseBuilder& c, const AttentionSpec& spec, const LandmarkSpec& landmarks);
void add_soft_edge(CaseBuilder& c, double edge, double tau);
void add_dropout(CaseBuilder& c, double p, std::uint64_t seed, std::int64_t offset);
void add_gradients(CaseBuilder& c, const AttentionSpec& spec, bool dlse = false);
/// k_lengths; keys and values past them become NaN.
void add_k_lengths(CaseBuilder& c, const AttentionSpec& spec, const std::vector<std::int64_t>& lengths);

struct PageSpec {
  std::int64_t page = 4;
  bool shared = false;  // a sequence begins with pages of the one before it
  bool clean = false;   // what is never read has numbers too, and every entry of the table names a page
};
/// k_lengths, page_table and pools in place of k and v, with room for spec.nk keys of each sequence. Pages are in no
/// order. What is never read is NaN (pages, slots) or no page (entries).
void add_pages(CaseBuilder& c, const AttentionSpec& spec, const std::vector<std::int64_t>& lengths,
               const PageSpec& pages, double scale = 1);

}  // namespace dsalt::verification
