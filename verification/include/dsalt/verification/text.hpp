// The operations on real text: bytes become tokens, tokens become attention problems, and every stage of the pipeline
// is compared between a backend and the double reference.
//
//   tokens   b_i = byte i of the text (vocabulary 256)
//   embed    x_i = sum_{s=0..3} 2^-s E[b_{i-s}]                    E [256,d_model], d_model = heads * d
//   rmsnorm  n = rmsnorm(x, gamma)
//   project  q, k, v = n W_Q, n W_K, n W_V                         plain host GEMM: no library operation
//   window   w = window_sizes(x; a, c)                             x: the residual stream entering the block
//   energy   nx, nv = ||x||, ||v||
//   select   landmarks, log-weights = select_landmarks(nx, nv, alpha_raw), policies causal and global
//   rope     q, k rotated
//   attend   attention, sparse mask with soft edge and landmark log-weights, forward and backward
//
// An embedding sees the three bytes before its own, so that equal letters in different words differ; it never sees a
// later one. All weights are normal numbers seeded by their names (random_values.hpp), the same on every machine: E std
// 0.02; gamma 1 + 0.1 normal; W_Q, W_K, W_V std 1/sqrt(d_model), which makes scores of order 1; a such that <x,a> has
// standard deviation about 1; c std 0.5; alpha_raw 0.405 + 0.5 normal (alpha around 0.6). Upstream gradients of every
// stage are standard normal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/verification/case.hpp"
#include "dsalt/verification/suites.hpp"

namespace dsalt::verification {

/// One problem size. `n` is a limit: a shorter text is taken whole.
struct TextShape {
  std::int64_t n, heads, kv_heads, d;
  double n_min, n_max;                     // window range
  double soft_edge, soft_tau;              // soft window edge
  std::int64_t chunk, k_causal, k_global;  // landmarks: chunk of the causal policy, list lengths of both
};

/// What the pipeline makes of a text; host tensors.
struct TextActivations {
  Tensor x;                               // [1,N,d_model]
  Tensor q, k;                            // [1,H,N,D], [1,Hkv,N,D], rotated
  Tensor v;                               // [1,Hkv,N,D]
  Tensor window;                          // [1,H,N]
  Tensor landmarks, landmark_log_weight;  // [1,H,T,K]
  Tensor out, lse;                        // [1,H,N,D], [1,H,N]
};

/// At most `max_bytes` bytes from the start of a file; IoError when it cannot be read.
DSALT_API std::string read_text(const std::string& path, std::int64_t max_bytes);

/// The whole forward pipeline on one backend, every stage fed by the one before.
/// InvalidArgument for an empty text or shapes that the operations refuse; Unsupported, DeviceError.
DSALT_API TextActivations run_text(Backend& backend, const TextShape& shape, DType dtype, std::string_view text,
                                   SelectionPolicy policy);

/// The attention case that `run_text` evaluates last, from the activations before it (out and lse are not looked at).
DSALT_API Case text_attention_case(const TextShape& shape, SelectionPolicy policy, const TextActivations& activations);

/// Names of the suite's cases in run order: "<stage>/<size>_<dtype>" for stages that both policies share,
/// "<stage>/<policy>_<size>_<dtype>" for the others. `quick`: only those that the option of that name keeps.
DSALT_API std::vector<std::string> text_suite_cases(bool quick = false);

/// Suite "text": every stage on options.text_file, at N up to 256, 1024 and 4096, in float32 and bfloat16 (the smallest
/// also in float64), forward and backward, and whether selection looks ahead: changing later bytes leaves earlier rows
/// bit-identical under the causal policy, and moves them under the global one.
/// Every stage gets the reference's results of the stages before it, rounded once, so that a case means the same on
/// every backend and attention is compared on given lists.
/// IoError when the file cannot be read, InvalidArgument when it is shorter than the smallest size.
DSALT_API std::vector<Result> run_text_suite(const SuiteOptions& options);

}  // namespace dsalt::verification
