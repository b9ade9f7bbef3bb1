// Validation and dispatch of the window predictor, the energies and the landmark selection.
#include "dsalt/selectors.hpp"

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"
#include "validate.hpp"

namespace dsalt {
namespace {

using internal::Argument;
using internal::check_gradient;
using internal::refuse;

/// Token tensor in either form: padded of rank `rank`, packed of one less. True when packed.
bool check_tokens(const Backend& backend, std::string_view name, const TensorView& view, int rank,
                  std::string_view padded, std::string_view packed) {
  Argument{name, view}.present().on(backend);
  if (view.rank != rank && view.rank != rank - 1)
    refuse(name, to_string(view), std::string(padded) + " or packed " + std::string(packed));
  return view.rank == rank - 1;
}

void check_window_inputs(const Backend& backend, const WindowProblem& problem, const WindowInputs& in) {
  internal::require_at_least("n_min", problem.n_min, 1);
  internal::require_at_least("n_max", problem.n_max, problem.n_min);
  check_tokens(backend, "x", in.x, 3, "[B,N,d_model]", "[R,d_model]");
  Argument{"x", in.x}.floating();
  const std::int64_t d_model = in.x.shape[static_cast<std::size_t>(in.x.rank - 1)];
  const Argument weight{"weight", in.weight};
  weight.rank(2, "[Hw,d_model]").dtype_in({in.x.dtype, statistics_dtype(in.x.dtype)}).on(backend);
  weight.shape({in.weight.shape[0], d_model}, "[Hw,d_model]");
  Argument{"bias", in.bias}.shape({in.weight.shape[0]}, "[Hw]").dtype(in.weight.dtype).on(backend);
}

void check_window_tensor(const Backend& backend, const WindowInputs& in, std::string_view name,
                         const TensorView& window) {
  const Argument argument{name, window};
  const std::int64_t hw = in.weight.shape[0];
  if (in.x.rank == 2)
    argument.shape({in.x.shape[0], hw}, "[R,Hw]");
  else
    argument.shape({in.x.shape[0], hw, in.x.shape[1]}, "[B,Hw,N]");
  argument.dtype(statistics_dtype(in.x.dtype)).on(backend);
}

void check_energy_inputs(const Backend& backend, const EnergyInputs& in) {
  const bool packed = check_tokens(backend, "x", in.x, 3, "[B,N,d_model]", "[R,d_model]");
  Argument{"x", in.x}.floating();
  const Argument v{"v", in.v};
  v.rank(packed ? 3 : 4, packed ? "[R,Hkv,Dv]" : "[B,Hkv,N,Dv]").dtype(in.x.dtype).on(backend);
  if (packed)
    v.shape({in.x.shape[0], in.v.shape[1], in.v.shape[2]}, "[R,Hkv,Dv]");
  else
    v.shape({in.x.shape[0], in.v.shape[1], in.x.shape[1], in.v.shape[3]}, "[B,Hkv,N,Dv]");
}

/// nx and nv as outputs or as arriving gradients; both optional.
void check_energies(const Backend& backend, const EnergyInputs& in, std::string_view nx_name, const TensorView& nx,
                    std::string_view nv_name, const TensorView& nv) {
  const DType stat = statistics_dtype(in.x.dtype);
  TensorView x_rows = in.x, v_rows = in.v;  // shapes without the feature dimension
  x_rows.rank -= 1;
  v_rows.rank -= 1;
  if (nx.present()) Argument{nx_name, nx}.same_shape("x without d_model", x_rows).dtype(stat).on(backend);
  if (nv.present()) Argument{nv_name, nv}.same_shape("v without Dv", v_rows).dtype(stat).on(backend);
}

/// Longest sequence of a selection call.
std::int64_t longest_tokens(const SelectionInputs& in) {
  if (!in.cu_seqlens.present()) return in.nx.shape[1];
  std::int64_t longest = 0;
  for (std::int64_t s = 0; s + 1 < in.cu_seqlens.shape[0]; ++s)
    longest = std::max<std::int64_t>(longest,
                                     internal::load_i32(in.cu_seqlens, s + 1) - internal::load_i32(in.cu_seqlens, s));
  return longest;
}

void check_selection_inputs(const Backend& backend, const SelectionProblem& problem, const SelectionInputs& in) {
  internal::require_at_least("k", problem.k, std::int64_t{0});
  internal::require_positive("tau", problem.tau);
  internal::require_at_least("recent", problem.recent, std::int64_t{0});
  if (problem.policy == SelectionPolicy::causal) {
    if (!problem.chunk) refuse("chunk", "nothing", "a chunk length with policy causal");
    internal::require_chunk("chunk", *problem.chunk);
  } else if (problem.chunk) {
    refuse("chunk", std::to_string(*problem.chunk), "none with policy global");
  }
  const bool packed = in.cu_seqlens.present();
  const Argument nx{"nx", in.nx}, nv{"nv", in.nv};
  nx.rank(packed ? 1 : 2, packed ? "[R]" : "[B,N]").dtype_in({DType::f32, DType::f64}).on(backend);
  nv.rank(packed ? 2 : 3, packed ? "[R,Hkv]" : "[B,Hkv,N]").dtype(in.nx.dtype).on(backend);
  const std::int64_t hkv = in.nv.shape[1];
  if (packed)
    nv.shape({in.nx.shape[0], hkv}, "[R,Hkv]");
  else
    nv.shape({in.nx.shape[0], hkv, in.nx.shape[1]}, "[B,Hkv,N]");
  if (hkv < 1) refuse("nv", to_string(in.nv), "at least one head");
  Argument{"alpha_raw", in.alpha_raw}.rank(1, "[Hq]").dtype(in.nx.dtype).on(backend);
  if (in.alpha_raw.shape[0] < 1 || in.alpha_raw.shape[0] % hkv != 0)
    refuse("alpha_raw", to_string(in.alpha_raw),
           "Hq entries, a multiple of the " + std::to_string(hkv) + " heads of nv");
  if (packed) internal::check_cu_seqlens({"cu_seqlens", in.cu_seqlens}, backend, in.nx.shape[0]);
}

/// A [B,Hq,T,K] tensor of the selection.
void check_lists(const Backend& backend, const SelectionProblem& problem, const SelectionInputs& in,
                 std::string_view name, const TensorView& lists, DType dtype) {
  const Argument argument{name, lists};
  argument.rank(4, "[B,Hq,T,K]").dtype(dtype).on(backend);
  const bool packed = in.cu_seqlens.present();
  const std::int64_t batch = packed ? in.cu_seqlens.shape[0] - 1 : in.nx.shape[0];
  const bool known = !packed || internal::on_host(in.cu_seqlens);  // otherwise the caller's T stands
  const std::int64_t t = known ? landmark_list_count(problem, longest_tokens(in)) : lists.shape[2];
  argument.shape({batch, in.alpha_raw.shape[0], t, problem.k}, packed ? "[S,Hq,T,K]" : "[B,Hq,T,K]");
}

}  // namespace

std::string_view name_of(SelectionPolicy policy) { return policy == SelectionPolicy::global ? "global" : "causal"; }

std::int64_t landmark_list_count(const SelectionProblem& problem, std::int64_t longest) {
  internal::require_at_least("longest", longest, std::int64_t{0});
  if (problem.policy == SelectionPolicy::global) return 1;
  if (!problem.chunk) refuse("chunk", "nothing", "a chunk length with policy causal");
  internal::require_chunk("chunk", *problem.chunk);
  return internal::ceil_div(longest, *problem.chunk);
}

void window_sizes_forward(Backend& backend, const WindowProblem& problem, const WindowInputs& inputs,
                          const TensorView& window) {
  check_window_inputs(backend, problem, inputs);
  check_window_tensor(backend, inputs, "window", window);
  Argument{"window", window}.writable();
  internal::require_support(backend, Operation::window_sizes, Direction::forward, inputs.x.dtype);
  backend.window_sizes_forward(problem, inputs, window);
}

void window_sizes_backward(Backend& backend, const WindowProblem& problem, const WindowInputs& inputs,
                           const TensorView& dwindow, const WindowGradients& gradients) {
  check_window_inputs(backend, problem, inputs);
  check_window_tensor(backend, inputs, "dwindow", dwindow);
  check_gradient(backend, "dx", gradients.dx, "x", inputs.x);
  check_gradient(backend, "dweight", gradients.dweight, "weight", inputs.weight);
  check_gradient(backend, "dbias", gradients.dbias, "bias", inputs.bias);
  internal::require_support(backend, Operation::window_sizes, Direction::backward, inputs.x.dtype);
  backend.window_sizes_backward(problem, inputs, dwindow, gradients);
}

void energies_forward(Backend& backend, const EnergyInputs& inputs, const Energies& energies) {
  check_energy_inputs(backend, inputs);
  check_energies(backend, inputs, "nx", energies.nx, "nv", energies.nv);
  Argument{"nx", energies.nx}.writable();
  Argument{"nv", energies.nv}.writable();
  internal::require_support(backend, Operation::energies, Direction::forward, inputs.x.dtype);
  backend.energies_forward(inputs, energies);
}

void energies_backward(Backend& backend, const EnergyInputs& inputs, const Energies& energy_gradients,
                       const EnergyGradients& gradients) {
  check_energy_inputs(backend, inputs);
  check_energies(backend, inputs, "dnx", energy_gradients.nx, "dnv", energy_gradients.nv);
  check_gradient(backend, "dx", gradients.dx, "x", inputs.x);
  check_gradient(backend, "dv", gradients.dv, "v", inputs.v);
  internal::require_support(backend, Operation::energies, Direction::backward, inputs.x.dtype);
  backend.energies_backward(inputs, energy_gradients, gradients);
}

void select_landmarks_forward(Backend& backend, const SelectionProblem& problem, const SelectionInputs& inputs,
                              const SelectionOutputs& outputs) {
  check_selection_inputs(backend, problem, inputs);
  check_lists(backend, problem, inputs, "landmarks", outputs.landmarks, DType::i32);
  check_lists(backend, problem, inputs, "score", outputs.score, inputs.nx.dtype);
  check_lists(backend, problem, inputs, "landmark_log_weight", outputs.landmark_log_weight, inputs.nx.dtype);
  Argument{"landmarks", outputs.landmarks}.writable();
  Argument{"score", outputs.score}.writable();
  Argument{"landmark_log_weight", outputs.landmark_log_weight}.writable();
  internal::require_support(backend, Operation::select_landmarks, Direction::forward, inputs.nx.dtype);
  backend.select_landmarks_forward(problem, inputs, outputs);
}

void select_landmarks_backward(Backend& backend, const SelectionProblem& problem, const SelectionInputs& inputs,
                               const SelectionSaved& saved, const SelectionGradients& gradients) {
  check_selection_inputs(backend, problem, inputs);
  check_lists(backend, problem, inputs, "landmarks", saved.landmarks, DType::i32);
  check_lists(backend, problem, inputs, "dlandmark_log_weight", saved.dlandmark_log_weight, inputs.nx.dtype);
  if (problem.detach_energies) {
    if (gradients.dnx.present()) refuse("dnx", to_string(gradients.dnx), "none with detach_energies");
    if (gradients.dnv.present()) refuse("dnv", to_string(gradients.dnv), "none with detach_energies");
  }
  check_gradient(backend, "dnx", gradients.dnx, "nx", inputs.nx);
  check_gradient(backend, "dnv", gradients.dnv, "nv", inputs.nv);
  check_gradient(backend, "dalpha_raw", gradients.dalpha_raw, "alpha_raw", inputs.alpha_raw);
  internal::require_support(backend, Operation::select_landmarks, Direction::backward, inputs.nx.dtype);
  backend.select_landmarks_backward(problem, inputs, saved, gradients);
}

}  // namespace dsalt
