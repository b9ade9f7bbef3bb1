// The dropout bit of attention weight (b,h,i,j): Philox4x32-10, a pure function of its indices.
#pragma once

#include <cmath>
#include <cstdint>

#include <Random123/philox.h>

#include "dsalt/attention.hpp"

namespace dsalt::internal {

/// Four words: counter (j / 4, i, b * Hq + h, offset), key (seed low, seed high). Word j % 4 belongs to key j.
inline r123::Philox4x32::ctr_type dropout_words(const Dropout& dropout, std::int64_t bh, std::int64_t i,
                                                std::int64_t j) {
  const r123::Philox4x32::ctr_type counter = {{static_cast<std::uint32_t>(j >> 2), static_cast<std::uint32_t>(i),
                                               static_cast<std::uint32_t>(bh), dropout.offset}};
  const r123::Philox4x32::key_type key = {
      {static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)}};
  return r123::Philox4x32()(counter, key);
}

/// Keep when word >= threshold: ceil(p 2^32), which 64 bits hold also for p = 1.
inline std::uint64_t dropout_threshold(double p) { return static_cast<std::uint64_t>(std::ceil(p * 0x1p32)); }

/// 0 for a dropped weight, 1/(1-p) for a kept one.
inline double dropout_factor(const Dropout& dropout, std::int64_t bh, std::int64_t i, std::int64_t j) {
  const auto words = dropout_words(dropout, bh, i, j);
  return words[static_cast<std::size_t>(j & 3)] >= dropout_threshold(dropout.p) ? 1 / (1 - dropout.p) : 0;
}

}  // namespace dsalt::internal
