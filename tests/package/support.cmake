# For the package tests: every command must succeed or the test fails with everything that it printed.

function(run)
  list(JOIN ARGN " " line)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${line}\nended with ${result}:\n${output}")
  endif()
endfunction()

# expect(<regular expression> <command>...): the command succeeds and all of its output matches.
function(expect pattern)
  list(JOIN ARGN " " line)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0 OR NOT output MATCHES "^${pattern}\n$")
    message(FATAL_ERROR "${line}\nended with ${result}, needed output \"${pattern}\", got:\n${output}")
  endif()
  message(STATUS "${line}: ${output}")
endfunction()

# expect_failure(<regular expression> <command>...): the command fails by itself and says so.
function(expect_failure pattern)
  list(JOIN ARGN " " line)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result MATCHES "^[0-9]+$" OR result EQUAL 0 OR NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "${line}\nended with ${result}, needed a failure with \"${pattern}\", got:\n${output}")
  endif()
  message(STATUS "${line}: fails as it should")
endfunction()

# What the dynamic linker loads for a program or library must name neither HDF5 nor CUDA.
function(expect_no_hdf5_or_cuda file)
  execute_process(COMMAND ${READELF} -d ${file} OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ldd ${file} OUTPUT_VARIABLE loaded COMMAND_ERROR_IS_FATAL ANY)
  if(NOT needed MATCHES "NEEDED")
    message(FATAL_ERROR "${file}: no dynamic section was read")
  endif()
  string(TOLOWER "${needed}${loaded}" libraries)
  if(libraries MATCHES "libhdf5|libcuda|libnv|not found")
    message(FATAL_ERROR "${file} loads HDF5 or CUDA, or lacks a library:\n${needed}\n${loaded}")
  endif()
endfunction()

# The example gives the same means on every backend, and one sentence where a backend cannot run.
set(example_output "0 0.5 1 1.66667 2.33333 3")
function(expect_example program)
  unset(ENV{DSALT_BACKEND})
  unset(ENV{DSALT_MODULE_PATH})
  expect("reference: ${example_output}" ${program} reference)
  expect("cpu: ${example_output}" ${program} cpu)
  expect("(cpu|cuda:0): ${example_output}" ${program})
  expect_failure("^backend: got \"gpu\", need one of [^\n]*\n$" ${program} gpu)
  set(ENV{DSALT_BACKEND} reference)
  expect("reference: ${example_output}" ${program})
  unset(ENV{DSALT_BACKEND})
endfunction()

# A module put where this program looks for one is found there, and the program's tensors reach it.
function(expect_module_found program module)
  expect("cuda:0: ${example_output}" ${program} cuda)
  file(REMOVE ${module})
endfunction()
