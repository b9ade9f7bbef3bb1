// What this processor can do at most, measured: the limits that `dsalt bench` holds the cpu backend against. Not part
// of libdsalt; a program that wants it links the target dsalt_cpu_peak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsalt::internal {

/// The levels that a cpu backend may run on, as DSALT_CPU_ISA names them: "scalar", "avx2", "avx512", "avx512bf16".
/// The one that a backend's description ("OpenMP, AVX-512, 2 threads") speaks of.
std::string_view isa_of_description(std::string_view description);

enum class PeakKind : std::uint8_t {
  f32,   // float32 multiply-adds of the level's vectors
  bf16,  // products of bfloat16 pairs summed in float32 (vdpbf16ps)
};

/// FLOP per second of `threads` threads at once, registers only. Empty when the level
/// has no such instruction, or this processor or build does not have the level.
std::optional<double> measure_peak(std::string_view isa, PeakKind kind, int threads);

/// Bytes per second, read and written, while `threads` threads at once copy an array of `bytes` bytes: the best of
/// several passes. Allocates twice as much.
double measure_copy_bandwidth(std::size_t bytes, int threads);

}  // namespace dsalt::internal
