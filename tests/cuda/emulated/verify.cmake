# cmake -DDSALT=... -DMODULE=... -DJSON=... "-DSELECTION=--suite;stability" -P verify.cmake
# dsalt verify --backend cuda --quick on the emulated module. Beyond what dsalt verify fails for: it was the emulated
# module that ran, and every case was one that it supports.
set(ENV{DSALT_MODULE_PATH} ${MODULE})
file(REMOVE ${JSON})
execute_process(COMMAND ${DSALT} verify --backend cuda --quick ${SELECTION} --json ${JSON} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "dsalt verify ended with ${status}")
endif()
file(READ ${JSON} json LIMIT 2000)  # the head; the results follow
if(NOT json MATCHES "\"description\": \"[^\"]*emulated on the host")
  message(FATAL_ERROR "it was not the emulated module that ran:\n${json}")
endif()
if("$ENV{DSALT_EMULATED_CAPABILITY}" STREQUAL "90" AND NOT json MATCHES "Hopper kernels")
  message(FATAL_ERROR "the emulated device has no Hopper kernels:\n${json}")
endif()
string(REGEX MATCH "\"totals\": {[^}]*}" totals "${json}")
if(NOT totals MATCHES "\"passed\": [1-9]" OR NOT totals MATCHES "\"failed\": 0[,\n]" OR
   NOT totals MATCHES "\"unsupported\": 0[,\n]")
  message(FATAL_ERROR "need cases that passed, and none that failed or are unsupported: ${totals}")
endif()
