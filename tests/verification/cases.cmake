# Cases, their evaluation, case files, golden data.
find_package(HDF5 REQUIRED COMPONENTS C)
find_program(DSALT_H5DUMP h5dump REQUIRED)  # Debian: hdf5-tools

dsalt_test(cases
  SOURCES case_evaluate.cpp case_generators.cpp case_schema.cpp
  LIBRARIES dsalt::verification)

# Hand-made files need HDF5 itself.
dsalt_test(case_files
  SOURCES case_file_forms.cpp case_file_killed.cpp case_file_round_trip.cpp
  LIBRARIES dsalt::verification ${HDF5_C_LIBRARIES})
dsalt_test(case_file_fuzzing
  SOURCES fuzz_bytes.cpp fuzz_hostile.cpp
  LIBRARIES dsalt::verification ${HDF5_C_LIBRARIES})
foreach(name case_files case_file_fuzzing)
  target_include_directories(test_${name} SYSTEM PRIVATE ${HDF5_C_INCLUDE_DIRS})
endforeach()
target_compile_definitions(test_case_files PRIVATE DSALT_H5DUMP="${DSALT_H5DUMP}")

# Exchange with h5py; skipped, and listed as such, where Python has no h5py.
dsalt_test(case_file_python
  SOURCES case_file_python.cpp
  LIBRARIES dsalt::verification)
set_tests_properties(case_file_python PROPERTIES SKIP_RETURN_CODE 77)

dsalt_test(golden
  SOURCES golden_data.cpp golden_files.cpp
  LIBRARIES dsalt::verification)
target_compile_definitions(test_golden PRIVATE DSALT_DATA="${PROJECT_SOURCE_DIR}/data")
