# cmake -DDSALT=... -DMODULE=... -DCAPABILITY=90 -DFAULT=barrier_wait:1 "-DEXPECTED=..." -P fault.cmake
# The emulator must notice a kernel that leaves out calls: dsalt verify fails on a case that it passes without the fault,
# and says what the expression EXPECTED matches.
set(ENV{DSALT_MODULE_PATH} ${MODULE})
set(ENV{DSALT_EMULATED_CAPABILITY} ${CAPABILITY})
foreach(fault "" ${FAULT})
  set(ENV{DSALT_EMULATED_FAULT} ${fault})
  execute_process(COMMAND ${DSALT} verify --backend cuda --case attention/dense_tiles/causal_193x193_d64_1_over_1_bf16
                  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(fault STREQUAL "" AND NOT status EQUAL 0)
    message(FATAL_ERROR "dsalt verify ended with ${status} without a fault:\n${output}")
  endif()
endforeach()
if(status EQUAL 0 OR NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "dsalt verify ended with ${status}, need a failure that says \"${EXPECTED}\":\n${output}")
endif()
