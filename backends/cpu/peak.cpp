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
  if (kind == PeakKind::bf16) return isa == "avx512bf16" && bf16 ? &peak_avx512bf16 : nullptr;
  if (isa == "avx512bf16" || isa == "avx512") return avx512 ? &peak_avx512 : nullptr;
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
  for (const std::string_view isa : {"avx512bf16", "avx512", "avx2"})
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

double measure_copy_bandwidth(std::size_t bytes, int threads) {
  constexpr int passes = 3;
  constexpr std::size_t piece = std::size_t{4} << 20;
  const auto array = [&] {
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return std::unique_ptr<char, void (*)(void*)>(static_cast<char*>(memory), std::free);
  };
  const auto from = array(), to = array();
  double total = 0;
  run_together(threads, [&](int thread, int count) {
    const std::size_t share = bytes / static_cast<std::size_t>(count), begin = share * static_cast<std::size_t>(thread);
    std::memset(from.get() + begin, 1, share);
    std::memset(to.get() + begin, 1, share);
#pragma omp barrier
    std::vector<double> rates;
    for (int pass = 0; pass < passes; ++pass)
      for (std::size_t at = 0; at < share; at += piece) {
        const std::size_t length = std::min(piece, share - at);
        const auto start = Clock::now();
        std::memcpy(to.get() + begin + at, from.get() + begin + at, length);
        rates.push_back(2 * static_cast<double>(length) / seconds_since(start));
      }
    const double rate = median(rates);
#pragma omp critical(dsalt_peak)
    total += rate;
  });
  return total;
}

}  // namespace dsalt::internal
