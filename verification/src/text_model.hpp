// Seeded weights, embedding and projection of the text pipeline (see text.hpp for the equations).
#pragma once

#include <cstdint>
#include <string_view>

#include "dsalt/tensor.hpp"
#include "dsalt/verification/text.hpp"

namespace dsalt::verification {

/// mean + std * normal, a pure function of `name` and the element's index; rounded once to `dtype`.
Tensor seeded_normal(std::string_view name, std::initializer_list<std::int64_t> shape, DType dtype, double std = 1,
                     double mean = 0);

/// x [1,N,d_model] of the text's bytes.
Tensor embed_text(std::string_view text, std::int64_t d_model, DType dtype);

/// y = x W for x [1,N,d_model] with a seeded W [d_model, heads * d] of std 1/sqrt(d_model), as a view [1,heads,N,d] of
/// a [N, heads * d] buffer: the strides that a linear layer leaves behind. Each row is computed alone.
Tensor project(std::string_view weight_name, const Tensor& x, std::int64_t heads, std::int64_t d);

}  // namespace dsalt::verification
