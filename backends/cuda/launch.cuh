// Launching kernels: every launch is checked, its grid before and its status after, and named after its operation.
#pragma once

#include <cstdint>
#include <utility>

#include "context.hpp"
#include "grid.hpp"
#ifdef DSALT_EMULATED  // tests/cuda/emulated: the same kernels as ordinary C++, thread by thread on the host
#include "emulator.hpp"
#endif

namespace dsalt::cuda {

template <class... Parameters, class... Arguments>
void launch(const Context& context, const char* operation, void (*kernel)(Parameters...), const Grid& blocks,
            dim3 block, std::size_t shared_bytes, Arguments&&... arguments) {
  const dim3 grid = checked_grid(blocks, operation);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;  // nothing to do, and an error to CUDA
  context.latest_operation = operation;
  if (shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          operation, "cudaFuncSetAttribute");
#ifdef DSALT_EMULATED
  emulator::run(kernel, grid, block, shared_bytes, 1, std::forward<Arguments>(arguments)...);
#else
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream();
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), operation, "the kernel launch");
#endif
}

#ifndef DSALT_EMULATED
/// A launch in clusters of `cluster` (1 to 8) consecutive blocks of a kernel that waits for earlier ones itself
/// (programmatic dependent launch).
struct ClusterLaunch {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};

  ClusterLaunch(const Context& context, const char* operation, const void* kernel, std::int64_t blocks, int cluster,
                unsigned threads, std::size_t shared_bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
          operation, "cudaFuncSetAttribute");
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = checked_grid(blocks, operation);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = context.stream();
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;
};
#endif

template <class... Parameters, class... Arguments>
void launch_clusters(const Context& context, const char* operation, void (*kernel)(Parameters...), std::int64_t blocks,
                     int cluster, unsigned threads, std::size_t shared_bytes, Arguments&&... arguments) {
  if (blocks == 0) return;
  context.latest_operation = operation;
#ifdef DSALT_EMULATED
  emulator::run(kernel, checked_grid(blocks, operation), dim3(threads), shared_bytes, static_cast<unsigned>(cluster),
                std::forward<Arguments>(arguments)...);
#else
  const ClusterLaunch launch(context, operation, reinterpret_cast<const void*>(kernel), blocks, cluster, threads,
                             shared_bytes);
  check(cudaLaunchKernelEx(&launch.config, kernel, std::forward<Arguments>(arguments)...), operation,
        "the kernel launch");
#endif
}

template <class... Parameters>
int most_resident_clusters(const Context& context, const char* operation, void (*kernel)(Parameters...), int cluster,
                           unsigned threads, std::size_t shared_bytes) {
#ifdef DSALT_EMULATED
  return context.multiprocessors / cluster;
#else
  const ClusterLaunch launch(context, operation, reinterpret_cast<const void*>(kernel), cluster, cluster, threads,
                             shared_bytes);
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config), operation, "cudaOccupancyMaxActiveClusters");
  return count;
#endif
}

/// The block's dynamic shared memory, aligned to 1024 bytes where the kernel has no static shared memory.
template <class T>
__device__ inline T* dynamic_shared_memory() {
#ifdef DSALT_EMULATED
  return reinterpret_cast<T*>(emulator::dynamic_shared_memory());
#else
  extern __shared__ __align__(1024) unsigned char dsalt_dynamic_shared_memory[];
  return reinterpret_cast<T*>(dsalt_dynamic_shared_memory);
#endif
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace dsalt::cuda
