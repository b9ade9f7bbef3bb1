// Inputs of benchmarks: the same numbers for the same shape on every machine, in the backend's memory.
#pragma once

#include <cstdint>
#include <span>

#include "bench/shape.hpp"
#include "dsalt/backend.hpp"

namespace dsalt::benchmark {

/// A whole number in [0, count) that looks random and follows from the counter.
std::int64_t draw(std::uint64_t counter, std::int64_t count);

/// Numbers between -1 and 1 that look random: a block of 65521 repeats.
Tensor random_tensor(Backend& backend, std::span<const std::int64_t> shape, DType dtype, std::uint64_t seed);
inline Tensor random_tensor(Backend& backend, std::initializer_list<std::int64_t> shape, DType dtype,
                            std::uint64_t seed) {
  return random_tensor(backend, std::span<const std::int64_t>(shape.begin(), shape.size()), dtype, seed);
}

/// All zero: every byte is touched, so that no call pays for the first use of a page.
Tensor output_tensor(Backend& backend, std::span<const std::int64_t> shape, DType dtype);
inline Tensor output_tensor(Backend& backend, std::initializer_list<std::int64_t> shape, DType dtype) {
  return output_tensor(backend, std::span<const std::int64_t>(shape.begin(), shape.size()), dtype);
}

/// A copy of a host tensor in the backend's memory; the tensor itself where that is the host's.
Tensor on_device(Backend& backend, const Tensor& host);

/// int32 [B,H,N] in host memory, by the shape's rule.
Tensor draw_windows(const Shape& shape);

/// int32 [B,H,T,K] in host memory: each list ascends, without repeats, and names only tokens before its chunk (with one
/// list: any), one in each K-th part of them; -1 where there are not enough.
Tensor draw_landmarks(const Shape& shape);

/// int32 [B,M] in host memory, M = shape.pages(): every page of a pool of B M pages once, in an order that looks
/// random.
Tensor draw_page_table(const Shape& shape);

/// int32 [rows] in [0, classes), in host memory.
Tensor draw_labels(std::int64_t rows, std::int64_t classes);

}  // namespace dsalt::benchmark
