# dsalt-gpu-bench: `dsalt bench`'s workloads on a stream of its own, in CUDA graphs.
find_package(CUDAToolkit REQUIRED)
add_executable(dsalt_gpu_bench
  gpu_bench/graph_timing.cpp
  gpu_bench/main.cpp
  gpu_bench/row_errors.cpp
  gpu_bench/selection.cpp
  bench/admitted_pairs.cpp
  bench/data.cpp
  bench/format.cpp
  bench/shape.cpp
  bench/statistics.cpp
  bench/timing.cpp
  bench/workload.cpp
  bench/workload_attention.cpp
  bench/workload_network.cpp
  bench/workload_selectors.cpp
  console.cpp
  guarded.cpp
  output_file.cpp)
set_target_properties(dsalt_gpu_bench PROPERTIES OUTPUT_NAME dsalt-gpu-bench)
target_include_directories(dsalt_gpu_bench PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/core)
target_link_libraries(dsalt_gpu_bench PRIVATE dsalt::dsalt CLI11::CLI11 nlohmann_json::nlohmann_json CUDA::cudart_static)
dsalt_configure(dsalt_gpu_bench)
