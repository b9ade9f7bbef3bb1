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

/// Moves m of the lanes where a score exceeds it by max_slack; returns exp(m_old - m), and the exponent's zero point.
struct Step {
  F reference, factor;
  bool rescales;  // some factor is not 1
};

/// bound (or null): no score exceeds it.
inline Step raise_maximum(const float* column, int count, float* m, float* alpha, const float* bound) {
  const F old = load(m);
  if (bound && !any_set(load(bound) > old + max_slack)) {
    store(alpha, broadcast(1.0f));
    return {old == -infinity ? F{} : old, broadcast(1.0f), false};
  }
  F highest[4];
  for (int n = 0; n < 4; ++n) highest[n] = broadcast(-infinity);
  int r = 0;
  for (; r + 4 <= count; r += 4) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) highest[n] = larger(highest[n], load(column + (r + n) * tile));
  }
  for (; r < count; ++r) highest[0] = larger(highest[0], load(column + r * tile));
  const F peak = larger(larger(highest[0], highest[1]), larger(highest[2], highest[3]));

  const I grows = peak > old + max_slack;  // false where nothing is admitted: -inf > -inf
  const F now = grows ? peak : old;
  store(m, now);
  Step step{now == -infinity ? F{} : now, broadcast(1.0f), false};
  const I rescales = grows & (old != -infinity);  // before its first key a row has nothing to rescale
  if (any_set(rescales)) {
    step.rescales = true;
    step.factor = rescales ? exponential_below(old - step.reference) : step.factor;
  }
  store(alpha, step.factor);
  return step;
}

/// (hi, lo) = factor (hi, lo) + the four chains.
inline void add_chains(const F chain[4], F factor, float* hi, float* lo) {
  F err;
  store(hi, two_sum(load(hi) * factor, (chain[0] + chain[1]) + (chain[2] + chain[3]), err));
  store(lo, load(lo) * factor + err);
}

/// Loads `count` scores of a column and makes them weights, in place if `keeps`: body(r, weights of rows r, ..., r +
/// 3), then, where count is no multiple of 4, body(r, weights) with 0 past the last row.
template <class Body>
inline void for_weights(float* column, int count, F reference, bool keeps, Body&& body) {
  int r = 0;
  for (; r + 4 <= count; r += 4) {
    F p[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) p[n] = load(column + (r + n) * tile) - reference;
    exponentials_below(p);
    if (keeps)
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) store(column + (r + n) * tile, p[n]);
    body(r, p);
  }
  if (r == count) return;
  F p[4] = {};
  for (int n = 0; r + n < count; ++n) {
    p[n] = exponential_below(load(column + (r + n) * tile) - reference);
    if (keeps) store(column + (r + n) * tile, p[n]);
  }
  body(r, p);
}

bool softmax(float* s, int count, float* m, float* sum, float* sum_lo, float* alpha, const float* bound, int lane_begin,
             int lane_end) {
  Step step[tile / lanes];
  bool any = false;
  for (int lane = lane_begin, n = 0; lane < lane_end; lane += lanes, ++n) {
    step[n] = raise_maximum(s + lane, count, m + lane, alpha + lane, bound ? bound + lane : nullptr);
    any = any || step[n].rescales;
  }
  for (int lane = lane_begin, n = 0; lane < lane_end; lane += lanes, ++n) {
    F chain[4] = {};
    for_weights(s + lane, count, step[n].reference, true, [&chain](int, const F p[4]) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) chain[k] += p[k];
    });
    add_chains(chain, step[n].factor, sum + lane, sum_lo + lane);
  }
  return any;
}

inline F safe_reference(F lse) { return lse == -infinity ? F{} : lse; }

void probabilities(float* s, int count, const float* lse, const float* norm, int lane_begin, int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    const F reference = safe_reference(load(lse + lane)), factor = load(norm + lane);
    int r = 0;
    for (; r + 4 <= count; r += 4) {
      F p[4];
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) p[n] = load(s + (r + n) * tile + lane) - reference;
      exponentials_below(p);
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) store(s + (r + n) * tile + lane, p[n] * factor);
    }
    for (; r < count; ++r) {
      float* p = s + r * tile + lane;
      store(p, exponential_below(load(p) - reference) * factor);
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

void score_gradients(float* p, float* dp, const float* keep, const float* delta, int count, int lane_begin,
                     int lane_end) {
  for (int lane = lane_begin; lane < lane_end; lane += lanes) {
    const F shift = load(delta + lane);
    for (int r = 0; r < count; ++r) {
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
