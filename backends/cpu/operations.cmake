# Sources of the operations beside attention that do not carry an operation's name, and how they are compiled.
target_sources(dsalt PRIVATE matmul.cpp matmul_generic.cpp)

# Nothing here reads errno or the floating-point exception flags; without this promise g++ leaves loops with a square root
# or a select unvectorised. No result bit depends on it.
set_source_files_properties(
  adamw.cpp cross_entropy.cpp energies.cpp rmsnorm.cpp rope.cpp select_landmarks.cpp swiglu.cpp window_sizes.cpp
  TARGET_DIRECTORY dsalt PROPERTIES COMPILE_OPTIONS "-fno-math-errno;-fno-trapping-math")

# One table of product kernels per instruction set; matmul.cpp takes the one that the backend runs on.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_sources(dsalt PRIVATE matmul_avx2.cpp matmul_avx512.cpp)
  set_source_files_properties(matmul.cpp matmul_avx2.cpp matmul_avx512.cpp TARGET_DIRECTORY dsalt
                              PROPERTIES COMPILE_DEFINITIONS DSALT_MATMUL_X86)
  set_source_files_properties(matmul_avx2.cpp TARGET_DIRECTORY dsalt PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  set_source_files_properties(matmul_avx512.cpp TARGET_DIRECTORY dsalt PROPERTIES COMPILE_OPTIONS "-mavx512f;-mfma")
endif()
