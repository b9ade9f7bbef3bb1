// peak       rounds * flop_per_round / time       of bursts of half a millisecond
// bandwidth  2 * bytes / time                     of copies of 4 MB, one after the other through the whole array
//
// Both are the sum over threads, all running at once, of each thread's median: when another program takes a processor
// away for a while, few bursts notice.
#include "peak.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "amx.hpp"
#include "peak_kernels.hpp"

namespace dsalt::internal {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

const PeakKernel* kernel_of(std::string_view isa, PeakKind kind) {
#if defined(DSALT_PEAK_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (kind == PeakKind::bf16 && isa == "amxbf16") return bf16 && request_amx_bf16() ? &peak_amxbf16 : nullptr;
  if (kind == PeakKind::bf16) return isa == "avx512bf16" && bf16 ? &peak_avx512bf16 : nullptr;
  if (isa == "amxbf16" || isa == "avx512bf16" || isa == "avx512") return avx512 ? &peak_avx512 : nullptr;
  if (isa == "avx2") return avx2 ? &peak_avx2 : nullptr;
#endif
  return isa == "scalar" && kind == PeakKind::f32 ? &peak_generic : nullptr;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Runs `body(thread, threads)` on all threads at once.
template <class Body>
void run_together(int threads, Body&& body) {
#pragma omp parallel num_threads(threads)
  {
#pragma omp barrier
    body(omp_get_thread_num(), omp_get_num_threads());
  }
}

}  // namespace

std::string_view isa_of_description(std::string_view description) {
  std::string letters;  // "OpenMP, AVX-512 BF16, 2 threads" -> "openmpavx512bf162threads"
  for (const char c : description) {
    if (c >= 'A' && c <= 'Z') letters += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) letters += c;
  }
  for (const std::string_view isa : {"amxbf16", "avx512bf16", "avx512", "avx2"})
    if (letters.find(isa) != std::string::npos) return isa;
  return "scalar";
}

std::optional<double> measure_peak(std::string_view isa, PeakKind kind, int threads) {
  const PeakKernel* kernel = kernel_of(isa, kind);
  if (kernel == nullptr) return {};
  constexpr double burst_seconds = 0.0005, run_seconds = 0.3;
  const volatile float factor = 0.5f, term = 1;
  volatile float sink = 0;
  const auto burst = [&](std::int64_t rounds) {
    const auto start = Clock::now();
    const float result = kernel->run(rounds, factor, term);
    const double seconds = seconds_since(start);
    if (result == -1) sink = result;  // never, but the compiler does not know
    return seconds;
  };
  std::int64_t rounds = 1 << 8;
  const auto fastest_of_three = [&] { return std::min({burst(rounds), burst(rounds), burst(rounds)}); };
  while (rounds < std::int64_t{1} << 40 && fastest_of_three() < burst_seconds) rounds *= 2;
  double total = 0;
  run_together(threads, [&](int, int) {
    std::vector<double> times;
    const auto start = Clock::now();
    while (times.size() < 5 || seconds_since(start) < run_seconds) times.push_back(burst(rounds));
    const double seconds = median(times);
#pragma omp critical(dsalt_peak)
    total += static_cast<double>(rounds) * kernel->flop_per_round / seconds;
  });
  return total;
}

namespace {

constexpr std::size_t piece_bytes = std::size_t{4} << 20;

}  // namespace

std::unique_ptr<char, ArrayCopies::Free> ArrayCopies::array(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return std::unique_ptr<char, Free>(static_cast<char*>(memory));
}

ArrayCopies::ArrayCopies(std::size_t bytes, int threads)
    : threads_(threads),
      share_((bytes / static_cast<std::size_t>(threads) + piece_bytes) / piece_bytes * piece_bytes),
      from_(array(share_ * static_cast<std::size_t>(threads))),
      to_(array(share_ * static_cast<std::size_t>(threads))) {
  run_together(threads_, [&](int thread, int) {  // each thread's share comes from memory close to it
    const std::size_t begin = share_ * static_cast<std::size_t>(thread);
    std::memset(from_.get() + begin, 1, share_);
    std::memset(to_.get() + begin, 1, share_);
  });
}

int ArrayCopies::pieces() const { return static_cast<int>(share_ / piece_bytes); }

void ArrayCopies::settle() const {
  run_together(threads_, [&](int thread, int) {
    const char* line = from_.get() + share_ * static_cast<std::size_t>(thread);
    std::uint64_t sum = 0;
    for (const char* end = line + share_ / 2; line < end; line += 64) sum += static_cast<unsigned char>(*line);
    const volatile std::uint64_t sink = sum;
    static_cast<void>(sink);
  });
}

double ArrayCopies::measure(int pieces) {
  double total = 0;
  run_together(threads_, [&](int thread, int) {
    const std::size_t begin = share_ * static_cast<std::size_t>(thread);
    std::vector<double> rates;
    for (int n = 0; n < pieces; ++n) {
      const std::size_t at = begin + (next_ + static_cast<std::size_t>(n) * piece_bytes) % share_;
      const auto start = Clock::now();
      std::memcpy(to_.get() + at, from_.get() + at, piece_bytes);
      rates.push_back(2 * static_cast<double>(piece_bytes) / seconds_since(start));
    }
    const double rate = median(rates);
#pragma omp critical(dsalt_peak)
    total += rate;
  });
  next_ = (next_ + static_cast<std::size_t>(pieces) * piece_bytes) % share_;
  return total;
}

}  // namespace dsalt::internal
