# What the processor can do at most, per instruction set, for `dsalt bench`. Contraction is on: here a multiply and an add
# are meant as one instruction wherever the level has it.
add_library(dsalt_cpu_peak OBJECT EXCLUDE_FROM_ALL peak.cpp peak_generic.cpp)
target_include_directories(dsalt_cpu_peak PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_compile_options(dsalt_cpu_peak PRIVATE -ffp-contract=fast)
target_link_libraries(dsalt_cpu_peak PUBLIC OpenMP::OpenMP_CXX)
dsalt_configure(dsalt_cpu_peak)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  target_sources(dsalt_cpu_peak PRIVATE peak_avx2.cpp peak_avx512.cpp peak_avx512bf16.cpp
                 peak_amxbf16.cpp)
  target_compile_definitions(dsalt_cpu_peak PRIVATE DSALT_PEAK_X86)
  set_source_files_properties(peak_avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  set_source_files_properties(peak_avx512.cpp PROPERTIES COMPILE_OPTIONS "-mavx512f;-mfma;-mprefer-vector-width=512")
  set_source_files_properties(peak_avx512bf16.cpp PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512bf16")
  set_source_files_properties(peak_amxbf16.cpp PROPERTIES COMPILE_OPTIONS "-mamx-tile;-mamx-bf16")
endif()
