// Attention with full, causal and sparse (adaptive window + landmark) masks. Contract: docs/semantics.md, "Attention".
//
// Two forms, chosen by the rank of q:
//   padded   q [B,Hq,Nq,D]   k [B,Hkv,Nk,D]   v [B,Hkv,Nk,Dv]     row tensors [B,Hq,Nq], window [B,Hw,Nq]
//   packed   q [Rq,Hq,D]     k [Rk,Hkv,D]     v [Rk,Hkv,Dv]       row tensors [Rq,Hq],   window [Rq,Hw]
// In the packed form each of the S sequences named by cu_seqlens is its own problem, and B below means S.
//
// A KV cache is the padded form with k_lengths. A paged one keeps its keys in pools of P pages, with k [P,Hkv,page,D]
// and v [P,Hkv,page,Dv] instead: key j of sequence b is row j % page of page page_table[b, j / page].
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "dsalt/export.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt {

class Backend;

enum class Mask : std::uint8_t {
  full,    // every key
  causal,  // keys at or before the query's position p(i) = i + nk - nq
  sparse,  // window and landmarks; causal unless bidirectional
};

/// "full", "causal", "sparse".
DSALT_API std::string_view name_of(Mask mask);

/// Differentiable window edge: keys within `edge` of the window's end get log sigma((w - e) / tau) added to their
/// logit.
struct SoftEdge {
  double edge = 0;  // >= 0
  double tau = 1;   // > 0
};

/// Counter-based dropout of attention weights: the same bits on every backend, recomputed in the backward pass.
struct Dropout {
  double p = 0;  // in [0,1]; 1 drops everything
  std::uint64_t seed = 0;
  std::uint32_t offset = 0;
};

struct AttentionProblem {
  Mask mask = Mask::causal;
  std::optional<double> scale;                 // 1/sqrt(D) when empty; any finite value, also 0 and negative
  bool bidirectional = false;                  // sparse only: distances |d|, keys on both sides
  std::optional<std::int64_t> landmark_chunk;  // c >= 1: query i reads list (i + landmark_offset) / c; empty: one list
  std::int64_t landmark_offset = 0;            // in [0,c)
  std::optional<SoftEdge> soft_edge;           // needs a floating-point window
  std::optional<Dropout> dropout;
};

struct AttentionInputs {
  TensorView q, k, v;  // one floating dtype
  TensorView
      window;  // optional [B,Hw,Nq] or [Rq,Hw], Hw in {1,Hq}; int32 or statistics dtype; negative, NaN: empty window
  TensorView landmarks;            // optional int32 [B,Hl,T,K], Hl in {1,Hq}; indices outside [0,nk) are unused slots
  TensorView landmark_log_weight;  // optional [B,Hl,T,K], statistics dtype, finite at used slots
  TensorView cu_seqlens_q;         // packed: int32 [S+1]
  TensorView cu_seqlens_k;         // packed: int32 [S+1]
  TensorView k_lengths;            // padded, optional: int32 [B] valid keys of a KV cache
  TensorView page_table;           // paged, with k_lengths: int32 [B,M], values in [0,P) where a sequence has keys
};

struct AttentionOutputs {
  TensorView out;  // [B,Hq,Nq,Dv] or [Rq,Hq,Dv], dtype of q
  TensorView lse;  // [B,Hq,Nq] or [Rq,Hq], statistics dtype; optional: absent is not computed
};

/// What the backward pass needs beside the inputs. A backend may use the stored out and lse or recompute them.
struct AttentionSaved {
  TensorView out;  // as written by attention_forward of the same backend
  TensorView lse;
  TensorView dout;  // gradient arriving at out, shape and dtype of out
  TensorView dlse;  // optional gradient arriving at lse, shape and dtype of lse
};

/// Gradients are overwritten, not accumulated; an absent one is not computed.
struct AttentionGradients {
  TensorView dq, dk, dv;            // shape and dtype of q, k, v; rows past k_lengths are written as 0
  TensorView dwindow;               // shape and dtype of window (floating windows only); 0 without a soft edge
  TensorView dlandmark_log_weight;  // shape and dtype of landmark_log_weight
};

/// o_i = sum_j softmax_j(scale <q_i,k_j> + beta_ij) v_j over the admitted set A(i); a row with no admitted key gives
/// out 0 and lse -inf. Throws InvalidArgument, Unsupported, DeviceError.
DSALT_API void attention_forward(Backend& backend, const AttentionProblem& problem, const AttentionInputs& inputs,
                                 const AttentionOutputs& outputs);

/// Gradients of <dout, out> + <dlse, lse>. Throws InvalidArgument (also for a page_table: a paged cache has the forward
/// pass only), Unsupported, DeviceError.
DSALT_API void attention_backward(Backend& backend, const AttentionProblem& problem, const AttentionInputs& inputs,
                                  const AttentionSaved& saved, const AttentionGradients& gradients);

/// Attention over two disjoint key sets, to be combined. A part with lse = -inf is the exact identity whatever its out.
struct MergeInputs {
  TensorView out1;  // [..., Dv]
  TensorView lse1;  // [...], statistics dtype
  TensorView out2;  // shape and dtype of out1
  TensorView lse2;  // shape and dtype of lse1
};

/// out [..., Dv] and lse [...] (optional) of the union. Throws InvalidArgument, Unsupported, DeviceError.
DSALT_API void merge(Backend& backend, const MergeInputs& inputs, const AttentionOutputs& outputs);

}  // namespace dsalt
