// The numbers in generated cases: pure functions of (case name, tensor name, element index), the same on every machine.
//
//   key = FNV-1a-64(case name),  counter = (index low, index high, FNV-1a-32 of the tensor name, 0)
//   words = Philox4x32-10(counter, key)
//   uniform = (words[0] + 1/2) 2^-32                               in (0,1)
//   normal  = sqrt(3)/2 sum_n (2 (words[n] + 1/2) 2^-32 - 1)        mean 0, variance 1, |normal| < 2 sqrt(3)
//
// The sum of four uniform words stands in for a normal deviate: unlike Box-Muller it needs no logarithm or cosine, so
// the bytes do not depend on the mathematics library. Everything up to the final product is exact in double.
#pragma once

#include <cstdint>
#include <string_view>

#include <Random123/philox.h>

namespace dsalt::verification {

class RandomValues {
 public:
  RandomValues(std::string_view case_name, std::string_view tensor_name)
      : key_(hash64(case_name)), stream_(static_cast<std::uint32_t>(hash32(tensor_name))) {}

  double uniform(std::int64_t index) const { return unit(words(index)[0]); }
  double uniform(std::int64_t index, double low, double high) const { return low + (high - low) * uniform(index); }
  /// Whole number in [low, high].
  std::int64_t integer(std::int64_t index, std::int64_t low, std::int64_t high) const {
    const auto span = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int64_t>((static_cast<std::uint64_t>(words(index)[1]) * span) >> 32);
  }
  double normal(std::int64_t index) const {
    const auto w = words(index);
    double sum = 0;
    for (std::size_t n = 0; n < 4; ++n) sum += 2 * unit(w[n]) - 1;
    return 0.8660254037844386 * sum;  // variance of each term is 1/3
  }

 private:
  using Philox = r123::Philox4x32;

  static std::uint64_t hash64(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
  }
  static std::uint32_t hash32(std::string_view text) {
    std::uint32_t hash = 0x811c9dc5u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
    return hash;
  }
  static double unit(std::uint32_t word) { return (word + 0.5) * 0x1p-32; }

  Philox::ctr_type words(std::int64_t index) const {
    const auto i = static_cast<std::uint64_t>(index);
    const Philox::ctr_type counter = {
        {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), stream_, 0u}};
    const Philox::key_type key = {{static_cast<std::uint32_t>(key_), static_cast<std::uint32_t>(key_ >> 32)}};
    return Philox()(counter, key);
  }

  std::uint64_t key_;
  std::uint32_t stream_;
};

}  // namespace dsalt::verification
