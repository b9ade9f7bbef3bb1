# Nothing here reads errno or the floating-point exception flags; without this promise g++ leaves loops with a square root
# or a select unvectorised. No result bit depends on it.
set_source_files_properties(
  adamw.cpp cross_entropy.cpp energies.cpp rmsnorm.cpp rope.cpp select_landmarks.cpp swiglu.cpp window_sizes.cpp
  TARGET_DIRECTORY dsalt PROPERTIES COMPILE_OPTIONS "-fno-math-errno;-fno-trapping-math")
