// A call of the landmark selection, forward and in float32, as Hopper's kernels see it.
#pragma once

#include "../list_state.cuh"

namespace dsalt::cuda::hopper {

struct SelectionCall {
  SelectionLayout layout;
  EnergyView<float> x, v;
  View<const float, 1> alpha_raw;
  View<std::int32_t, 4> landmarks;
  View<float, 4> score, weight;
  double tau;

  /// List t of head h of sequence b, but for its rule. Energies of token 0; `end` as layout.end().
  __device__ List<float> list(const float* from_x, const float* from_v, std::int64_t b, std::int64_t h, std::int64_t t,
                              std::int64_t end) const {
    List<float> list = {
        .x = from_x, .v = from_v, .x_step = x.token, .v_step = v.token, .rule = {}, .end = end, .tau = tau};
    list.set_outputs(landmarks, score, weight, b, h, t);
    return list;
  }
};

inline SelectionCall selection_call(const SelectionProblem& problem, const SelectionLayout& layout,
                                    const SelectionInputs& in, const SelectionOutputs& out) {
  return {layout,
          energy_view<float>(layout, in.nx, false),
          energy_view<float>(layout, in.nv, true),
          device_view<const float, 1>(in.alpha_raw),
          device_view<std::int32_t, 4>(out.landmarks),
          device_view<float, 4>(out.score),
          device_view<float, 4>(out.landmark_log_weight),
          problem.tau};
}

}  // namespace dsalt::cuda::hopper
