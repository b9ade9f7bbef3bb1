// What decides which keys a query sees: the window predictor, the token energies and the landmark selection.
// Contract: docs/semantics.md, "Selectors".
//
// "stat" below is the statistics dtype: float64 when x is float64, else float32.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "dsalt/export.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt {

class Backend;

/// w = n_min + sigma(<x, a_h> + c_h) (n_max - n_min)
struct WindowProblem {
  double n_min = 1;  // 1 <= n_min <= n_max
  double n_max = 1;
  bool floor = false;  // hard windows: floored, zero gradient
};

struct WindowInputs {
  TensorView x;       // [B,N,d_model] or packed [R,d_model]
  TensorView weight;  // a [Hw,d_model], dtype of x or stat
  TensorView bias;    // c [Hw], dtype of weight
};

struct WindowGradients {  // an absent one is not computed
  TensorView dx, dweight, dbias;
};

/// window [B,Hw,N] (packed: [R,Hw]), stat.
DSALT_API void window_sizes_forward(Backend& backend, const WindowProblem& problem, const WindowInputs& inputs,
                                    const TensorView& window);
DSALT_API void window_sizes_backward(Backend& backend, const WindowProblem& problem, const WindowInputs& inputs,
                                     const TensorView& dwindow, const WindowGradients& gradients);

struct EnergyInputs {
  TensorView x;  // [B,N,d_model] or packed [R,d_model]
  TensorView v;  // value projection [B,Hkv,N,Dv] or packed [R,Hkv,Dv], dtype of x
};

/// nx = ||x||, nv = ||v||: nx [B,N], nv [B,Hkv,N] (packed: [R], [R,Hkv]), stat.
struct Energies {
  TensorView nx, nv;
};

struct EnergyGradients {  // an absent one is not computed
  TensorView dx, dv;
};

DSALT_API void energies_forward(Backend& backend, const EnergyInputs& inputs, const Energies& energies);
/// Gradient of <dnx, nx> + <dnv, nv>; 0 where a norm is 0. An absent dnx or dnv counts as zeros.
DSALT_API void energies_backward(Backend& backend, const EnergyInputs& inputs, const Energies& energy_gradients,
                                 const EnergyGradients& gradients);

enum class SelectionPolicy : std::uint8_t {
  global,  // one list over the whole sequence: selection sees the future (the published method)
  causal,  // list t sees only tokens before t * chunk: autoregressive, decode equals prefill
};

/// "global", "causal".
DSALT_API std::string_view name_of(SelectionPolicy policy);

struct SelectionProblem {
  SelectionPolicy policy = SelectionPolicy::causal;
  std::int64_t k = 1;                 // landmarks per list, >= 0
  double tau = 1;                     // landmark_tau > 0: log-weight = log sigma(score / tau)
  std::optional<std::int64_t> chunk;  // required by causal, refused by global
  std::int64_t recent = 0;            // newest candidates left out, >= 0
  bool detach_energies = false;       // gradients stop at the energies
};

struct SelectionInputs {
  TensorView nx;          // [B,N] or packed [R]; float32 or float64
  TensorView nv;          // [B,Hkv,N] or packed [R,Hkv], dtype of nx
  TensorView alpha_raw;   // [Hq], dtype of nx; Hq % Hkv == 0
  TensorView cu_seqlens;  // packed: int32 [S+1]
};

/// T = 1 (global) or ceil(N / chunk) (causal; packed: of the longest sequence). Lists ascend, then -1.
struct SelectionOutputs {
  TensorView landmarks;            // int32 [B,Hq,T,K], indices local to the sequence
  TensorView score;                // [B,Hq,T,K], dtype of nx; 0 at unused slots
  TensorView landmark_log_weight;  // [B,Hq,T,K], dtype of nx; 0 at unused slots
};

struct SelectionSaved {
  TensorView landmarks;             // as written by select_landmarks_forward
  TensorView dlandmark_log_weight;  // gradient arriving at landmark_log_weight
};

struct SelectionGradients {  // an absent one is not computed
  TensorView dnx, dnv;       // must be absent when detach_energies
  TensorView dalpha_raw;     // [Hq]
};

/// The number of lists T that `select_landmarks_forward` writes for sequences of at most `longest` tokens.
DSALT_API std::int64_t landmark_list_count(const SelectionProblem& problem, std::int64_t longest);

DSALT_API void select_landmarks_forward(Backend& backend, const SelectionProblem& problem,
                                        const SelectionInputs& inputs, const SelectionOutputs& outputs);
/// Gradient through the log-weights of the given lists; selection itself has none.
DSALT_API void select_landmarks_backward(Backend& backend, const SelectionProblem& problem,
                                         const SelectionInputs& inputs, const SelectionSaved& saved,
                                         const SelectionGradients& gradients);

}  // namespace dsalt
