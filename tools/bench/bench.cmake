# The parts of `dsalt bench`. Admitted pairs are counted with the library's own definition of the mask, and the limits of
# the cpu backend come from its own folder: neither is part of libdsalt's interface.
find_package(nlohmann_json 3.11 REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_sources(dsalt_command PRIVATE
  bench/admitted_pairs.cpp
  bench/compare.cpp
  bench/data.cpp
  bench/datasheet.cpp
  bench/executed_pairs.cpp
  bench/executed_pairs_hopper.cpp
  bench/format.cpp
  bench/html.cpp
  bench/json.cpp
  bench/limits.cpp
  bench/machine.cpp
  bench/plot.cpp
  bench/roofline.cpp
  bench/runner.cpp
  bench/scaling.cpp
  bench/scaling_plot.cpp
  bench/shape.cpp
  bench/shares_plot.cpp
  bench/statistics.cpp
  bench/table.cpp
  bench/timing.cpp
  bench/workload.cpp
  bench/workload_attention.cpp
  bench/workload_network.cpp
  bench/workload_selectors.cpp)
target_include_directories(dsalt_command PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/core
                           ${PROJECT_BINARY_DIR}/bench)
target_link_libraries(dsalt_command PRIVATE dsalt_cpu_peak nlohmann_json::nlohmann_json OpenMP::OpenMP_CXX)

# The commit that is being built, looked up again at every build.
add_custom_target(dsalt_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${PROJECT_BINARY_DIR}/bench/dsalt_commit.hpp
          -P ${PROJECT_SOURCE_DIR}/cmake/DsaltCommit.cmake
  BYPRODUCTS ${PROJECT_BINARY_DIR}/bench/dsalt_commit.hpp
  COMMENT "Looking up the commit")
add_dependencies(dsalt_command dsalt_commit)
