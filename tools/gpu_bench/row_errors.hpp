// How far attention is from the definition at a shape that is too large to be computed whole: rows are independent of
// each other, so some of them are computed in double on the host, on the very numbers that the backend got.
#pragma once

#include <cstdint>

#include "bench/workload.hpp"

namespace dsalt::benchmark {

struct RowErrors {
  std::int64_t rows = 0;  // how many were compared
  double largest = 0;     // |backend - definition|
  double rms = 0;
  double magnitude = 0;  // RMS of the definition itself
};

/// Of `out` after a forward call and of `dq` after a backward one, at `count` rows drawn from a fixed seed: row n is
/// query draw(19 << 48 | 3n + 2, Nq) of head draw(19 << 48 | 3n + 1, Hq) of sequence draw(19 << 48 | 3n, B). Runs the
/// call once.
RowErrors sampled_errors(Backend& backend, const Shape& shape, Direction direction, const Prepared& prepared,
                         std::int64_t count);

}  // namespace dsalt::benchmark
