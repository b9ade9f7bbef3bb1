// How many blocks a kernel is launched with, and what a device takes of them.
#pragma once

#include <vector_types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "dsalt/errors.hpp"

namespace dsalt::cuda {

/// In numbers that no call is too large for: they are narrowed only once they are known to fit.
struct Grid {
  std::int64_t x, y, z;

  Grid(std::int64_t x_, std::int64_t y_ = 1, std::int64_t z_ = 1) : x(x_), y(y_), z(z_) {}
  Grid(dim3) = delete;  // somebody has narrowed already
};

/// As launches take it. A DeviceError that starts with `operation` where a device does not run that many blocks.
inline dim3 checked_grid(const Grid& grid, std::string_view operation) {
  constexpr std::int64_t most_x = 2147483647, most = 65535;
  const auto inside = [](std::int64_t count, std::int64_t limit) { return count >= 0 && count <= limit; };
  if (!inside(grid.x, most_x) || !inside(grid.y, most) || !inside(grid.z, most))
    throw DeviceError(std::string(operation) + ": a kernel needs a grid of " + std::to_string(grid.x) + " x " +
                      std::to_string(grid.y) + " x " + std::to_string(grid.z) + " blocks, and a device runs at most " +
                      std::to_string(most_x) + " x " + std::to_string(most) + " x " + std::to_string(most));
  return dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
}

}  // namespace dsalt::cuda
