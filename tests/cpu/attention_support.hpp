// Attention calls for the CPU backend's tests: described by a Setup, drawn from its seed, run on any backend, and
// judged against the float64 reference with a tolerance conditioned on each element.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsalt/attention.hpp"
#include "dsalt/backend.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/registry.hpp"

namespace dsalt::test {

struct Setup {
  std::string name;
  AttentionProblem problem;
  DType dtype = DType::f32;
  std::int64_t b = 1, hq = 1, hkv = 1, nq = 1, nk = 1, d = 8, dv = 8;
  // Packed when not empty: lengths of the sequences; `slack` rows follow the last one.
  std::vector<std::int64_t> pack_q, pack_k;
  std::int64_t slack = 0;
  std::vector<std::int32_t> k_lengths;  // padded: valid keys; the rest of k and v is NaN
  // w(b,h,i); absent: no window. hw is 1 or hq; integers when the window is int32.
  std::function<double(std::int64_t h, std::int64_t i)> window;
  std::int64_t hw = 1;
  DType window_dtype = DType::f32;
  // Index of a landmark slot; absent: no landmarks.
  std::function<std::int32_t(std::int64_t h, std::int64_t t, std::int64_t slot)> landmark;
  std::int64_t hl = 1, slots = 0;
  bool weights = false;
  double size = 1;       // standard deviation of q and k
  bool strided = false;  // [B,N,H,D] buffers with a gap behind every row, reversed channels of k
  bool backward = true;
  bool dlse = true;
  std::uint64_t seed = 1;

  bool packed() const { return !pack_q.empty(); }
};

/// The tensors of a call. Storage that no view covers holds NaN.
struct Call {
  AttentionProblem problem;
  AttentionInputs inputs;
  AttentionSaved arriving;  // dout, dlse
  std::vector<Tensor> storage;
  std::int64_t q_rows_used = 0, k_rows_used = 0;  // packed: rows before the slack
};

std::unique_ptr<Backend> cpu_backend(int threads);

Call draw(const Setup& setup);
/// The same call, every floating tensor as float64.
Call to_double(const Call& call);

using Results = std::map<std::string, Tensor>;  // "out", "lse", "dq", "dk", "dv", "dwindow", "dlandmark_log_weight"

/// Forward and, if asked for, backward. Outputs start as `fill`.
Results run(Backend& backend, const Call& call, bool backward, float fill = 0);

/// Fails the current test unless every element of every result satisfies
///   |actual - reference| <= factor (u_acc (2 + size of the scores) E + u_out |reference|) + tiny,
/// E: the sum of the absolute values of the terms of that very element. Returns the worst ratio to the parenthesis.
double check_against_reference(const Setup& setup, Backend& backend, double factor = 4);

/// Fails unless both hold the same bytes.
void check_same_bytes(const Results& a, const Results& b, const std::string& what);
bool same_bytes(const TensorView& a, const TensorView& b);
std::vector<double> values_of(const TensorView& view);

/// Repeatable noise in [0,1).
double noise(std::int64_t a, std::int64_t b, std::int64_t c = 0);
/// Short, long, negative, NaN and infinite windows, different from row to row and head to head.
double ragged(std::int64_t h, std::int64_t i);
/// Repeated, unused, negative, and too large indices in no order.
std::int32_t untidy(std::int64_t h, std::int64_t t, std::int64_t slot, std::int64_t nk);

}  // namespace dsalt::test
