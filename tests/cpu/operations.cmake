# The CPU backend's operations beside attention. The product kernels are hidden in libdsalt, so their test compiles them.
set(dsalt_matmul ${PROJECT_SOURCE_DIR}/backends/cpu/matmul)
set(dsalt_matmul_sources ${dsalt_matmul}_generic.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND dsalt_matmul_sources ${dsalt_matmul}_avx2.cpp ${dsalt_matmul}_avx512.cpp)
  set_source_files_properties(${dsalt_matmul}_avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  set_source_files_properties(${dsalt_matmul}_avx512.cpp PROPERTIES COMPILE_OPTIONS "-mavx512f;-mfma")
  set_source_files_properties(operations_matmul.cpp ${dsalt_matmul_sources} PROPERTIES
                              COMPILE_DEFINITIONS DSALT_MATMUL_X86)
endif()
dsalt_test(cpu_operations LABEL quick INTERNAL SOURCES
  operations_adamw.cpp
  operations_cross_entropy.cpp
  operations_energies.cpp
  operations_matmul.cpp
  operations_numerics.cpp
  operations_rmsnorm.cpp
  operations_rope.cpp
  operations_selection.cpp
  operations_swiglu.cpp
  operations_window_sizes.cpp
  ${dsalt_matmul_sources})
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(test_cpu_operations PRIVATE OpenMP::OpenMP_CXX)

# The products of the baseline instruction set, through the backend; the other tables are tested in operations_matmul.cpp.
add_test(NAME cpu_operations_scalar COMMAND test_cpu_operations --run_test=cross_entropy,window_sizes)
set_tests_properties(cpu_operations_scalar PROPERTIES LABELS quick TIMEOUT 300 ENVIRONMENT DSALT_CPU_ISA=scalar)
