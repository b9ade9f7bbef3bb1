// Masks, online softmax and its gradient on one tile, for kernels.cpp alone. Equations in kernels.hpp.
//
// Sums over the rows of a tile run in four chains (row r in chain r % 4), added up as (0 + 1) + (2 + 3): an order fixed
// by the row's index, which callers keep equal to the key's index modulo 4.
#pragma once

#include "kernels.hpp"
#include "kernels_matrix.hpp"
#include "vector.hpp"

namespace dsalt::internal {
namespace {

void mask_lanes(float* s, int count, std::int32_t key, const std::int32_t* first, const std::int32_t* last,
                int lane_begin, int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    const I lowest = load(first + lane), highest = load(last + lane);
    for (int r = 0; r < count; ++r) {
      const I j = broadcast(key + r);
      float* p = s + r * tile + lane;
      store(p, ((j < lowest) | (j > highest)) ? broadcast(-infinity) : load(p));
    }
  }
}

void mask_rows(float* s, int count, const std::int32_t* first, const std::int32_t* last, int lane_begin, int lane_end) {
  I iota;
  for (int n = 0; n < lanes; ++n) iota[n] = n;
  for (int r = 0; r < count; ++r) {
    const I lowest = broadcast(first[r]), highest = broadcast(last[r]);
    for (int lane = lane_begin; lane < lane_end; lane += lanes) {
      const I j = iota + lane;
      float* p = s + r * tile + lane;
      store(p, ((j < lowest) | (j > highest)) ? broadcast(-infinity) : load(p));
    }
  }
}

void mask_landmarks(float* s, int count, const std::int32_t* key, const float* bias, const std::int32_t* first,
                    const std::int32_t* last, const std::int32_t* newest, int lane_begin, int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    const I lowest = load(first + lane), highest = load(last + lane), limit = load(newest + lane);
    for (int r = 0; r < count; ++r) {
      const I j = broadcast(key[r]);
      float* p = s + r * tile + lane;
      store(p, (((j >= lowest) & (j <= highest)) | (j > limit)) ? broadcast(-infinity) : load(p) + bias[r]);
    }
  }
}

void softmax(float* s, int count, float* m, float* sum, float* sum_lo, float* alpha, int lane_begin, int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    float* column = s + lane;
    F highest = broadcast(-infinity), second = highest;
    int r = 0;
    for (; r + 2 <= count; r += 2) {
      highest = larger(highest, load(column + r * tile));
      second = larger(second, load(column + (r + 1) * tile));
    }
    if (r < count) highest = larger(highest, load(column + r * tile));
    highest = larger(highest, second);

    const F old = load(m + lane);
    const I grows = highest > old + max_slack;  // false where nothing is admitted: -inf > -inf
    const F now = grows ? highest : old;
    const F reference = now == -infinity ? F{} : now;
    const F factor = grows ? exponential(old - reference) : broadcast(1.0f);
    store(m + lane, now);
    store(alpha + lane, factor);

    F chain[4] = {};
    for (r = 0; r + 4 <= count; r += 4) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        const F p = exponential(load(column + (r + n) * tile) - reference);
        store(column + (r + n) * tile, p);
        chain[n] += p;
      }
    }
    for (int n = 0; r < count; ++r, ++n) {
      const F p = exponential(load(column + r * tile) - reference);
      store(column + r * tile, p);
      chain[n] += p;
    }
    F err;
    const F total = two_sum(load(sum + lane) * factor, (chain[0] + chain[1]) + (chain[2] + chain[3]), err);
    store(sum + lane, total);
    store(sum_lo + lane, load(sum_lo + lane) * factor + err);
  }
}

inline F safe_reference(F lse) { return lse == -infinity ? F{} : lse; }

void probabilities_lanes(float* s, int count, const float* lse, const float* norm, int lane_begin, int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    const F reference = safe_reference(load(lse + lane)), factor = load(norm + lane);
    for (int r = 0; r < count; ++r) {
      float* p = s + r * tile + lane;
      store(p, exponential(load(p) - reference) * factor);
    }
  }
}

void probabilities_rows(float* s, int count, const float* lse, const float* norm, int lane_begin, int lane_end) {
  for (int r = 0; r < count; ++r) {
    const F reference = safe_reference(broadcast(lse[r])), factor = broadcast(norm[r]);
    for (int lane = lane_begin; lane < lane_end; lane += lanes) {
      float* p = s + r * tile + lane;
      store(p, exponential(load(p) - reference) * factor);
    }
  }
}

inline void score_gradient(float* p, float* dp, const float* keep, F delta) {
  const F weight = load(p);
  const I used = weight != F{};
  if (keep) {
    const F kept = load(keep);
    store(dp, used ? weight * (kept * load(dp) - delta) : F{});
    store(p, weight * kept);
  } else {
    store(dp, used ? weight * (load(dp) - delta) : F{});
  }
}

void score_gradients_lanes(float* p, float* dp, const float* keep, const float* delta, int count, int lane_begin,
                           int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    const F shift = load(delta + lane);
    for (int r = 0; r < count; ++r) {
      const int at = r * tile + lane;
      score_gradient(p + at, dp + at, keep ? keep + at : nullptr, shift);
    }
  }
}

void score_gradients_rows(float* p, float* dp, const float* keep, const float* delta, int count, int lane_begin,
                          int lane_end) {
  for (int r = 0; r < count; ++r) {
    const F shift = broadcast(delta[r]);
    for (int lane = lane_begin; lane < lane_end; lane += lanes) {
      const int at = r * tile + lane;
      score_gradient(p + at, dp + at, keep ? keep + at : nullptr, shift);
    }
  }
}

void row_sums(const float* p, const float* dp, const float* keep, int count, double* sum_p, double* sum_pd,
              int lane_begin, int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    F weights[4] = {}, products[4] = {};
    for (int r = 0; r < count; ++r) {
      const int at = r * tile + lane;
      const F weight = load(p + at);
      F product = weight * load(dp + at);
      if (keep) product = product * load(keep + at);
      weights[r & 3] += weight;
      products[r & 3] += weight != F{} ? product : F{};
    }
    const F all = (weights[0] + weights[1]) + (weights[2] + weights[3]);
    const F gradients = (products[0] + products[1]) + (products[2] + products[3]);
    for (int n = 0; n < lanes; ++n) {
      sum_p[lane + n] += static_cast<double>(all[n]);
      sum_pd[lane + n] += static_cast<double>(gradients[n]);
    }
  }
}

}  // namespace
}  // namespace dsalt::internal
