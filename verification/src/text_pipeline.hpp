// The stages of the text pipeline as cases: what the suite judges and `run_text` evaluates.
#pragma once

#include <cstdint>
#include <string_view>

#include "dsalt/verification/text.hpp"

namespace dsalt::verification {

/// Each case with seeded upstream gradients when `backward`; every argument is a host tensor.
struct TextStages {
  TextShape shape;
  DType dtype;
  bool backward;

  std::int64_t d_model() const { return shape.heads * shape.d; }

  Case rmsnorm(const Tensor& x) const;
  Case window_sizes(const Tensor& x) const;
  Case energies(const Tensor& x, const Tensor& v) const;
  Case select_landmarks(const Tensor& nx, const Tensor& nv, SelectionPolicy policy) const;
  /// `input` is "q" or "k": it names the seed of the upstream gradient.
  Case rope(std::string_view input, const Tensor& x) const;
  Case attention(const TextActivations& t, SelectionPolicy policy) const;
};

}  // namespace dsalt::verification
