# cmake -DNM=... -DMODULE=... -P check_exports.cmake: the module exports its entry point and nothing else.
execute_process(COMMAND ${NM} --dynamic --defined-only ${MODULE} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(STRIP "${symbols}" symbols)
message(STATUS "${symbols}")
if(NOT symbols MATCHES "^[0-9a-f]+ T dsalt_backend_module$")
  message(FATAL_ERROR "${MODULE} exports something other than dsalt_backend_module alone")
endif()
