// peak = threads * rounds * flop_per_round / time,  bandwidth = 2 * bytes / time; both are the best of several runs, in
// which all threads start together and the slowest one ends the clock.
#include "peak.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

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

/// Seconds that `body(thread, threads)` takes on all threads at once.
template <class Body>
double time_together(int threads, Body&& body) {
  Clock::time_point start;
#pragma omp parallel num_threads(threads)
  {
#pragma omp barrier
#pragma omp single
    start = Clock::now();  // the single's own barrier lets nobody ahead
    body(omp_get_thread_num(), omp_get_num_threads());
  }
  return seconds_since(start);
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
  constexpr int runs = 30;  // short ones, so that some are left alone by whatever else runs here
  constexpr double run_seconds = 0.01;
  const volatile float factor = 0.5f, term = 1;
  volatile float sink = 0;
  std::int64_t rounds = 1 << 12;
  const auto run = [&](int, int) {
    const float result = kernel->run(rounds, factor, term);
#pragma omp critical(dsalt_peak)
    sink = result;
  };
  double best = 0;
  const auto best_of = [&](int count) {
    for (int n = 0; n < count; ++n) best = std::min(best, time_together(threads, run));
  };
  for (; rounds < std::int64_t{1} << 40; rounds *= 2) {
    best = time_together(threads, run);
    best_of(3);  // a late thread must not make a run look long enough
    if (best >= run_seconds) break;
  }
  best_of(runs);
  return threads * static_cast<double>(rounds) * kernel->flop_per_round / best;
}

double measure_copy_bandwidth(std::size_t bytes, int threads) {
  constexpr int passes = 6;  // the first one touches the pages
  const auto array = [&] {
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return std::unique_ptr<void, void (*)(void*)>(memory, std::free);
  };
  const auto from = array(), to = array();
  const auto slice = [&](int thread, int count, auto&& work) {
    const std::size_t begin = bytes / static_cast<std::size_t>(count) * static_cast<std::size_t>(thread);
    const std::size_t end = thread + 1 == count ? bytes : begin + bytes / static_cast<std::size_t>(count);
    work(begin, end - begin);
  };
  time_together(threads, [&](int thread, int count) {
    slice(thread, count, [&](std::size_t begin, std::size_t length) {
      std::memset(static_cast<char*>(from.get()) + begin, 1, length);
    });
  });
  double best = 0;
  for (int n = 0; n < passes; ++n) {
    const double seconds = time_together(threads, [&](int thread, int count) {
      slice(thread, count, [&](std::size_t begin, std::size_t length) {
        std::memcpy(static_cast<char*>(to.get()) + begin, static_cast<const char*>(from.get()) + begin, length);
      });
    });
    if (n > 0) best = std::max(best, 2 * static_cast<double>(bytes) / seconds);
  }
  return best;
}

}  // namespace dsalt::internal
