// The OpenMP backend's identity: what it runs on, with how many threads, and what it promises.
#include "cpu_backend.hpp"

#include <atomic>
#include <cstdlib>

#include <omp.h>
#include <pthread.h>

#include "dsalt/errors.hpp"
#include "internal/factories.hpp"
#include "kernels.hpp"
#include "panel_kernels.hpp"

namespace dsalt::internal {
namespace {

std::atomic<bool> forked{false};

/// Registered when libdsalt is loaded, so that it covers every fork() after that.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

CpuBackend::CpuBackend(const BackendOptions& options)
    : requested_threads_(options.threads), kernels_(select_kernels(std::getenv("DSALT_CPU_ISA"))) {
  // OpenMP ends the process when it cannot start a thread: ask for no absurd number.
  constexpr int most_threads = 4096;
  if (options.threads < 0 || options.threads > most_threads)
    throw InvalidArgument("threads: got " + std::to_string(options.threads) + ", need 0 (OpenMP's default) to " +
                          std::to_string(most_threads));
}

int CpuBackend::threads() const {
  if (forked) return 1;
  return requested_threads_ > 0 ? requested_threads_ : omp_get_max_threads();
}

std::string CpuBackend::description() const {
  const int count = threads();
  return "OpenMP, " + std::string(kernels_.name) + ", " + std::to_string(count) +
         (count == 1 ? " thread" : " threads") + "; matrix products: " + panel_kernels_for(kernels_).name;
}

Reproducibility CpuBackend::reproducibility(Operation, Direction direction) const {
  // Gradients sum over all queries or lists of a sequence: a part of it cannot give the same bytes.
  return {.run = true, .threads = true, .batch = true, .prefill = direction == Direction::forward};
}

Support CpuBackend::supports(Operation, Direction, DType dtype) const {
  if (dtype == DType::f64)
    return Support::no("the cpu backend computes in float32; take the reference backend for float64");
  return Support::yes();
}

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace dsalt::internal
