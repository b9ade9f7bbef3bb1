# The CPU backend's operations beside attention. Their kernel tables are private to libdsalt, so this program links its
# own copy of them.
get_property(kernels GLOBAL PROPERTY DSALT_CPU_KERNELS)
dsalt_test(cpu_operations LABEL quick INTERNAL SOURCES
  operations_adamw.cpp
  operations_cross_entropy.cpp
  operations_energies.cpp
  operations_isa.cpp
  operations_numerics.cpp
  operations_panels.cpp
  operations_rmsnorm.cpp
  operations_rope.cpp
  operations_row_kernels.cpp
  operations_selection.cpp
  operations_swiglu.cpp
  operations_window_sizes.cpp
  ${PROJECT_SOURCE_DIR}/backends/cpu/kernel_table.cpp
  ${PROJECT_SOURCE_DIR}/backends/cpu/row_table.cpp
  ${kernels})
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(test_cpu_operations PRIVATE OpenMP::OpenMP_CXX)

# All of it once more with the other kernels; skipped where the processor does not run them.
foreach(isa scalar avx2 avx512)
  add_test(NAME cpu_operations_${isa} COMMAND test_cpu_operations)
  set_tests_properties(cpu_operations_${isa} PROPERTIES LABELS quick TIMEOUT 900 SKIP_RETURN_CODE 77
                                                        ENVIRONMENT DSALT_CPU_ISA=${isa})
endforeach()
