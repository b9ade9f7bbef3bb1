// What this processor can do at most, measured: the limits that `dsalt bench` holds the cpu backend against. Not part
// of libdsalt; a program that wants it links the target dsalt_cpu_peak.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

namespace dsalt::internal {

/// The levels that a cpu backend may run on, as DSALT_CPU_ISA names them: "scalar", "avx2", "avx512", "avx512bf16",
/// "amxbf16".
/// The one that a backend's description ("OpenMP, AVX-512, 2 threads") speaks of.
std::string_view isa_of_description(std::string_view description);

enum class PeakKind : std::uint8_t {
  f32,   // float32 multiply-adds of the level's vectors
  bf16,  // products of bfloat16 pairs summed in float32 (vdpbf16ps, tdpbf16ps)
};

/// FLOP per second of `threads` threads at once, registers only. Empty when the level
/// has no such instruction, or this processor or build does not have the level.
std::optional<double> measure_peak(std::string_view isa, PeakKind kind, int threads);

/// Copies of an array, piece by piece, by several threads at once.
class ArrayCopies {
 public:
  /// Allocates twice `bytes`, rounded up to whole pieces for every thread; throws std::bad_alloc.
  ArrayCopies(std::size_t bytes, int threads);
  /// Bytes per second, read and written, while each thread copies its next `pieces` pieces of 4 MB: the sum over
  /// threads of each one's median.
  double measure(int pieces);
  /// Pieces of a thread in one pass over its share of the array.
  int pieces() const;
  /// Reads half of the array, so that no cache of a quarter of it keeps lines that are still to be written: who is
  /// timed next would have to wait for them.
  void settle() const;

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  static std::unique_ptr<char, Free> array(std::size_t bytes);
  int threads_;
  std::size_t share_, next_ = 0;  // of a thread: bytes, and where its next piece starts
  std::unique_ptr<char, Free> from_, to_;
};

}  // namespace dsalt::internal
