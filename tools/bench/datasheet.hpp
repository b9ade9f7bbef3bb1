// What the makers of accelerators say that they can do at most. A device that is not in the table has no limits here:
// none are guessed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsalt::benchmark {

struct Datasheet {
  double peak_16;       // FLOP/s of bfloat16 and float16 products, dense
  double peak_32;       // of float32 multiply-adds: no TF32
  double peak_64;       // of float64 products
  double exponentials;  // exp2/s of the special function units
  double bandwidth;     // bytes/s of the device's memory
  double memory;        // bytes
};

/// "NVIDIA H200" of "device 0 (NVIDIA H200), compute capability 9.0, ..."; empty when there is no such name.
std::string device_name(std::string_view description);

std::optional<Datasheet> datasheet_of(std::string_view name);

}  // namespace dsalt::benchmark
